"""Vectors: what is small travels together, and no bit of it is another than if each had travelled alone."""

import numpy as np
import pytest

from tensorflow_v1 import tf
from tests.towers import small
from tests.towers.small import Run
from tests.towers.test_clone import rich_model
from towers.vectors import group_vectors, part


def outcome(**settings):
  with Run(model=rich_model, batch_norm='first', train=small.random_examples(16), validation=small.random_examples(8),
           **settings) as run:
    losses = [run.steps.train() for _ in range(3)]
    with run.graph.as_default():
      values = run.session.run(tf.global_variables())
    sums = [op for op in run.graph.get_operations() if op.type == 'AddN' and op.name.startswith('average/')]
    return losses, values, len(sums)


@pytest.mark.parametrize('build', ['reuse', 'clone'])
@pytest.mark.parametrize('placement', ['host', 'first', 'balanced'])
@pytest.mark.parametrize('num_towers', [1, 2, 3])
def test_no_bit_changes(num_towers, placement, build, monkeypatch):
  settings = dict(num_towers=num_towers, placement=placement, tower_build=build,
                  mode=small.MODES[num_towers % 3], depth=num_towers % 3)
  together = outcome(**settings)
  monkeypatch.setattr('towers.vectors._LARGEST_BYTES', -1)
  apart = outcome(**settings)
  assert together[0] == apart[0]
  for left, right in zip(together[1], apart[1]):
    np.testing.assert_array_equal(left, right)
  if num_towers == 1:
    assert together[2] == apart[2]
  elif placement != 'balanced':
    # Two biases, offset and scale: four sums less, and one more.
    assert together[2] == apart[2] - 3


def test_what_is_large_sparse_missing_or_of_another_kind_travels_alone():
  with tf.Graph().as_default():
    vectors = [tf.zeros([3]), None, tf.zeros([16384]), tf.zeros([16385]), tf.zeros([3], tf.float64), tf.zeros([2, 2]),
               tf.IndexedSlices(tf.zeros([3]), tf.zeros([3], tf.int32)), tf.zeros([]), tf.zeros([4]), tf.zeros([5]),
               tf.placeholder(tf.float32, [None])]
    devices = ['/device:CPU:0'] * len(vectors)
    assert group_vectors(vectors, devices) == [[0, 2, 8, 9]]
    devices[8:10] = ['/device:CPU:1'] * 2
    assert group_vectors(vectors, devices) == [[0, 2], [8, 9]]
    devices[2] = '/device:CPU:2'
    assert group_vectors(vectors, devices) == [[8, 9]]


def test_what_was_joined_is_taken_apart():
  vectors = [np.arange(3.0), np.arange(5.0) + 10, np.zeros([0]), np.arange(1.0) - 7]
  with tf.Graph().as_default(), tf.Session() as session:
    given = [tf.constant(vector) for vector in vectors]
    for vector, found in zip(vectors, session.run(part(tf.concat(given, 0), given))):
      np.testing.assert_array_equal(vector, found)
