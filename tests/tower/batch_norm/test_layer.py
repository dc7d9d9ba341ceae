"""Batch normalisation: the fused kernel and the layer of sums both compute what numpy does."""

import contextlib

import numpy as np
import pytest

from towers.tensorflow_v1 import tf
from towers.tower.all_towers import joining
from towers.tower.batch_norm import layer
from towers.tower.batch_norm.layer import (
  BATCH_MOMENTS,
  batch_norm,
  gradients_of_training,
  is_choice,
)


def run_layer(x, is_training, *, joined, fed=None, scale=True):
  """Returns outputs, gradients and the moving averages after one update, as arrays."""
  with tf.Graph().as_default(), tf.Session() as session:
    inputs = tf.constant(x)
    switch = tf.placeholder(tf.bool, []) if is_training == 'fed' else is_training
    with joining(None, num_towers=1, joins_norms=joined):
      y = batch_norm(inputs, switch, name='norm', scale=scale)
    weights = tf.constant(np.random.RandomState(1).randn(*x.shape).astype(x.dtype))
    gradients = tf.gradients(y * weights, [inputs] + tf.trainable_variables())
    session.run(tf.global_variables_initializer())
    # Averages that are none of the batch's, and a scale and offset that are not 1 and 0.
    for number, variable in enumerate(tf.global_variables()):
      variable.load(np.linspace(0.5, 1.5 + number, 3, dtype=np.float32), session)
    feeds = {switch: fed} if is_training == 'fed' else {}
    values = session.run([y] + gradients, feeds)
    if fed is not False:  # What validation would do to them nobody runs.
      session.run(tf.get_collection(tf.GraphKeys.UPDATE_OPS), feeds)
    return values, session.run(
        [variable for variable in tf.global_variables() if 'moving' in variable.name])


X = (3 + 2 * np.random.RandomState(0).randn(4, 5, 2, 3)).astype(np.float32)


@pytest.mark.nightly(but=['False-False-None', 'True-True-None'])
@pytest.mark.parametrize('is_training, fed', [(True, None), (False, None), ('fed', True),
                                              ('fed', False)])
@pytest.mark.parametrize('scale', [True, False])
def test_kernel_and_sums_are_one_layer(is_training, fed, scale):
  left, left_averages = run_layer(X, is_training, joined=False, fed=fed, scale=scale)
  right, right_averages = run_layer(X, is_training, joined=True, fed=fed, scale=scale)
  assert len(left) == len(right) == 3 + scale
  for value, expected in zip(left + left_averages, right + right_averages):
    np.testing.assert_allclose(value, expected, atol=3e-5)


@pytest.mark.parametrize('joined, dtype', [(False, 'f4'), (True, 'f4'), (False, 'f8')])
def test_a_layer_is_what_numpy_says(joined, dtype):
  (y, *_), (mean, variance) = run_layer(X.astype(dtype), True, joined=joined)
  rows = X.reshape(-1, 3)
  offset, scale = np.linspace(0.5, 1.5, 3), np.linspace(0.5, 2.5, 3)
  np.testing.assert_allclose(y, (X - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-5) * scale + offset,
                             atol=1e-4)
  np.testing.assert_allclose(mean, 0.9 * np.linspace(0.5, 3.5, 3) + 0.1 * rows.mean(0), atol=1e-5)
  np.testing.assert_allclose(variance, 0.9 * np.linspace(0.5, 4.5, 3) + 0.1 * rows.var(0, ddof=1),
                             atol=1e-5)


def test_channels_first_is_the_same_layer():
  def run(x, data_format):
    with tf.Graph().as_default(), tf.Session() as session, joining(
        None, num_towers=1, joins_norms=True):
      y = batch_norm(tf.constant(x), True, name='norm', data_format=data_format)
      session.run(tf.global_variables_initializer())
      return session.run(y)

  first = run(X.transpose(0, 3, 1, 2), 'NCHW')
  np.testing.assert_allclose(first.transpose(0, 2, 3, 1), run(X, 'NHWC'), atol=1e-5)


@pytest.mark.parametrize('is_training, most, most_gradients', [(True, 14, 7), ('fed', 21, 7)])
def test_the_kernel_is_few_ops(is_training, most, most_gradients):
  with tf.Graph().as_default() as graph, tf.name_scope('tower_0'):
    x = tf.zeros(X.shape)
    is_training = tf.placeholder(tf.bool, []) if is_training == 'fed' else is_training
    batch_norm(x, is_training, name='norm')
    before = len(graph.get_operations())
    with tf.variable_scope('', reuse=True):
      y = batch_norm(x, is_training, name='norm')
    assert len(graph.get_operations()) - before <= most
    before = len(graph.get_operations())
    with gradients_of_training():
      tf.gradients(y, [x, *tf.trainable_variables()])
    assert len(graph.get_operations()) - before <= most_gradients
    batch_norm(x, is_training, name='other')
    # `load_values` starts those that share one in as many runs.
    assert len({variable.initial_value.op.name for variable in tf.global_variables()}) == 8


@pytest.mark.nightly(but=['images-False-True-select', 'images-True-True-switch'])
@pytest.mark.parametrize('compiled', [False, True], ids=['switch', 'select'])
@pytest.mark.parametrize('is_training', [True, False])
@pytest.mark.parametrize('in_loop', [False, True])
@pytest.mark.parametrize('examples', [X, X[:, 0, 0]], ids=['images', 'rows'])
def test_a_switched_layer_has_the_bits_and_derivatives_of_the_one_it_takes(
    examples, in_loop, is_training, compiled, monkeypatch):
  monkeypatch.setattr(layer, '_is_compiled', lambda x: compiled)

  def run(switch, context):
    with tf.Graph().as_default(), tf.Session() as session, context:
      x = tf.constant(examples)
      if in_loop:
        with tf.variable_scope('', reuse=tf.AUTO_REUSE):
          y = tf.while_loop(lambda turn, _: turn < 2, lambda turn, y: (
              turn + 1, batch_norm(y, switch(), name='norm')), [0, x])[1]
      else:
        y = batch_norm(x, switch(), name='norm')
      values = [y, *tf.gradients(y ** 3, [x, *tf.trainable_variables()])]
      if is_training and not in_loop:
        values += tf.get_collection(BATCH_MOMENTS)
      if compiled and not in_loop:
        # On a GPU XLA would compile a kernel's gradient without the kernel, which goes wrong.
        assert not any(is_choice(op) for op in tf.get_default_graph().get_operations())
      second = [] if in_loop else tf.gradients(values[1] ** 2, [x, tf.trainable_variables()[-1]])
      session.run(tf.global_variables_initializer())
      return session.run([values, second])

  expected = run(lambda: is_training, contextlib.nullcontext())
  for context in [contextlib.nullcontext] + [gradients_of_training] * (is_training and not in_loop):
    values, second = run(lambda: tf.placeholder_with_default(is_training, []), context())
    for value, other in zip(values, expected[0]):
      np.testing.assert_array_equal(value, other)
    for value, other in zip(second, expected[1]):  # Their terms have another order.
      np.testing.assert_allclose(value, other, rtol=1e-5)
