"""Scripts of public tutorials, which build at the top of a file what a loop below trains.

A model runs what is above the loop, as it is written, and feeds its placeholders. Repositories have
the folders of their owners here, since two have one name.
"""

import os
import re
import types
from typing import Any, Callable, Dict, Tuple

import numpy as np
import pytest

import towers
from tests.gallery.field import repositories
from tests.gallery.field.programs import Repository, draw
from towers.tensorflow_v1 import tf

# The first line of the part that trains; and what is imported there for data and pictures.
_LOOP = re.compile(
    r'^(?:with tf\.Session|sess = |session_conf|with tf\.train|# Start )', re.MULTILINE)
_IMPORTS = re.compile(r'^(from|import) .*\b(matplotlib|mpl_toolkits|input_data)\b.*$'
                      r'|^matplotlib\.use.*$', re.MULTILINE)
_PIXELS = draw('uniform', 28 * 28)
_IS_DIGIT = np.eye(10, dtype=np.float32)[draw('integers', below=10)]
_SPLIT = types.SimpleNamespace(images=_PIXELS, labels=_IS_DIGIT, num_examples=len(_PIXELS),
                               next_batch=lambda size: (_PIXELS[:size], _IS_DIGIT[:size]))
_DIGITS = types.SimpleNamespace(train=_SPLIT, test=_SPLIT, validation=_SPLIT)
# In place of a value: whether the step trains.
TRAINS = 'is_training'


def digits(*shape: int) -> Tuple[np.ndarray, np.ndarray]:
  return draw('uniform', *(shape or [28 * 28])), _IS_DIGIT


def run_above_loop(folder: str, file: str) -> Dict[str, Any]:
  """Returns the names of a script once what is above its loop has run."""
  path = os.path.join(repositories.FOLDER, folder, file)
  if not repositories.FOLDER or not os.path.exists(path):
    pytest.skip(f'no {path}: FIELD_FOLDER names the folder of repositories')
  with open(path, encoding='utf-8') as source:
    text = _LOOP.split(source.read())[0]
  names = dict(__name__='script', xrange=range, plt=repositories.Missing('plt'),
               input_data=types.SimpleNamespace(read_data_sets=lambda *_, **__: _DIGITS))
  exec(compile(_IMPORTS.sub('', text), path, 'exec'), names)
  return names


def script(repository: str, file: str, feeds: str, arrays: Callable[[], Tuple[np.ndarray, ...]],
           loss: str = 'cost', **constants: Any) -> Repository:
  """Returns a script whose placeholders `feeds`, by name, get arrays, and others constants."""
  def glue():
    def model(batch, is_training):
      names = run_above_loop(repository, file)
      values = {name: is_training if value == TRAINS else value
                for name, value in constants.items()}
      values.update(zip(feeds.split(), batch))
      return towers.fed({names[name]: value for name, value in values.items()},
                        eval(loss, names))
    return model

  return Repository(f'{repository} {os.path.basename(file)}', glue, arrays, 'placeholders',
                    settings={'batch_norm': 'sync'},
                    optimizer=lambda: tf.train.GradientDescentOptimizer(0.01))


_EXAMPLES, _NETS = 'aymericdamien/TensorFlow-Examples', 'tensorflow_v1/examples/3_NeuralNetworks/'
_SHORT, _BOOK = 'nlintz/TensorFlow-Tutorials', 'golbin/TensorFlow-Tutorials'
_ZERO, _ONE = 'hunkim/DeepLearningZeroToAll', 'MorvanZhou/Tensorflow-Tutorial'
SCRIPTS: Dict[str, Repository] = {
    'logistic': script(_EXAMPLES, 'tensorflow_v1/examples/2_BasicModels/logistic_regression.py',
                       'x y', digits),
    'autoencoder': script(_EXAMPLES, _NETS + 'autoencoder.py', 'X', lambda: digits()[:1], 'loss'),
    'rnn': script(_EXAMPLES, _NETS + 'recurrent_network.py', 'X Y', lambda: digits(28, 28),
                  'loss_op'),
    'two_ways': script(_EXAMPLES, _NETS + 'bidirectional_rnn.py', 'X Y', lambda: digits(28, 28),
                       'loss_op'),
    'lengths': script(
        _EXAMPLES, _NETS + 'dynamic_rnn.py', 'x y seqlen',
        lambda: (draw('uniform', 20, 1), _IS_DIGIT[:, :2], 1 + draw('integers', below=20))),
    'two_nets': script(_EXAMPLES, _NETS + 'gan.py', 'gen_input disc_input',
                       lambda: (draw('uniform', 100), _PIXELS), 'gen_loss + disc_loss'),
    'own_gradients': script(
        _EXAMPLES, 'tensorflow_v1/examples/4_Utils/tensorboard_advanced.py', 'x y', digits, 'loss'),
    'modern': script(_SHORT, '04_modern_net.py', 'X Y', digits, p_keep_input=0.8,
                     p_keep_hidden=0.5),
    'lstm': script(_SHORT, '07_lstm.py', 'X Y', lambda: digits(28, 28)),
    'summaries': script(_SHORT, '09_tensorboard.py', 'X Y', digits, p_keep_input=0.8,
                        p_keep_hidden=0.5),
    'two_losses': script(_SHORT, '11_gan.py', 'X z', lambda: (_PIXELS, draw('uniform', 100)),
                         'G_obj + D_obj'),
    'layers': script(_BOOK, '07 - CNN/02 - tf.layers.py', 'X Y', lambda: digits(28, 28, 1),
                     is_training=TRAINS),
    'labels_too': script(_BOOK, '09 - GAN/02 - GAN2.py', 'X Y Z',
                         lambda: (*digits(), draw('uniform', 128)), 'loss_D + loss_G'),
    'words': script(_BOOK, '10 - RNN/02 - Autocomplete.py', 'X Y',
                    lambda: (draw('uniform', 3, 26), draw('integers', below=26)), keep_prob=0.7),
    'translation': script(
        _BOOK, '10 - RNN/03 - Seq2Seq.py', 'enc_input dec_input targets',
        lambda: (draw('uniform', 4, 41), draw('uniform', 5, 41),
                 draw('integers', 5, below=41).astype(np.int64))),
    'dropout': script(_ZERO, 'lab-10-5-mnist_nn_dropout.py', 'X Y', digits, keep_prob=0.7),
    'contrib': script(_ZERO, 'lab-10-7-mnist_nn_higher_level_API.py', 'X Y', digits,
                      train_mode=TRAINS),
    'deep': script(_ZERO, 'lab-11-2-mnist_deep_cnn.py', 'X Y', digits, keep_prob=0.7),
    'xor': script(_ZERO, 'lab-09-3-xor-nn-wide-deep.py', 'X Y',
                  lambda: (draw('uniform', 2), np.float32(draw('integers', 1)))),
    'collected': script(_ONE, 'tutorial-contents/401_CNN.py', 'tf_x tf_y',
                        lambda: (_PIXELS, np.int32(_IS_DIGIT)), 'loss'),
    'two_of_one_input': script(
        _ONE, 'tutorial-contents/501_dropout.py', 'tf_x tf_y',
        lambda: (draw('normal', 1), draw('normal', 1) ** 2), 'o_loss + d_loss',
        tf_is_training=TRAINS)}
