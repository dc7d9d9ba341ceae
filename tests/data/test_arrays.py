"""Arrays: every example once and in order, of any dtype and layout, and never in the graph."""

import re
from typing import Any, NamedTuple

import numpy as np
import pytest

import towers
from tests.harness.processes import output_of
from tests.harness.taking import take
from towers.base.usage_error import UsageError
from towers.data.arrays import DTYPES, from_arrays
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.tensorflow_v1 import tf

# A file of holes: it takes neither room on disk nor memory, unless someone copies it.
_OVER_2_GB = """
import sys
import numpy as np
import towers
from benchmarks.harness.machine import read_peak_bytes
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.tensorflow_v1 import tf

images = np.memmap(sys.argv[1], np.uint8, mode='w+', shape=(2200, 1 << 20))
images[-1, -1] = 7
images.flush()
examples = towers.from_arrays(np.memmap(sys.argv[1], np.uint8, mode='r', shape=images.shape),
                              np.arange(2200))
plan = build_plan(num_examples=2200, batch_size=2, num_towers=1)
inputs = build_inputs(examples, plan=plan)
[batch] = inputs.next_batches()
with tf.Session() as session:
  session.run(inputs.initializer, inputs.feed_dict(1099))
  last_images, last_labels = session.run(batch.tensors)
print(last_images[-1, -1], *last_labels)
print(read_peak_bytes())
"""


def _build(examples, *, batch_size):
  """Builds one epoch; returns the iterator and the feed that starts it."""
  fed = [tf.placeholder(array.dtype, array.shape) for array in examples.arrays]
  batches = tf.data.Dataset.range(examples.num_examples).batch(batch_size)
  batches = batches.map(lambda indices: examples.parse_batch(indices, *fed))
  return tf.data.make_initializable_iterator(batches), dict(zip(fed, examples.arrays))


def _run_epoch(examples, **kwargs):
  """Returns what an epoch yields, batches joined: one array for each of the examples' arrays."""
  with tf.Graph().as_default(), tf.Session() as session:
    iterator, feed = _build(examples, **kwargs)
    batch = iterator.get_next()
    session.run(iterator.initializer, feed)
    batches = []
    try:
      while True:
        batches.append(session.run(batch))
    except tf.errors.OutOfRangeError:
      return tuple(np.concatenate(arrays) for arrays in zip(*batches))


def test_strings_are_what_they_were_to_the_byte():
  strings = [['', 'a'], ['\xe4\u20ac', 'b' * 300], ['c', 'd']]
  of_bytes = np.empty([3], object)
  of_bytes[:] = [b'\0a\0', b'\xff\xfe', b'']
  got = _run_epoch(from_arrays(np.array(strings), of_bytes, np.array([b'x', b'yz', b''])),
                   batch_size=2)
  assert got[0].tolist() == [[text.encode() for text in row] for row in strings]
  assert got[1].tolist() == of_bytes.tolist() and got[2].tolist() == [b'x', b'yz', b'']


def test_a_dict_or_tuple_of_arrays_gives_batches_of_its_structure():
  class Pair(NamedTuple):
    left: Any
    right: Any

  numbers = np.arange(7)
  names = np.array([f'x{number}' for number in numbers])
  structure = {'b': numbers, 'a': Pair(numbers * 2, {'deep': (names, list(range(10, 17)))})}
  examples = from_arrays(structure)
  with tf.Graph().as_default(), tf.Session() as session:
    iterator, feed = _build(examples, batch_size=7)
    batch = iterator.get_next()
    session.run(iterator.initializer, feed)
    got = session.run(batch)
  assert sorted(got) == ['a', 'b'] and isinstance(got['a'], Pair)
  assert got['b'].tolist() == numbers.tolist() and got['a'].left.tolist() == (2 * numbers).tolist()
  assert got['a'].right['deep'][0].tolist() == [name.encode() for name in names]
  assert got['a'].right['deep'][1].tolist() == list(range(10, 17))
  # A list is an array, and one array stays a tuple of one tensor.
  [[row]] = [_run_epoch(from_arrays([5, 6]), batch_size=2)]
  assert row.tolist() == [5, 6]


def test_every_dtype_survives():
  arrays = [np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype) for dtype in DTYPES]
  for got, array in zip(_run_epoch(from_arrays(*arrays), batch_size=2), arrays):
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


def test_any_layout_in_memory(tmp_path):
  base = np.arange(60, dtype=np.float64).reshape(10, 6)
  on_disk = np.memmap(str(tmp_path / 'rows'), dtype=np.float64, mode='w+', shape=base.shape)
  on_disk[:] = base
  on_disk.flush()
  arrays = [base.astype('>f8'), base.astype('>i2'), np.asfortranarray(base), base[::-1],
            base[:, ::2], base.T[:, ::-1].T,
            np.memmap(str(tmp_path / 'rows'), dtype=np.float64, mode='r', shape=base.shape)]
  examples = from_arrays(*arrays)
  assert all(array.dtype.isnative and array.flags.c_contiguous for array in examples.arrays)
  for got, array in zip(_run_epoch(examples, batch_size=4), arrays):
    np.testing.assert_array_equal(got, array)
    assert got.dtype == array.dtype.newbyteorder('=')


def test_arrays_that_can_be_fed_as_they_are_are_not_copied(tmp_path):
  for array in (np.zeros([4, 3], np.uint8),
                np.memmap(str(tmp_path / 'rows'), np.float32, mode='w+', shape=(4, 3))):
    assert np.shares_memory(from_arrays(array).arrays[0], array)


def test_the_graph_holds_no_example_and_is_as_large_for_any_data_and_pipelines():
  def count_characters(num_examples, num_pipelines):
    with tf.Graph().as_default() as graph:
      for _ in range(num_pipelines):
        _build(from_arrays(np.full([num_examples, 50], 7, np.uint8), np.arange(num_examples)),
               batch_size=8)
      # TensorFlow numbers functions on and on, in whatever digits that takes.
      return len(re.sub(r'_\d+', '', str(graph.as_graph_def())))

  # Both numbers take as many digits wherever the graph states a shape.
  assert count_characters(1000, 1) == count_characters(9000, 1)
  assert count_characters(1000, 4) == count_characters(9000, 4)
  assert count_characters(9000, 4) < 50000


@pytest.mark.nightly
def test_arrays_over_2_gb_are_fed_without_a_copy(tmp_path):
  # In a process of its own, since TensorFlow 1.14 aborts where such an array becomes part of a
  # GraphDef.
  values, peak_bytes = output_of('-c', _OVER_2_GB, str(tmp_path / 'images')).splitlines()
  assert values == '7 2198 2199'
  assert int(peak_bytes) < 1500 << 20


def test_gathering_stays_on_the_cpu_in_a_towers_device_scope():
  examples = from_arrays(np.zeros([4, 2]), np.arange(4))
  with tf.Graph().as_default(), tf.device('/device:GPU:3'):
    fed = [tf.placeholder(array.dtype, array.shape) for array in examples.arrays]
    for tensor in examples.parse_batch(tf.placeholder(tf.int64, [2]), *fed):
      assert tensor.op.device.endswith('/device:CPU:0')


@pytest.mark.parametrize('arrays, words', [
    ((), ['no arrays']),
    ((np.zeros([3, 2]), np.zeros([3]), np.zeros([4])), ['(3, 2)', '3', 'array 2', '(4,)', '4']),
    ((np.zeros([0, 28, 28]), np.zeros([0])), ['(0, 28, 28)', '0 examples']),
    ((np.zeros([3]), np.float32(1)), ['array 1', 'float32', '0 dimensions']),
    ((np.array([None, 'a']),), ['array 0', 'object', 'float32']),
    (({'x': np.zeros([3]), 'y': (np.zeros([3]), np.zeros([4, 2]))},),
     ['array x', '(3,)', '3', 'array y/1', '(4, 2)', '4']),
    (({'x': {'y': np.array([None, 'a'])}},), ['array x/y', 'object']),
    (({'x': 1},), ['array x', '0 dimensions']), (({},), ['no arrays']), (((),), ['no arrays']),
    (({1: np.zeros([3])},), ['1', 'string']),
    ((np.zeros([2], 'datetime64[s]'),), ['datetime64']),
    ((np.ma.masked_equal([1, 2], 2),), ['array 0', 'masked', 'filled']),
    (([np.ma.masked_equal([1, 2], 2), np.zeros([2])],), ['array 0', 'masked', 'filled']),
    ((np.zeros([2], [('a', 'i4')]),), ['array 0'])])
def test_what_cannot_be_fed_is_refused(arrays, words):
  with pytest.raises(UsageError) as error:
    from_arrays(*arrays, name='my_split')
  for word in ['my_split'] + words:
    assert word in str(error.value)


def test_a_name_that_cannot_be_a_scope_is_refused():
  for name in ('my split', '', 'a/b', 'a\n'):
    with pytest.raises(UsageError, match='letters, digits and underscores'):
      from_arrays(np.zeros([2]), name=name)


def _pad(rows, pad_to=4, values=None):
  """Returns unequal rows as batches give them, all at once and not shuffled."""
  examples = towers.padded(from_arrays({'rows': rows}), pad_to, values)
  [[(tensors, _)]] = take(examples, batch_size=len(rows))
  return tensors['rows']


def _of_objects(*rows):
  array = np.empty(len(rows), object)
  array[:] = rows
  return array


@pytest.mark.nightly(but='rows4-float16-padded4')
@pytest.mark.parametrize('rows, dtype, padded', [
    ([[1, 2], [], [3]], np.int64, [[1, 2, 0, 0], [0, 0, 0, 0], [3, 0, 0, 0]]),
    (_of_objects([1, 2], (3,)), np.int64, [[1, 2, 0, 0], [3, 0, 0, 0]]),
    ([np.array([7], '>u2'), np.array([8, 9], '>u2')], np.uint16, [[7, 0, 0, 0], [8, 9, 0, 0]]),
    ([['a', 'bcd'], ['e\0f']], object, [[b'a', b'bcd', b'', b''], [b'e\0f', b'', b'', b'']]),
    ([np.ones([1, 2], np.float16), np.ones([2, 2], np.float16), np.ones([0, 2], np.float16)],
     np.float16, [[[1, 1], [0, 0]], [[1, 1], [1, 1]], [[0, 0], [0, 0]]])])
def test_rows_of_unequal_length_are_padded(rows, dtype, padded):
  got = _pad(rows, pad_to=len(padded[0]))
  assert got.dtype == dtype
  np.testing.assert_array_equal(got, padded)


def test_rows_of_equal_length_are_an_array_in_a_list_or_an_array_of_objects():
  for rows in ([[1, 2], [3, 4]], _of_objects([1, 2], [3, 4])):
    examples = from_arrays(rows)
    assert examples.is_gathered
    np.testing.assert_array_equal(examples.arrays[0], [[1, 2], [3, 4]])


def test_the_bytes_of_unequal_rows_fill_buckets():
  examples = from_arrays([[1, 2], [], [3]], np.arange(3), [np.ones([1, 2])] * 2 + [np.ones([3, 2])])
  assert list(examples.num_bytes) == [16 + 16, 16, 8 + 48]
  assert list(towers.padded(examples, bucket_by='bytes').buckets.lengths) == [32, 16, 56]


def test_unequal_rows_without_padding_are_refused_where_a_program_reads_them():
  examples = from_arrays(np.arange(3), [[1, 2], [3, 4, 5], [6, 7]], name='train')
  with tf.Graph().as_default(), pytest.raises(UsageError) as refusal:
    plan = build_plan(num_examples=3, batch_size=3, num_towers=1)
    build_inputs(examples, plan=plan).next_batches()
  assert str(refusal.value) == (
      'train: the rows of array 1 have 2 to 3 values, and a batch needs one shape: give the split '
      'to towers.padded, as towers.padded(towers.from_arrays(rows)).')


@pytest.mark.parametrize('rows, words', [
    ([np.ones([1, 2]), np.ones([2, 3])], ['rows 0 and 1 of array 0', '(2,)', '(3,)']),
    ([[[1], [2, 3]], [[4]]], ['array 0']), ([[[1], [2, 3]], [[4], [5]]], ['array 0']),
    ([[1, 2], 3], ['array 0']), ([[1, 2], None, [3]], ['array 0'])])
def test_rows_that_differ_in_more_than_their_length_are_refused(rows, words):
  with pytest.raises(UsageError) as refusal:
    from_arrays(rows)
  assert all(word in str(refusal.value) for word in words)
