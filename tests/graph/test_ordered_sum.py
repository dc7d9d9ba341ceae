"""Sums: the towers' shares are added in the towers' order, whatever else holds their buffers."""

import numpy as np
import pytest

from tests.harness import small
from towers.graph.ordered_sum import add_all
from towers.placement.devices import build_devices, build_session_config
from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import batch_norm

# From left to right they are 0; beginning with the last one, 1.
TERMS = (1.0, 1e8, -1e8)


def test_terms_that_somebody_holds_are_added_in_their_order():
  config = build_session_config(build_devices(1, 'cpu'))
  with tf.Graph().as_default(), tf.Session(config=config) as session:
    # A variable holds the buffer of its value, so that only the last term's could be reused.
    terms = [tf.Variable(value, use_resource=True) for value in TERMS[:2]]
    feed = tf.placeholder(tf.float32, [])
    terms = [variable.read_value() for variable in terms] + [tf.add(feed, 0.0)]
    total, as_is = add_all(terms), tf.add_n(terms)
    session.run(tf.global_variables_initializer())
    assert session.run(total, {feed: TERMS[2]}) == 0.0
    # Should this fail, TensorFlow has fixed its sums, and this module can go.
    assert session.run(as_is, {feed: TERMS[2]}) == 1.0


def test_one_term_is_itself_and_slices_are_made_dense():
  with tf.Graph().as_default(), tf.Session() as session:
    slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([2, 2]), tf.constant([3, 1]))
    assert add_all([slices]) is slices
    np.testing.assert_array_equal(session.run(add_all([slices, tf.ones([3, 1]), slices])),
                                  [[1], [1], [7]])


def many_sums(batch, is_training):
  """A tensor with three readers, for a gradient of three terms, and a forward sum of three."""
  features, labels = batch
  x = batch_norm(small.dense(features, 6, 'hidden'), is_training, name='norm')
  x = tf.add_n([tf.tanh(x), tf.sigmoid(x), x], name='model_sum')
  return small.classify(x, labels)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize('build, settings', [
    ('clone', dict(mode='next', accumulate=2, weight_decay=0.1)),
    ('reuse', dict(batch_norm='sync')),
    ('reuse', dict(mode='shard', num_towers=4, validation_tower=True, clip_norm=1.0))], ids=str)
def test_every_sum_of_a_program_keeps_its_order(build, settings):
  with small.Run(model=many_sums, **dict(dict(num_towers=3), **settings), tower_build=build) as run:
    sums = [op for op in run.graph.get_operations() if op.type == 'AddN' and len(op.inputs) > 2]
  free = [op.name for op in sums if '_forward_input' not in op.node_def.attr]
  assert not free
  for part in ['average/'] + [f'tower_{tower}/' for tower in range(3)]:
    assert any(op.name.startswith(part) for op in sums), part
  assert sum('model_sum' in op.name for op in sums) >= 3
  assert sum('gradients' in op.name for op in sums) >= 3
