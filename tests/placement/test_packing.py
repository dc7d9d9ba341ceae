"""Packing: small tensors of like shapes are sent as one, and no bit of them changes."""

import itertools

import numpy as np
import pytest

from tests.harness import small
from tests.tower.test_clone import rich_model
from towers.placement.packing import pack, plan_alike, plan_packs, unpack
from towers.tensorflow_v1 import tf


def outcome(**settings):
  """Returns all losses and variables of three steps, and the number of sums of gradients."""
  with small.Run(batch_norm='first', model=rich_model, train=small.random_examples(16),
                 **settings) as run:
    losses = [run.train() for _ in range(3)]
    values = [value.tobytes() for value in run.variables().values()]
    return [losses, values], sum(op.type == 'AddN' and op.name.startswith('average/')
                                 for op in run.graph.get_operations())


AXES = ['reuse', 'clone'], [1, 2, 3], ['host', 'first', 'balanced']
FAST = [('clone', 3, 'host')]


@pytest.mark.parametrize('build, num_towers, placement', small.nightly_but(
    FAST, [point for point in itertools.product(*AXES)
           if point in small.diagonal(*AXES) or point[1] == 3]))
def test_no_bit_changes(num_towers, placement, build, monkeypatch):
  settings = dict(num_towers=num_towers, placement=placement, tower_build=build,
                  mode=small.MODES[num_towers % 3], depth=num_towers % 3)
  told, num_sums = outcome(**settings)
  monkeypatch.setattr('towers.placement.packing._LARGEST_BYTES', -1)
  told_apart, num_sums_apart = outcome(**settings)
  assert told == told_apart
  # Two biases, offset and scale: one sum instead of four.
  assert num_sums_apart - num_sums == (0 if num_towers == 1 else 3) or placement == 'balanced'


def test_large_sparse_missing_and_other_tensors_are_not_packed():
  with tf.Graph().as_default():
    vectors = [tf.zeros([3]), None, tf.zeros([20480]), tf.zeros([20481]),
               tf.zeros([3], tf.float64), tf.zeros([2, 2]),
               tf.IndexedSlices(tf.zeros([3]), tf.zeros([3], tf.int32)), tf.zeros([]),
               tf.zeros([4]), tf.zeros([5]), tf.placeholder(tf.float32, [None])]
    devices = ['/device:CPU:0'] * len(vectors)
    assert plan_alike(vectors, devices) == [[0, 2, 8, 9]]
    devices[8:10] = ['/device:CPU:1'] * 2
    assert plan_alike(vectors, devices) == [[0, 2], [8, 9]]
    devices[2] = '/device:CPU:2'
    assert plan_alike(vectors, devices) == [[8, 9]]


def test_tensors_that_differ_in_their_longest_axis_alone_are_packed():
  shapes = [(3, 3, 8, 1), (3, 3, 40, 1), (5, 5, 8, 1), (8, 3), (3, 8), (9, 3), (3, 3, 9, 2),
            (1, 1, 8, 8), (1, 1, 8, 4), (1, 1, 16, 8), (2, 2), (2, 2)]
  with tf.Graph().as_default():
    groups = plan_alike([tf.zeros(shape) for shape in shapes], [''] * len(shapes))
  assert groups == [[0, 1], [3, 5], [7, 9], [10, 11]]


@pytest.mark.parametrize('shapes', [
    [(3,), (5,), (0,), (1,)], [(2, 3, 7, 1), (2, 3, 4, 1), (2, 3, 70, 1)], [(4, 4), (4, 4)],
    [(1, 6, 2), (1, 3, 2)], [(2, 3), (), (5,), (0, 4)], [(7, 2)]], ids=str)
def test_packed_tensors_are_unpacked_again(shapes):
  random = np.random.RandomState(0)
  tensors = [random.standard_normal(shape) for shape in shapes]
  with tf.Graph().as_default(), tf.Session() as session:
    given = [tf.constant(tensor) for tensor in tensors]
    packed = pack(given)
    assert packed.shape.num_elements() == sum(tensor.size for tensor in tensors)
    found_all = session.run(unpack(packed, [tensor.shape for tensor in given]))
    for tensor, found in zip(tensors, found_all):
      assert np.shape(tensor) == found.shape
      np.testing.assert_array_equal(tensor, found)


# Weights and biases of a net in turn, large and small.
LAYERS = [('float32', size) for size in (432, 64, 9216, 128, 4000000, 2000, 8000, 40)]


def test_small_and_large_gradients_are_packed_the_last_first():
  packs = plan_packs(LAYERS, 4000000)
  assert packs == [[7, 6, 5], [4], [3, 2, 1, 0]]
  assert plan_packs(LAYERS, 0) == [[index] for index in reversed(range(8))]
  assert plan_packs(LAYERS, 10 ** 9) == [[7, 6, 5, 4, 3, 2, 1, 0]]


def test_every_gradient_is_packed_once_with_its_dtype_below_the_limit():
  random = np.random.RandomState(0)
  sizes = [(('float16', 'float32', 'float64')[random.randint(3)], int(random.randint(1, 1000)))
           for _ in range(200)]
  packs = plan_packs(sizes, 1500)
  assert sorted(itertools.chain(*packs)) == list(range(200)) and len(packs) < 120
  for one in packs:
    assert len({sizes[index][0] for index in one}) == 1 and one == sorted(one, reverse=True)
    assert sum(sizes[index][1] for index in one) <= 1500
