"""Examples of unequal sizes: padded batches, in every mode."""

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.data.pictures import damage
from tests.data.test_records import parse_any_rows, write
from tests.harness import small
from tests.tower import test_weighted as weighted
from towers.base.usage_error import UsageError
from towers.data.formats.tfrecord import load_index


def ragged_examples(text, *, name='train', **padding):
  """The rows of a `weighted.Text` without their padding."""
  def elements(tokens, tags, lengths):
    rows = tf.data.Dataset.from_tensor_slices((tokens, tags, lengths))
    return rows.map(lambda tokens, tags, length: (tokens[:length], tags[:length], length))

  examples = towers.Examples(num_examples=len(text.lengths), elements=elements, name=name,
                             arrays=(text.tokens, text.tags, text.lengths))
  return towers.padded(examples, **padding)


def unequal_arrays(text, *, name='train', **padding):
  """The same as lists, which `from_arrays` takes."""
  tokens, tags = ([row[:length] for row, length in zip(rows, text.lengths)]
                  for rows in (text.tokens, text.tags))
  return towers.padded(towers.from_arrays(tokens, tags, text.lengths, name=name), **padding)


def take(examples, *, mode, num_towers, num_steps, first_step=0, batch_size=8):
  """Returns for each step each tower's (tensors, number of examples)."""
  with tf.Graph().as_default():
    plan = towers.build_plan(num_examples=examples.num_examples, batch_size=batch_size,
                             num_towers=num_towers)
    inputs = towers.build_inputs(examples, mode=mode, plan=plan)
    batches = [(batch.tensors, tf.convert_to_tensor(batch.num_examples))
               for batch in inputs.next_batches()]
    with tf.Session() as session:
      session.run(inputs.initializer, inputs.feed_dict(first_step))
      return [session.run(batches) for _ in range(num_steps)]


@pytest.mark.nightly(but='unequal_arrays-next-2-16-batch')
@pytest.mark.parametrize('make, mode, num_towers, num_rows, pad_to', [
    (ragged_examples, 'split', 3, 17, 'batch'), (ragged_examples, 'next', 3, 17, 9),
    (unequal_arrays, 'next', 2, 16, 'batch'), (unequal_arrays, 'shard', 3, 17, 'batch'),
    pytest.param(ragged_examples, 'shard', 2, 16, 9, marks=pytest.mark.nightly),
    pytest.param(unequal_arrays, 'split', 2, 17, 6, marks=pytest.mark.nightly)])
def test_rows_keep_their_values_and_end_with_the_padding(make, mode, num_towers, num_rows, pad_to):
  text = weighted.Text(num_rows)
  examples = make(text, pad_to=pad_to, values=(-1, -2, None))
  steps = take(examples, mode=mode, num_towers=num_towers, num_steps=3)
  assert str(take(examples, mode=mode, num_towers=num_towers, num_steps=1, first_step=2)) == str(
      steps[2:])
  for step, by_tower in enumerate(steps):
    rows = weighted.rows_of_step(num_rows, step)
    seen = []
    for (tokens, tags, lengths), count in by_tower:
      seen += list(lengths[:count])
      assert tokens.shape == tags.shape and len(tokens) == max(count, 1)
      assert tokens.shape[1] == pad_to or pad_to == 'batch'
      for row, marks, length in zip(tokens[:count], tags[:count], lengths):
        assert (row[length:] == -1).all() and (marks[length:] == -2).all()
        number, = [other for other in range(rows.start, rows.stop)
                   if text.lengths[other] == length
                   and (text.tokens[other][:length] == row[:length]).all()
                   and (text.tags[other][:length] == marks[:length]).all()][:1]
        assert rows.start <= number < rows.stop
    assert sorted(seen) == sorted(text.lengths[rows])
    if pad_to == 'batch' and mode != 'shard':
      # All towers of a step have the size of the longest row of the global batch.
      assert {tokens.shape[1] for (tokens, _, _), count in by_tower if count} == {
          text.lengths[rows].max()}


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
    (dict(values=(0, 0)), 'do not have the structure of an example'),
    (dict(values=(0, 0.5, None)), 'padding value 0.5 does not fit int32, the dtype of component 1'),
])
def test_padding_that_does_not_fit_is_refused(settings, message):
  with pytest.raises(UsageError, match=message):
    take(ragged_examples(weighted.Text(8), **settings), mode='split', num_towers=2, num_steps=1)


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

  with pytest.raises(UsageError, match='component 1 of an example is unknown.*set_shape'):
    take(towers.padded(of_length(make)), mode='split', num_towers=1, num_steps=1)


def test_an_example_that_is_too_large_is_named():
  examples = ragged_examples(weighted.Text(16), pad_to=2)
  with pytest.raises(tf.errors.InvalidArgumentError, match='component 0 of an example is larger '
                                                           'than pad_to=2'):
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


@pytest.mark.nightly(but='8')
@pytest.mark.parametrize('num_examples', [None, 8])
def test_a_data_set_of_examples_of_unequal_sizes_is_padded(num_examples):
  rows = [[7] * size for size in (1, 4, 2, 0, 3, 1, 5, 2)]
  examples = towers.padded(towers.from_dataset(
      lambda: tf.data.Dataset.from_generator(lambda: iter(rows), tf.int64, [None]), num_examples))
  [[[batch, _]]] = take(examples, mode='split', num_towers=1, num_steps=1)
  assert batch.tolist() == [row + [0] * (5 - len(row)) for row in rows]


@pytest.mark.nightly
@pytest.mark.parametrize('mode, num_towers, pad_to, policy', small.nightly_but(
    [('next', 2, 5, 'skip')],
    [(*point, policy) for policy in ('fail', 'skip')
     for point in (('split', 3, 'batch'), ('next', 2, 5), ('shard', 4, 'batch'))]))
def test_records_of_unequal_sizes_are_padded(tmp_path, mode, num_towers, pad_to, policy):
  path = write(tmp_path / 'file', range(1, 18), rows=lambda number: number % 5)
  if policy == 'skip':
    damage(path, int(load_index(path).offsets[8]) + 20)
    damage(path, int(load_index(path).offsets[16]) + 20)
  examples = towers.padded(towers.from_tfrecords(path, parse_any_rows, on_bad_record=policy),
                           pad_to, values=(None, -1))
  steps = take(examples, mode=mode, num_towers=num_towers, num_steps=3)
  assert str(take(examples, mode=mode, num_towers=num_towers, num_steps=1, first_step=2)) == str(
      steps[2:])
  for step, by_tower in enumerate(steps):
    ids = [number for number in range(1, 18)[8 * step:8 * step + 8]
           if policy == 'fail' or number not in (9, 17)]
    assert sorted(id for (taken, _), count in by_tower for id in taken[:count]) == ids
    for (taken, rows), count in by_tower:
      assert rows.shape[1] == pad_to or pad_to == 'batch'
      for id, row in zip(taken[:count], rows):
        assert row.tolist() == [id] * (id % 5) + [-1] * (rows.shape[1] - id % 5)


def test_a_record_of_another_rank_is_named(tmp_path):
  def parse(record):
    id, rows = parse_any_rows(record)
    return id, tf.py_func(lambda rows: rows[:, None] if len(rows) == 3 else rows, [rows],
                          tf.float32)

  path = write(tmp_path / 'file', range(9), rows=lambda number: 3 if number == 7 else 2)
  examples = towers.padded(towers.from_tfrecords(path, parse))
  with pytest.raises(tf.errors.OpError, match=r'record 7 .*component 1 has shape \[3, 1\]'):
    take(examples, mode='split', num_towers=2, num_steps=1)
