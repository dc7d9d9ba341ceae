"""A tower's device has the last word over those that a model names by `tf.device`."""

import contextlib

import pytest

import towers
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.input.batch import Batch
from towers.placement.variables import VariableStore
from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import batch_norm
from towers.tower.towers import build_towers


def placed(*devices):
  """Returns a model whose layers name these devices, or with None no device."""
  def on(index):
    device = devices[index % len(devices)]
    return contextlib.nullcontext() if device is None else tf.device(device)

  def model(batch, is_training):
    features, labels = batch
    with on(0):
      table = tf.get_variable('table', [small.NUM_CLASSES, small.NUM_FEATURES])
      x = features + tf.gather(table, tf.zeros_like(labels))
      x = tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x + table[0])
      x = batch_norm(small.dense(x, 4, 'hidden'), is_training, name='norm')
    with on(1):
      x = x / (1.0 + towers.all_sum(tf.reduce_sum(tf.square(x), 0)))
      _, x = tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, tf.tanh(x)), (0, x),
                           shape_invariants=(tf.TensorShape([]), x.shape))
      cell = tf.nn.rnn_cell.BasicRNNCell(4, name='cell')
    if devices[0] is not None:
      cell = tf.nn.rnn_cell.DeviceWrapper(cell, devices[0])
    x, _ = cell(x, x)
    with on(1):
      logits = small.dense(x, small.NUM_CLASSES, 'logits')
      return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

  return model


def read(model, **settings):
  """Returns losses and weights of some steps, and the device of each op."""
  with small.Run(model=model, **settings) as run:
    losses = [run.train() for _ in range(2)]
    return losses, run.weights(), {op.name: op.device for op in run.graph.get_operations()}


@pytest.mark.nightly(but=['/cpu:0-3-host-reuse', '/gpu:0-2-replicated-clone'])
@pytest.mark.parametrize('device, num_towers, placement, build', [
    ('/cpu:0', 3, 'host', 'reuse'), ('/gpu:0', 2, 'replicated', 'clone'),
    ('/device:GPU:1', 3, 'balanced', 'reuse'), ('/job:localhost/CPU:1', 3, 'first', 'clone'),
    ('/gpu:0', 1, 'host', 'reuse'), (lambda op: '/gpu:1', 2, 'host', 'reuse')])
def test_every_op_stands_where_it_would_without_a_name(device, num_towers, placement, build):
  settings = dict(num_towers=num_towers, placement=placement, tower_build=build)
  found, expected = read(placed(device), **settings), read(placed(None), **settings)
  assert found[0] == expected[0]
  small.assert_same_weights(found[1], expected[1], tolerance=0)
  assert found[2] == expected[2]
  assert found[2][f'tower_{num_towers - 1}/hidden/MatMul'] == f'/device:CPU:{num_towers - 1}'


@pytest.mark.parametrize('device, expected', [
    ('/gpu:0', '/device:GPU:{}'), ('/cpu:0', '/device:CPU:0'), ('/cpu:1', '/device:CPU:0')])
def test_beside_gpus_a_cpu_is_the_host(device, expected):
  gpus = ['/device:GPU:0', '/device:GPU:1']

  def model(batch, is_training):
    with tf.device(device):
      return tf.square(tf.multiply(batch[0][:, 0], tf.get_variable('w', []), name='placed'))

  with tf.Graph().as_default() as graph:
    batches = [Batch((tf.ones([2, small.NUM_FEATURES]),), 2)] * 2
    build_towers(model, batches, devices=gpus,
                 store=VariableStore(devices=gpus))
    for tower in range(2):
      op = graph.get_operation_by_name(f'tower_{tower}/placed')
      assert op.device == expected.format(tower)


def test_a_model_split_by_hand_is_one_tower():
  with pytest.raises(UsageError, match=r'names 2 devices.*CPU:0 for .*made in .*CPU:1 for '
                                       r'.*2 towers has one.*num_towers=1'):
    small.Run(model=placed('/cpu:0', '/cpu:1'))
  with tf.Graph().as_default() as graph:
    small_batch = Batch((tf.ones([2, small.NUM_FEATURES]), tf.zeros([2], tf.int32)), 2)
    devices = ['/device:GPU:0']
    build_towers(placed('/gpu:0', '/gpu:1'), [small_batch], devices=devices,
                 store=VariableStore(devices=devices))
    assert [graph.get_operation_by_name(f'tower_0/{name}/MatMul').device
            for name in ('hidden', 'logits')] == ['/device:GPU:0', '/device:GPU:1']
