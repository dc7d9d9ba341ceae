"""A batch keeps the structure of its examples up to the tower: tuples of one, dicts, strings."""

import itertools
import os
import tempfile

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.data.test_records import parse, write
from tests.harness import small
from towers import data

BATCH, NUM_VALIDATION = 8, 11
SIZES = (13, 16, 17)
# Of files; it is removed with this process.
FOLDER = tempfile.TemporaryDirectory()


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
  folder = tempfile.mkdtemp(dir=FOLDER.name)
  paths = [write(os.path.join(folder, str(file)), part)
           for file, part in enumerate(np.split(numbers, [3]))]
  return data.from_tfrecords(paths, parse, name=name)


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
  with tf.Graph().as_default():
    devices = towers.build_devices(num_towers, 'cpu')
    feeds = []
    for split, name in zip(numbers, ('train', 'validation')):
      plan = towers.build_plan(num_examples=len(split), batch_size=BATCH, num_towers=num_towers)
      inputs = towers.build_inputs(kind(split, name), mode=mode, plan=plan,
                                   shuffle=shuffle and name == 'train')
      feeds.append(towers.build_feed(inputs, devices=devices.names, staging_depth=depth))
    is_validating = tf.placeholder(tf.bool, [])
    batches = towers.build_switched_batches(*feeds, is_validating=is_validating)
    for batch in batches:
      tf.nest.assert_same_structure(batch.tensors, STRUCTURES[kind.__name__])
    fetches = [(batch.tensors, tf.convert_to_tensor(batch.num_examples)) for batch in batches]
    with tf.Session(config=towers.build_session_config(devices)) as session:
      first_step = 1
      feeds[0].start(session, step=first_step)
      feeds[1].start(session)
      steps = [first_step, 0]
      taken = []
      for split in (0, 1, 1, 0, 0, 1, 1, 0, 0, 0):
        results, _ = session.run([fetches, feeds[split].put_ops], {is_validating: split == 1})
        ids = sorted(sum([take_ids(*result) for result in results], []))
        plan = feeds[split].inputs.plan
        _, step = plan.position(steps[split])
        if not (shuffle and split == 0):
          assert ids == numbers[split][step * BATCH:(step + 1) * BATCH].tolist()
        assert len(ids) == plan.size_at(steps[split])
        taken += [] if split else [(steps[split], ids)]
        steps[split] += 1
  # The epoch behind the one that the run has entered in the middle of.
  plan = feeds[0].inputs.plan
  epoch = [id for step, ids in taken if plan.position(step)[0] == 1 for id in ids]
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
  with tf.Graph().as_default():
    devices = towers.build_devices(2, 'cpu')
    feeds = []
    for num_examples, batch_size, name in ((12, 6, 'train'), (8, 4, 'validation')):
      plan = towers.build_plan(num_examples=num_examples, batch_size=batch_size, num_towers=2)
      inputs = towers.build_inputs(one_array(np.arange(num_examples), name), plan=plan)
      feeds.append(towers.build_feed(inputs, devices=devices.names, staging_depth=depth))
    is_validating = tf.placeholder(tf.bool, [])
    batches = towers.build_switched_batches(*feeds, is_validating=is_validating)
    counts = [tf.convert_to_tensor(batch.num_examples) for batch in batches]
    with tf.Session(config=towers.build_session_config(devices)) as session:
      for feed, expected in zip(feeds, ([3, 3], [2, 2])):
        feed.start(session)
        found, tensors, _ = session.run(
            [counts, [batch.tensors for batch in batches], feed.put_ops],
            {is_validating: feed is feeds[1]})
        assert found == expected == [len(rows) for rows, in tensors]
