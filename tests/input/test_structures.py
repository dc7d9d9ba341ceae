"""A batch keeps the structure of its examples up to the tower: tuples of one, dicts, strings."""

import itertools

import numpy as np
import pytest

import towers
from tests.data.test_records import parse, write_two
from tests.harness import small
from tests.harness.taking import Feeds
from towers import data
from towers.tensorflow_v1 import tf

BATCH, NUM_VALIDATION = 8, 11
SIZES = (13, 16, 17)


def rows(numbers, width=2, dtype=np.float32):
  return np.repeat(np.asarray(numbers, dtype)[:, None], width, 1)


def one_array(numbers, name):
  return data.from_arrays(numbers, name=name)


def two_arrays(numbers, name):
  return data.from_arrays(rows(numbers), numbers, name=name)


def three_arrays(numbers, name):
  return data.from_arrays(rows(numbers), numbers.astype(np.int32), rows(numbers, 3, np.int16),
                          name=name)


def dict_of_arrays(numbers, name):
  return data.from_arrays({'id': numbers, 'more': {'rows': rows(numbers),
                                                   'name': np.array([b'%d' % i for i in numbers])}},
                          name=name)


def own_dataset(numbers, name):
  """Of a size that only a pass tells, and of shapes that only an example tells."""
  def make():
    dataset = tf.data.Dataset.from_tensor_slices(numbers).filter(lambda _: tf.constant(True))
    return dataset.map(lambda number: {
        'id': number, 'more': (tf.as_string(number), tf.fill(tf.where(number < 0, [3], [2]),
                                                             number))})

  return data.from_dataset(make, name=name)


def own_records(numbers, name):
  """In two files of unequal length."""
  return data.from_tfrecords(write_two(numbers), parse, name=name)


def gathered_dict(numbers, name):
  """Rows of arrays, in another structure than that of the arrays."""
  examples = data.from_arrays(rows(numbers), numbers, name=name)
  return examples._replace(parse_batch=lambda indices, floats, ints: {
      'one': (tf.gather(floats, indices),), 'two': {'deep': tf.gather(ints, indices)}})


def nested_dict(numbers, name):
  return by_hand(numbers, name, lambda number: {
      'id': number, 'name': tf.as_string(number),
      'pair': (tf.fill([2], number), {'deep': tf.as_string(tf.fill([3], number))})})


def one_string(numbers, name):
  return by_hand(numbers, name, tf.as_string)


def string_in_a_tuple(numbers, name):
  return by_hand(numbers, name, lambda number: (tf.as_string(number),))


def by_hand(numbers, name, parse_example):
  def elements():
    return tf.data.Dataset.range(len(numbers)).map(lambda row: row + numbers[0])

  return towers.Examples(num_examples=len(numbers), elements=elements, parse_example=parse_example,
                         name=name)


KINDS = (one_array, two_arrays, three_arrays, dict_of_arrays, own_dataset,
         own_records, gathered_dict, nested_dict, one_string, string_in_a_tuple)
# What batches look like; a tuple of one tensor is not the tensor.
STRUCTURES = {
    'one_array': (0,), 'two_arrays': (0, 0), 'three_arrays': (0, 0, 0),
    'dict_of_arrays': {'id': 0, 'more': {'rows': 0, 'name': 0}},
    'own_dataset': {'id': 0, 'more': (0, 0)}, 'own_records': {'id': 0, 'more': (0, 0)},
    'gathered_dict': {'one': (0,), 'two': {'deep': 0}},
    'nested_dict': {'id': 0, 'name': 0, 'pair': (0, {'deep': 0})},
    'one_string': 0, 'string_in_a_tuple': (0,)}


def take_ids(batch, count):
  """Returns the ids of a tower's examples, which all values of an example's row tell alike."""
  tensors = [np.asarray(tensor)[:count].astype(np.float64) for tensor in tf.nest.flatten(batch)]
  ids = [float(np.ravel(row)[0]) for row in tensors[0]]
  for tensor in tensors:
    assert len(tensor) == count
    for row, number in zip(tensor, ids):
      assert (row == number).all()
  return ids


def check(kind, mode, num_towers, depth, num_train, shuffle):
  """Takes both splits in turns, from a step in the middle of an epoch on, behind one switch."""
  numbers = (np.arange(num_train), 1000 + np.arange(NUM_VALIDATION))
  feeds = Feeds([kind(split, name) for split, name in zip(numbers, ('train', 'validation'))],
                mode=mode, num_towers=num_towers, depth=depth, shuffle=shuffle)
  for batch in feeds.batches:
    tf.nest.assert_same_structure(batch.tensors, STRUCTURES[kind.__name__])
  steps, taken = [1, 0], []
  with feeds.session:
    for split, step in enumerate(steps):
      feeds.start(split, step)
    for split in (0, 1, 1, 0, 0, 1, 1, 0, 0, 0):
      ids = sorted(sum([take_ids(*result) for result in feeds.take(split)], []))
      plan = feeds.feeds[split].inputs.plan
      _, step = plan.epoch_and_index(steps[split])
      if not (shuffle and split == 0):
        assert ids == numbers[split][step * BATCH:(step + 1) * BATCH].tolist()
      assert len(ids) == plan.size_at(steps[split])
      taken += [] if split else [(steps[split], ids)]
      steps[split] += 1
  # The epoch behind the one that the run has entered in the middle of.
  plan = feeds.feeds[0].inputs.plan
  epoch = [id for step, ids in taken if plan.epoch_and_index(step)[0] == 1 for id in ids]
  assert len(epoch) == num_train and sorted(epoch) == list(range(num_train))


# Each kind in each mode, the other settings in turn.
POINTS = [(kind, mode, (1, 2, 3, 8)[number % 4], small.DEPTHS[number // 2 % 3],
           SIZES[number // 3 % 3], number % 5 < 2)
          for number, (kind, mode) in enumerate(itertools.product(KINDS, small.MODES))]


@pytest.mark.parametrize('kind, mode, num_towers, depth, num_train, shuffle', small.nightly_but(
    POINTS[4:6], POINTS))
def test_a_batch_keeps_its_structure_and_every_example(kind, mode, num_towers, depth, num_train,
                                                       shuffle):
  check(kind, mode, num_towers, depth, num_train, shuffle)


@pytest.mark.parametrize('depth', [0, 1])
def test_splits_of_other_sizes_count_their_own_examples(depth):
  feeds = Feeds([one_array(np.arange(12), 'train'), one_array(np.arange(8), 'validation')],
                num_towers=2, depth=depth, batch_sizes=(6, 4))
  with feeds.session:
    for split, expected in enumerate((3, 2)):
      feeds.start(split)
      assert [(len(rows), count) for (rows,), count in feeds.take(split)] == [
          (expected, expected)] * 2
