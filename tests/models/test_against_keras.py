"""With the weights of tf.keras.applications models give what it gives: the same layers in order."""

import re
import sys

import numpy as np
import pytest

from models import nasnet, vgg
from models.layers import Layers
from tests.models.test_models import TINY_NASNET
from towers.tensorflow_v1 import load_keras, tf

# Of a NASNet with two normal cells a stage: its cells, and the places of separable convolutions in
# both kinds of cells.
CELLS = {
    1: 'stem_1', 2: 'stem_2', 3: '0', 4: '1', 5: 'reduce_2', 6: '3', 7: '4', 8: 'reduce_4', 9: '5',
    10: '6'
}
NORMAL = dict(a_left='left1', a_right='right1', b_left='left2', b_right='right2', e_left='left5')
REDUCTION = dict(a_left='left1', a_right='right1', b_right='right2', c_right='right3',
                 e_left='left4')
WEIGHTS = {
    'weights': 'kernel', 'biases': 'bias', 'depthwise': 'depthwise_kernel',
    'pointwise': 'pointwise_kernel', 'scale': 'gamma', 'offset': 'beta',
    'moving_mean': 'moving_mean', 'moving_variance': 'moving_variance'
}


def name_in_nasnet(name):
  """Returns Keras's name of a layer's variable from ours."""
  layer, weight = name.rsplit('/', 1)
  if layer in ('stem', 'stem_norm', 'logits'):
    layer = {'stem': 'stem_conv1', 'stem_norm': 'stem_bn1', 'logits': 'predictions'}[layer]
  else:
    number, place = layer.split('/', 1)
    cell = CELLS[int(number[len('cell'):])]
    kind, sides = ('normal', NORMAL) if cell.isdigit() else ('reduction', REDUCTION)
    match = re.match(r'(\w_\w+)/(conv|norm)(\d)$', place)
    if match:
      side, op, index = match.groups()
      norm = '_bn' if op == 'norm' else ''
      layer = f'separable_conv_{index}{norm}_{kind}_{sides[side]}_{cell}'
    else:
      layer = {
          'h': kind + '_conv_1_', 'h_norm': kind + '_bn_1_', 'p': 'adjust_conv_projection_',
          'p_even': 'adjust_conv_1_', 'p_odd': 'adjust_conv_2_', 'p_norm': 'adjust_bn_'
      }[place] + cell
  return f'{layer}/{WEIGHTS[weight]}'


def name_in_vgg(name):
  layer, weight = name.rsplit('/', 1)
  layer = {'dense1': 'fc1', 'dense2': 'fc2', 'logits': 'predictions'}.get(layer, layer)
  return '{}/{}'.format(re.sub(r'^conv(\d)_', r'block\1_conv', layer), WEIGHTS[weight])


def compare(build_logits, make, name_in_keras, **settings):
  """Runs both on the same images from the same random weights."""
  random = np.random.RandomState(0)
  images = random.rand(2, 32, 32, 3).astype(np.float32)
  with tf.Graph().as_default(), tf.Session() as session:
    with tf.variable_scope('ours'):
      ours = build_logits(tf.constant(images), False, 10, **settings)
    variables = {variable.op.name[len('ours/'):]: variable for variable in tf.global_variables()}
    theirs = make()
    theirs.layers[-1].activation = load_keras(
    ).activations.linear  # Softmax would hide what differs.
    expected = theirs(tf.constant(images if build_logits is vgg.build_logits else 2 * images - 1),
                      training=False)
    by_name = {'/'.join(variable.op.name.split('/')[-2:]): variable for variable in theirs.weights}
    assert {name_in_keras(name) for name in variables} == set(by_name)
    feed = {}
    for name, variable in variables.items():
      shape = variable.shape.as_list()
      # Of a size that logits stay moderate, and a variance above 0.
      value = random.uniform(0.5, 1.5, shape) if 'variance' in name or 'scale' in name else (
          random.normal(size=shape) * np.sqrt(2 / (np.prod(shape[:-1]) if len(shape) > 1 else 20)))
      if 'depthwise' in name:
        value *= np.sqrt(shape[2])
      for one in (variable, by_name[name_in_keras(name)]):
        feed[one.initial_value] = value
    session.run(tf.global_variables_initializer(), feed)
    ours, expected = session.run([ours, expected])
    scale = np.abs(expected).max()
    assert np.ptp(expected, 0).max() > 1e-2 * scale  # The images are told apart.
    np.testing.assert_allclose(ours / scale, expected / scale, atol=1e-4)


def pool_like_keras(own, pool):
  """Keras pads what it halves with zeros that count as pixels; the authors, as here, do not."""
  def padded(self, x, size, stride):
    if stride == 1:
      return own(self, x, size, stride)
    paddings = [(size // 2 - (1 - pixels % 2), size // 2) for pixels in self.count_pixels(x)]
    return pool(tf.pad(x, [(0, 0)] + paddings + [(0, 0)]), size, stride, 'VALID')
  return padded


@pytest.mark.nightly
@pytest.mark.skipif(int(tf.__version__.split('.')[0]) == 1, reason='1.14 has no function for other '
                                                                   'sizes of NASNet')
def test_nasnet_gives_what_keras_gives(monkeypatch):
  # With one normal cell a stage Keras would leave out a convolution where channels happen to fit.
  monkeypatch.setitem(nasnet._VARIANTS, 'mobile', TINY_NASNET._replace(num_normal=2))
  for name, pool in (('max_pool', tf.nn.max_pool), ('average_pool', tf.nn.avg_pool)):
    monkeypatch.setattr(Layers, name, pool_like_keras(getattr(Layers, name), pool))
  module = sys.modules[load_keras().applications.NASNetMobile.__module__]

  def make():
    return module.NASNet(input_shape=(32, 32, 3), penultimate_filters=24 * TINY_NASNET.channels,
                         num_blocks=2, stem_block_filters=TINY_NASNET.stem_channels,
                         skip_reduction=True, weights=None, classes=10, default_size=32)
  compare(nasnet.build_logits, make, name_in_nasnet, variant='mobile')


@pytest.mark.nightly
def test_vgg_gives_what_keras_gives():
  compare(
      vgg.build_logits,
      lambda: load_keras().applications.VGG16(weights=None, input_shape=(32, 32, 3), classes=10),
      name_in_vgg, depth=16)
