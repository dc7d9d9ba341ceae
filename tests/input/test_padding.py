"""Examples of unequal sizes: padded batches, in every mode."""

import numpy as np
import pytest

import towers
from tests.data.pictures import damage
from tests.data.test_records import parse_any_rows, write
from tests.harness import small
from tests.harness.taking import take
from towers.base.usage_error import UsageError
from towers.data.formats.tfrecord import load_index
from towers.tensorflow_v1 import tf

NUM = 17
LENGTHS = [number % 5 for number in range(NUM)]


def rows_of(number):
  return np.full(LENGTHS[number], number, np.float32)


def of_elements(folder):
  return towers.Examples(NUM, lambda: tf.data.Dataset.range(NUM).map(
      lambda number: (number, tf.fill([number % 5], tf.cast(number, tf.float32)))))


def of_arrays(folder):
  return towers.from_arrays(np.arange(NUM), [rows_of(number).tolist() for number in range(NUM)])


def of_data_set(folder):
  return towers.from_dataset(of_elements(folder).elements)


def of_records(folder, policy='fail'):
  path = write(folder / 'file', range(NUM), rows=lambda number: number % 5)
  if policy == 'skip':
    for number in BAD:
      damage(path, int(load_index(path).offsets[number]) + 20)
  return towers.from_tfrecords(path, parse_any_rows, on_bad_record=policy)


BAD = [8, 16]
MAKERS = {'elements': of_elements, 'arrays': of_arrays, 'data set': of_data_set,
          'records': of_records, 'bad records': lambda folder: of_records(folder, 'skip')}


POINTS = [(kind, small.MODES[number % 3], 2 + number % 3, ('batch', 5)[number % 2])
          for number, kind in enumerate(list(MAKERS) * 2)]


@pytest.mark.parametrize('kind, mode, num_towers, pad_to', small.nightly_but(POINTS[4:5], POINTS))
def test_rows_keep_their_values_and_end_with_the_padding(tmp_path, kind, mode, num_towers, pad_to):
  examples = towers.padded(MAKERS[kind](tmp_path), pad_to, values=(None, -1))
  steps = take(examples, mode=mode, num_towers=num_towers, num_steps=3)
  assert str(take(examples, mode=mode, num_towers=num_towers, num_steps=1, first_step=2)) == str(
      steps[2:])
  for step, by_tower in enumerate(steps):
    numbers = [number for number in range(NUM)[8 * step:8 * step + 8]
               if kind != 'bad records' or number not in BAD]
    assert sorted(id for (ids, _), count in by_tower for id in ids[:count]) == numbers
    for (ids, rows), count in by_tower:
      assert len(ids) == len(rows) == max(count, 1)
      assert rows.shape[1] == pad_to or pad_to == 'batch'
      for id, row in zip(ids[:count], rows):
        assert row.tolist() == [id] * LENGTHS[id] + [-1] * (rows.shape[1] - LENGTHS[id])
    if pad_to == 'batch' and mode != 'shard' and numbers:
      # All towers of a step have the size of the longest row of the global batch.
      assert {rows.shape[1] for (_, rows), count in by_tower if count} == {
          max(LENGTHS[number] for number in numbers)}


def test_dicts_are_padded_by_name():
  def elements():
    return tf.data.Dataset.range(8).map(
        lambda number: dict(words=tf.fill([number], 'a'), grid=tf.ones([2, number]), id=number))

  examples = towers.padded(towers.Examples(8, elements), values=dict(words='-', grid=7, id=None))
  [[[batch, _]]] = take(examples, mode='split', num_towers=1, num_steps=1)
  assert batch['words'].shape == (8, 7) and batch['grid'].shape == (8, 2, 7)
  assert list(batch['words'][5]) == [b'a'] * 5 + [b'-'] * 2
  np.testing.assert_array_equal(batch['grid'][5], [[1.] * 5 + [7.] * 2] * 2)


@pytest.mark.parametrize('settings, message', [
    (dict(pad_to='longest'), "pad_to is 'longest': choose 'batch', or a number"),
    (dict(pad_to=0), 'pad_to is 0'),
    (dict(values=(0, 0, 0)), 'do not have the structure of an example'),
    (dict(values=(0.5, None)), 'value 0.5 does not fit int64, the dtype of the component 0')])
def test_padding_that_does_not_fit_is_refused(settings, message):
  with pytest.raises(UsageError, match=message):
    take(towers.padded(of_elements(None), **settings), mode='split', num_towers=2, num_steps=1)


def of_length(make, **component):
  def elements():
    return tf.data.Dataset.range(8).map(make)
  return towers.Examples(8, elements, name='train', **component)


def test_examples_of_known_sizes_have_nothing_to_pad():
  with pytest.raises(UsageError, match='nothing to pad'):
    take(towers.padded(small.id_examples(8)), mode='split', num_towers=1, num_steps=1)


def test_a_component_of_unknown_rank_is_named():
  def make(number):
    return number, tf.py_func(lambda size: np.ones(size, np.int64), [number], tf.int64)

  with pytest.raises(UsageError, match='the component 1 is unknown.*set_shape'):
    take(towers.padded(of_length(make)), mode='split', num_towers=1, num_steps=1)


def test_an_example_that_is_too_large_is_named():
  examples = towers.padded(of_elements(None), pad_to=2)
  with pytest.raises(tf.errors.InvalidArgumentError, match='component 1 is larger than pad_to=2'):
    take(examples, mode='next', num_towers=2, num_steps=2)


def test_sizes_that_differ_without_padding_name_the_fix():
  examples = of_length(lambda number: tf.range(number))
  program_of = towers.Program
  with tf.Graph().as_default():
    program = program_of(lambda batch, _: tf.cast(tf.reduce_sum(batch, 1), tf.float32)
                         * tf.get_variable('weight', []), train=examples, batch_size=4,
                         num_towers=2, device='cpu', shuffle=False,
                         optimizer=tf.train.GradientDescentOptimizer(0.1))
    with pytest.raises(towers.RunError, match=r'towers\.padded\(examples'), \
        program.session() as session:
      session.train()


def test_a_record_of_another_rank_is_named(tmp_path):
  def parse(record):
    id, rows = parse_any_rows(record)
    return id, tf.py_func(lambda rows: rows[:, None] if len(rows) == 3 else rows, [rows],
                          tf.float32)

  path = write(tmp_path / 'file', range(9), rows=lambda number: 3 if number == 7 else 2)
  examples = towers.padded(towers.from_tfrecords(path, parse))
  with pytest.raises(tf.errors.OpError, match=r'record 7 .*component 1 has shape \[3, 1\]'):
    take(examples, mode='split', num_towers=2, num_steps=1)
