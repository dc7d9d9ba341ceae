"""A tf.data.Dataset of one's own: every element once, or refused by name with the fix."""

import numpy as np
import pytest

import towers
from tests.data.test_records import take
from tests.harness import small, taking
from towers.base.usage_error import UsageError
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.process.run_error import RunError
from towers.tensorflow_v1 import tf

UNBATCH = tf.data.experimental.unbatch()


def ids(num):
  return lambda: tf.data.Dataset.range(num)


def of_unknown_size(num):
  """A data set whose size only a pass tells."""
  return lambda: tf.data.Dataset.range(2 * num).filter(lambda id: tf.equal(id % 2, 0)).map(
      lambda id: id // 2)


def test_a_data_set_belongs_to_its_graph_and_a_function_to_any():
  with tf.Graph().as_default() as graph:
    before = len(graph.get_operations())
    dataset = ids(5)()
    made = len(graph.get_operations())
    examples = towers.from_dataset(dataset, name='mine')
    # Nothing is added to the program's graph, whose random ops count its ops.
    assert before < made == len(graph.get_operations())
    plan = build_plan(num_examples=5, batch_size=5, num_towers=1)
    inputs = build_inputs(examples, plan=plan)
    [batch] = inputs.next_batches()
    with tf.Session() as session:
      session.run(inputs.initializer, inputs.feed_dict(0))
      assert session.run(batch.tensors).tolist() == list(range(5))
  with tf.Graph().as_default(), pytest.raises(UsageError, match='mine.*another graph.*function'):
    build_inputs(examples, plan=plan)
  examples = towers.from_dataset(ids(5))
  for _ in range(2):
    assert take(examples, num_steps=1) == [[0, 1, 2, 3, 4]]


def test_a_function_may_make_a_generator():
  def make():
    return tf.data.Dataset.from_generator(lambda: iter(range(10)), tf.int64, [])

  steps = take(towers.from_dataset(make), 'shard', 2, num_steps=2, batch_size=5)
  assert [sorted(step) for step in steps] == [list(range(5)), list(range(5, 10))]


@pytest.mark.parametrize('read', [
    pytest.param(tf.identity, id='as_it_is', marks=pytest.mark.skipif(
        tf.__version__.startswith('1.'), reason='TensorFlow 1.14 ends the process')),
    # The line of docs/faults.md.
    pytest.param(lambda line: tf.strings.unicode_transcode(line, 'UTF-8', 'UTF-8'), id='by_line'),
])
def test_an_error_that_quotes_what_is_not_utf8_is_told(tmp_path, read):
  (tmp_path / 'file').write_bytes(b'1\n' * 8 + b'caf\xe9\n' + b'1\n' * 4)

  def make():
    return tf.data.TextLineDataset(str(tmp_path / 'file')).map(
        lambda line: tf.io.decode_csv(read(line), [[0.0]])[0])

  with pytest.raises(UsageError, match='mine: a first look .* at example 9,.* valid float: caf'):
    towers.from_dataset(make, name='mine')
  program = small.program(lambda batch, is_training: batch * tf.get_variable('w', []),
                          train=towers.from_dataset(make, num_examples=13, name='mine'),
                          validation=None)
  with pytest.raises(RunError, match=r'input .* \(split mine\) failed .*: caf'), \
      program.session() as session:
    session.train()
    session.train()


def test_unknown_shapes_become_those_of_the_first_element():
  def make(odd=None):
    return lambda: tf.data.Dataset.range(9).map(lambda id: {
        'rows': tf.fill(tf.where(tf.equal(id, -1 if odd is None else odd), [3], [2]), id),
        'id': id})

  with tf.Graph().as_default():
    plan = build_plan(num_examples=9, batch_size=3, num_towers=1)
    [batch] = build_inputs(towers.from_dataset(make()), plan=plan).next_batches()
    assert batch.tensors['rows'].shape.as_list() == [3, 2]
  with pytest.raises(tf.errors.OpError, match=r"mine: the component rows has shape \[3\], and "
                     r'shape \[2\] in the first example.*pad'):
    take(towers.from_dataset(make(7), name='mine'), num_steps=2)


def test_examples_of_unequal_shapes_end_where_they_should_and_can_be_padded():
  def make():
    return of_unknown_size(9)().map(lambda id: {
        'id': id, 'row': tf.fill([id % 3], id), 'text': tf.fill([1, id % 2], 'a')})

  examples = towers.padded(towers.from_dataset(make))
  assert sorted(sum(take(examples, 'next', num_steps=2), [])) == list(range(9))
  with pytest.raises(tf.errors.OpError, match='promised num_examples=8'):
    take(towers.padded(towers.from_dataset(make, 8)), num_steps=1)


# 17 promises 16, a whole chunk of what is read at a time.
@pytest.mark.nightly(but='1')
@pytest.mark.parametrize('num', [1, 2, 17])
def test_a_data_set_of_another_size_than_promised_fails(num):
  for promised in (num, num + 1, num + 9):
    examples = towers.from_dataset(of_unknown_size(num), promised, name='mine')
    if promised == num:
      assert take(examples, num_steps=2, batch_size=num, num_towers=1) == 2 * [list(range(num))]
    else:
      with pytest.raises(tf.errors.OpError, match=f'mine promised num_examples={promised}'):
        take(examples, num_steps=promised, batch_size=1, num_towers=1)
  if num > 1:
    examples = towers.from_dataset(of_unknown_size(num), num - 1, name='mine')
    with pytest.raises(tf.errors.OpError, match=f'mine promised num_examples={num - 1}.* has more'):
      take(examples, num_steps=num - 1, batch_size=1, num_towers=1)


def test_a_count_is_told_and_kept(tmp_path, capsys):
  kept = str(tmp_path / 'count')
  for counts in (True, False):
    assert towers.from_dataset(of_unknown_size(5), count_file=kept, name='mine').num_examples == 5
    told = capsys.readouterr().err
    assert ('mine: counted 5 examples in ' in told) == counts == bool(told)
    assert 'or a count_file' not in told
  towers.from_dataset(of_unknown_size(5))
  assert 'num_examples=5 or a count_file spares' in capsys.readouterr().err
  # A count of another data set fails when that is read.
  stale = towers.from_dataset(of_unknown_size(6), count_file=kept, name='mine')
  with pytest.raises(tf.errors.OpError, match='has more elements.*count_file'):
    take(stale, num_steps=5, batch_size=1, num_towers=1)
  (tmp_path / 'count').write_text('5?')
  with pytest.raises(UsageError, match='holds no count'):
    towers.from_dataset(of_unknown_size(5), count_file=kept)


@pytest.mark.parametrize('mode', small.nightly_but(['shard'], small.MODES))
@pytest.mark.parametrize('is_known', small.nightly_but([True], [True, False]))
def test_a_cache_in_a_file_is_written_once_and_read_by_all(mode, is_known, tmp_path):
  read, path = [], str(tmp_path / 'cache')

  def make():
    made = ids(11)() if is_known else of_unknown_size(11)()
    return made.map(lambda id: tf.py_func(
        lambda id: (read.append(id), id)[1], [id], tf.int64)).map(
            lambda id: tf.reshape(id, [])).cache(path)

  steps = [sorted(range(11))[first:first + 4] for first in (0, 4, 8)]
  # A run that ends in its first epoch, one of several epochs, and another one.
  for num_steps in (1, 7, 3):
    taken = taking.take(towers.from_dataset(make, 11, name='mine'), num_steps=num_steps,
                        batch_size=4, num_towers=2, mode=mode)
    assert [sorted(sum((rows[:count].tolist() for rows, count in by_tower), []))
            for by_tower in taken] == (3 * steps)[:num_steps]
    assert sorted(read) == list(range(11))


@pytest.mark.parametrize('mode', small.nightly_but(['shard'], small.MODES))
@pytest.mark.parametrize('source', ['lines', 'records'])
def test_a_vocabulary_and_plain_numbers_are_read_wherever_a_split_is(source, mode, tmp_path):
  lines, path = ['a b', 'c', 'c a', 'b b a', 'c c'], str(tmp_path / 'lines')

  def build_parse():
    vocabulary = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(['a', 'b', 'c'], np.int64([1, 2, 3])), 0)
    return lambda line: (vocabulary.lookup(tf.string_split([line]).values), 2.0)

  def model(batch, is_training):
    ids, factor = batch
    weight = tf.get_variable('weight', [], initializer=tf.ones_initializer())
    return weight * factor * tf.cast(tf.reduce_sum(ids, 1), tf.float32)

  if source == 'lines':
    (tmp_path / 'lines').write_text('\n'.join(lines))
    rows = towers.from_dataset(lambda: tf.data.TextLineDataset(path).map(build_parse()))
  else:
    with tf.io.TFRecordWriter(path) as writer:
      for line in lines:
        writer.write(line.encode())
    rows = towers.from_tfrecords(path, lambda line: build_parse()(line))
  examples = towers.padded(rows)
  with tf.Graph().as_default():
    program = towers.Program(model, train=examples, validation=examples, batch_size=3,
                             num_towers=2, input_mode=mode, shuffle=False,
                             optimizer=tf.train.GradientDescentOptimizer(0.0))
    with program.session() as session:
      assert session.train() == pytest.approx((6 + 6 + 8) / 3)
      for measured in (session.validate(), session.evaluate(examples)):
        assert measured['loss'] == pytest.approx((6 + 6 + 8 + 10 + 12) / 5)
      assert [sum(row) for row in session.predict(examples, lambda ids: ids)] == [3, 3, 4, 5, 6]


def test_a_count_reads_a_cache_in_a_file_that_is_whole(tmp_path):
  for _ in range(2):
    assert towers.from_dataset(
        lambda: of_unknown_size(5)().cache(str(tmp_path / 'cache'))).num_examples == 5


def test_what_cannot_be_split_is_refused_with_the_fix():
  def refuse(words, make, *settings, **more):
    with pytest.raises(UsageError, match='(?s)' + words):
      towers.from_dataset(make, *settings, **more)

  batched = r'leave \.batch\(\) out'
  refuse(batched, lambda: ids(9)().batch(3))
  refuse(batched, lambda: ids(9)().batch(3, drop_remainder=True).prefetch(2).take(2))
  refuse(batched, lambda: ids(9)().padded_batch(3, []).map(lambda id: id + 1).cache())
  refuse(batched, lambda: ids(9)().apply(tf.data.experimental.map_and_batch(lambda id: id, 3)))
  # What joins or groups elements tells neither by its last op.
  refuse(batched, lambda: tf.data.Dataset.zip((ids(9)().batch(3), ids(9)().batch(3))))
  refuse(batched, lambda: ids(9)().batch(3).filter(lambda batch: tf.equal(tf.size(batch), 3)))
  refuse(batched, lambda: ids(9)().apply(tf.data.experimental.group_by_window(
      lambda id: id % 2, lambda key, window: window.batch(2), 2)))
  refuse(batched, lambda: ids(9)().interleave(lambda id: ids(4)().batch(4), 2))
  refuse(r'leave \.repeat\(\) out, or end with \.take', lambda: ids(9)().repeat().interleave(
      lambda id: ids(4)(), 2).filter(lambda id: id > 1))
  refuse(r'leave \.repeat\(\) out', lambda: ids(9)().repeat().batch(4).apply(UNBATCH))
  refuse(r'\.batch\(\).*\.repeat\(\).*\.shuffle\(\)',
         lambda: ids(9)().shuffle(9).repeat().batch(3).prefetch(1))
  refuse(r'leave \.repeat\(\) out', lambda: ids(9)().repeat().map(lambda id: id + 1))
  refuse(r'leave \.shuffle\(\) out', lambda: ids(9)().shuffle(9, seed=1))
  refuse(r'list_files', lambda: tf.data.Dataset.list_files('/etc/p*').interleave(
      lambda path: tf.data.TextLineDataset(path), 1))
  refuse(r'draws random numbers.* records to towers.mixed\(examples, by=labels\)',
         lambda: ids(9)().apply(tf.data.experimental.rejection_resample(
             lambda id: tf.cast(id % 2, tf.int32), [0.8, 0.2], [0.5, 0.5])))
  refuse('the data set is empty', ids(0))
  refuse('the data set is empty', lambda: ids(3)().filter(lambda id: id > 9))
  refuse('num_examples is 4, and the data set has 3', ids(3), 4)
  refuse('num_examples is 0; give at least 1', ids(3), 0)
  refuse('shuffle_buffer is -1; give at least 0', ids(3), shuffle_buffer=-1)
  refuse('not a list', [1, 2])
  refuse('returns a .*Tensor; .* without an iterator',
         lambda: tf.data.make_one_shot_iterator(ids(3)()).get_next())
  with tf.Graph().as_default():
    outside, begun = tf.constant(1, tf.int64), ids(3)()
  refuse('goes on from a data set .* outside of it', lambda: begun.map(lambda id: id + 1))
  refuse('the function given to from_dataset takes a tensor.* outside of it.* make it inside',
         lambda: ids(3)().map(lambda id: id + outside))
  refuse('the example is a SparseTensor of the dense shape.*to_dense',
         lambda: ids(3)().map(lambda id: tf.sparse.SparseTensor([[0]], [id], id[None] + 1)))
  refuse('no/such/file.*give num_examples', lambda: tf.data.TextLineDataset('/no/such/file'))
  with tf.Graph().as_default():
    array = tf.placeholder(tf.int64, [3], 'fed')
    refuse("placeholder 'fed'.*from_arrays", tf.data.Dataset.from_tensor_slices(array))


def test_what_looks_batched_or_endless_and_is_not_is_taken(capsys):
  for make in (lambda: ids(8)().batch(2).map(lambda pair: tf.reduce_sum(pair)),
               lambda: ids(8)().batch(2, drop_remainder=True).map(lambda pair: tf.tile(pair, [3])),
               lambda: ids(8)().batch(2).apply(UNBATCH),
               lambda: ids(8)().window(4, 1, 1, True).flat_map(lambda window: window.batch(4)),
               lambda: ids(8)().repeat().take(9),
               lambda: ids(8)().repeat().batch(3, drop_remainder=True).apply(UNBATCH).take(9),
               lambda: tf.data.Dataset.zip((ids(8)(), ids(1)().repeat())),
               lambda: ids(8)().shuffle(8, seed=1, reshuffle_each_iteration=False),
               lambda: tf.data.Dataset.list_files('/etc/p*', shuffle=False)):
    assert towers.from_dataset(make).num_examples >= 2
  assert 'WARNING' not in capsys.readouterr().err
  towers.from_dataset(lambda: ids(8)().batch(3, drop_remainder=True).apply(UNBATCH), name='mine')
  assert 'WARNING: mine: batch(…, drop_remainder=True)' in capsys.readouterr().err
