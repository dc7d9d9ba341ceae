"""Export and predict: an exported model measures what validation did, and loads anywhere."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import main
from models.layers import Layers, dense
from tests import ROOT
from tests.harness import faults
from towers import data, models
from towers.checkpoint.checkpoints import find_best
from towers.process.run_error import RunError
from towers.session.predict_function import classify
from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import batch_norm
from towers_tools.serving.export import write_best

QUICK = ['--device=cpu', '--batch_size=250', '--optimizer=adam', '--learning_rate=0.1',
         '--schedule=constant']
BINS = [os.path.realpath(os.path.join(ROOT, f'.venv-tf{target}', 'bin')) for target in (1, 2)]
OTHERS = [os.path.join(folder, 'python') for folder in BINS
          if os.path.exists(os.path.join(folder, 'python'))
          and folder != os.path.realpath(os.path.dirname(sys.executable))]
# A program without any of this project.
ASK = """
import sys, numpy as np, tensorflow.compat.v1 as tf
with tf.Session(graph=tf.Graph(), config=tf.ConfigProto(device_count={'CPU': 1})) as session:
  loaded = tf.saved_model.loader.load(session, ['serve'], sys.argv[1])
  signature = loaded.signature_def['serving_default']
  outputs = {name: info.name for name, info in signature.outputs.items()}
  answers = session.run(outputs, {signature.inputs['images'].name: np.load(sys.argv[2])})
assert not {'towers', 'staging', 'models'} & set(sys.modules)
np.savez(sys.argv[3], **answers)
"""


def build_logits(name, *, num_classes, data_format='NHWC', drop_path=0.0):
  """Stands in for the zoo's: few ops, with all that differs between training and validation."""
  def logits(images, is_training):
    layers = Layers(is_training)
    features = batch_norm(layers.max_pool(layers.normalize(images), 4), is_training, name='norm')
    return dense(layers.dropout(layers.flatten(features), 0.5), num_classes, name='logits')
  return logits


def run(*flags):
  with tf.Graph().as_default():
    return main.main(['main.py'] + QUICK + list(flags))


def softmax_cross_entropy(logits, labels):
  logits = logits - logits.max(1, keepdims=True)
  return np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels])


def ask(python, folder, images, answers):
  done = subprocess.run([python, '-c', ASK, str(folder), str(images), str(answers)],
                        cwd=os.path.dirname(str(answers)), capture_output=True, text=True,
                        timeout=120)
  assert done.returncode == 0, done.stderr
  return np.load(str(answers))


@pytest.fixture(scope='module')
def served(tmp_path_factory):
  """The folder of a run that got worse at its end, with saved/, served/ and images.npy."""
  folder = tmp_path_factory.mktemp('export')
  with pytest.MonkeyPatch().context() as patch:
    patch.setattr(models, 'build_logits', build_logits)
    flags = ['--num_gpus=3', '--batch_norm=sync', '--validate_every=1',
             f"--checkpoint_dir={folder / 'saved'}", f"--export_dir={folder / 'served'}"]
    assert run('--steps=8', *flags) == 0
    assert run('--steps=10', '--learning_rate=30', *flags) == 0
  np.save(str(folder / 'images.npy'), data.load('sample').validation.arrays[0])
  return folder


def history(folder):
  with open(str(folder / 'saved' / 'history.json')) as file:
    return {validation['step']: validation for validation in json.load(file)['validations']}


def test_the_best_weights_are_exported_and_measure_what_validation_did(served, tmp_path):
  validations = history(served)
  best = min(validations, key=lambda step: validations[step]['loss'])
  assert best < 10 and os.listdir(str(served / 'served')) == [str(best)]
  answers = ask(sys.executable, served / 'served' / str(best), served / 'images.npy',
                tmp_path / 'answers.npz')
  labels = data.load('sample').validation.arrays[1]
  loss = softmax_cross_entropy(answers['logits'], labels)
  accuracy = np.mean(answers['class'] == labels)
  assert loss == pytest.approx(validations[best]['loss'], abs=1e-5)
  assert accuracy == pytest.approx(validations[best]['accuracy'], abs=1e-9)
  np.testing.assert_array_equal(answers['class'], answers['logits'].argmax(1))
  exponentials = np.exp(answers['logits'] - answers['logits'].max(1, keepdims=True))
  np.testing.assert_allclose(answers['probabilities'],
                             exponentials / exponentials.sum(1, keepdims=True), atol=1e-6)


@pytest.mark.nightly
@pytest.mark.skipif(not OTHERS, reason='the other target is not installed')
def test_the_other_tensorflow_loads_it(served, tmp_path):
  [name] = os.listdir(str(served / 'served'))
  ours = ask(sys.executable, served / 'served' / name, served / 'images.npy', tmp_path / 'ours.npz')
  theirs = ask(OTHERS[0], served / 'served' / name, served / 'images.npy', tmp_path / 'theirs.npz')
  np.testing.assert_allclose(ours['logits'], theirs['logits'], atol=1e-4)


def test_nothing_of_training_is_in_it(served):
  [name] = os.listdir(str(served / 'served'))
  with tf.Session(graph=tf.Graph()) as session:
    tf.saved_model.loader.load(session, ['serve'], str(served / 'served' / name))
    ops = session.graph.get_operations()
  assert not {op.type for op in ops} & {
      'IteratorV2', 'IteratorGetNext', 'Stage', 'Unstage', 'If', 'Switch', 'Merge',
      'ResourceApplyAdam', 'SoftmaxCrossEntropyWithLogits'}
  words = ('tower', 'validating', 'gradients', 'global_step', 'examples_seen', 'Adam', 'stage')
  assert not [op.name for op in ops if any(word in op.name for word in words)]
  # SavedModel's own saver is placed on the host, which exists everywhere.
  assert {op.device for op in ops if not op.name.startswith('save/')} == {''}
  assert all(op.device in ('', '/device:CPU:0', '/device:CPU:*') for op in ops)
  assert sum(op.type == 'VarHandleOp' for op in ops) == 6


def test_a_checkpoint_and_its_export_agree_and_without_a_best_the_newest_is_taken(
    served, capsys, monkeypatch):
  monkeypatch.setattr(models, 'build_logits', build_logits)
  [name] = os.listdir(str(served / 'served'))
  np.save(str(served / 'few.npy'), np.load(str(served / 'images.npy'))[:7, ..., 0])
  shown = []
  for flag in (f"--checkpoint_dir={served / 'saved'}", f"--export_dir={served / 'served'}",
               f"--export_dir={served / 'served' / name}"):
    assert main.main(['main.py', f"--predict={served / 'few.npy'}", '--batch_size=3', flag]) == 0
    shown.append(capsys.readouterr().out)
  assert len(shown[0].splitlines()) == 8 and shown == [shown[0]] * 3
  assert find_best(str(served / 'saved'), 'loss') == int(name)
  bare = shutil.copytree(str(served / 'saved'), str(served / 'bare'),
                         ignore=shutil.ignore_patterns('history.json'))
  assert find_best(bare, 'max:no such metric') == 10


@pytest.mark.nightly
def test_a_reader_that_closes_the_pipe_is_no_error(served):
  shell = (f"{sys.executable} main.py --predict={served / 'images.npy'} "
           f"--export_dir={served / 'served'} | head -1")
  done = subprocess.run(shell, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=120)
  assert done.stdout == 'example,class,probability\n' and done.stderr == ''


@pytest.mark.nightly
def test_a_folder_of_images_is_read_as_validation_reads_it(tmp_path, monkeypatch):
  monkeypatch.setattr(models, 'build_logits', build_logits)
  random = np.random.RandomState(0)
  encode = tf.Session(graph=tf.Graph())
  with encode.graph.as_default():
    pixels = tf.placeholder(tf.uint8, [None, None, 3])
    png = tf.image.encode_png(pixels)
  for split, count in (('train', 12), ('validation', 10)):
    for label, name in enumerate(('cats', 'dogs')):
      folder = tmp_path / 'data' / split / name
      folder.mkdir(parents=True)
      for index in range(count):
        height, width = random.randint(20, 60, size=2)
        image = random.randint(256, size=[height, width, 3]) // 2 + 12 * label
        image = np.clip(image, 0, 255).astype(np.uint8)
        (folder / f'{name}, {index}.png').write_bytes(encode.run(png, {pixels: image}))
  flags = ['--data=images', f"--data_dir={tmp_path / 'data'}", '--image_size=16']
  assert run('--steps=4', '--batch_size=8', f"--checkpoint_dir={tmp_path / 'saved'}",
             f"--result_file={tmp_path / 'result.json'}", f"--export_dir={tmp_path / 'served'}",
             *flags) == 0
  with open(str(tmp_path / 'result.json')) as file:
    expected = json.load(file)['validation_accuracy']
  right = 0
  for label, name in enumerate(('cats', 'dogs')):
    for source in (f"--checkpoint_dir={tmp_path / 'saved'}", f"--export_dir={tmp_path / 'served'}"):
      assert main.main([
          'main.py', f"--predict={tmp_path / 'data' / 'validation' / name}", '--batch_size=4',
          source, f"--result_file={tmp_path / 'answers'}"] + flags) == 0
    lines = (tmp_path / 'answers').read_text().splitlines()[1:]
    assert len(lines) == 10 and lines[0].startswith(f'"{name}, 0.png",')
    right += sum(int(line.split(',')[-2]) == label for line in lines)
  assert right / 20.0 == pytest.approx(expected) and expected not in (0.0, 1.0)
  # A damaged image ends the prediction, or is left out.
  (tmp_path / 'data' / 'validation' / 'cats' / 'cats, 3.png').write_bytes(b'no image')
  flags = ['main.py', f"--predict={tmp_path / 'data' / 'validation' / 'cats'}",
           f"--export_dir={tmp_path / 'served'}", f"--result_file={tmp_path / 'answers'}"]
  assert main.main(flags) == 2
  assert main.main(flags + ['--on_bad_record=skip']) == 0
  assert len((tmp_path / 'answers').read_text().splitlines()) == 10


def test_exporting_again_replaces_it_and_a_full_disk_leaves_what_was_there(
    served, monkeypatch, capsys):
  monkeypatch.setattr(models, 'build_logits', build_logits)
  flags = ['--steps=10', '--num_gpus=3', '--batch_norm=sync', '--validate_every=1',
           f"--checkpoint_dir={served / 'saved'}", f"--export_dir={served / 'served'}"]
  [name] = os.listdir(str(served / 'served'))
  files = sorted(path for path in (served / 'served' / name).rglob('*') if path.is_file())
  before = [path.stat().st_mtime_ns for path in files]
  with faults.full_disk(), pytest.raises(RunError, match='cannot be exported to'):
    write_best(str(served / 'served'), checkpoint_dir=str(served / 'saved'),
               predict=classify(build_logits('few ops', num_classes=10)),
               examples=data.load('sample').validation)
  assert [path.stat().st_mtime_ns for path in files] == before
  assert os.listdir(str(served / 'served')) == [name]
  assert run(*flags) == 0
  assert [path.stat().st_mtime_ns for path in files] > before
  assert os.listdir(str(served / 'served')) == [name]


@pytest.mark.parametrize('flags, words', [
    (['--export_dir=there'], ['export_dir=there', 'checkpoint_dir']),
    (['--predict=images.npy'], ['predict=images.npy', 'either checkpoint_dir', 'export_dir']),
    pytest.param(['--predict=images.npy', '--checkpoint_dir=saved', '--export_dir=served'],
                 ['either'], marks=pytest.mark.nightly),
    (['--predict=images.npy', '--checkpoint_dir=/nowhere'], ['/nowhere', 'does not exist']),
    (['--predict=images.npy', '--checkpoint_dir=.'], ['has no checkpoint']),
    (['--predict=images.npy', '--export_dir=/nowhere'], ['/nowhere', 'no exported model']),
    pytest.param(['--predict=nothing.npy', '--export_dir=served'],
                 ['nothing.npy', 'does not exist'], marks=pytest.mark.nightly),
    (['--predict=wrong.npy', '--export_dir=served'],
     ['wrong.npy', 'float64', '[5, 28, 28]', 'uint8 of shape [n, 28, 28, 1]']),
    (['--predict=saved', '--export_dir=served'], ['predict=saved', 'no JPEG']),
    (['--predict=images.npy', '--checkpoint_dir=saved', '--model=lenet'],
     ['another model', 'conv1']),
    (['--predict=images.npy', '--export_dir=served', '--result_file=/sys/nowhere/answers'],
     ['/sys/nowhere/answers'])])
def test_mistakes_are_named(served, flags, words, capsys, monkeypatch):
  np.save(str(served / 'wrong.npy'), np.zeros([5, 28, 28]))
  monkeypatch.chdir(str(served))
  assert main.main(['main.py'] + flags) == 2
  shown = capsys.readouterr()
  assert shown.out == '' and shown.err.startswith('towers: error: ')
  for word in words:
    assert word in shown.err
