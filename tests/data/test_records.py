"""TFRecords of any schema: every record once, from any step on, with damage by the policy."""

import gzip
import os
import re
import subprocess
import sys
import tempfile

import numpy as np
import pytest

import towers
from tests import ROOT
from tests.data.pictures import damage
from tests.harness import faults, taking
from towers.base.usage_error import UsageError
from towers.data.formats.tfrecord import Records, load_index, write_record
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.tensorflow_v1 import tf

NUM = 100


def write(path, numbers, *, rows=lambda number: 2, size=0):
  """Writes a record for each number: its rows, its name, and padding."""
  with tf.io.TFRecordWriter(str(path)) as writer:
    for number in numbers:
      example = tf.train.Example()
      feature = example.features.feature
      feature['id'].int64_list.value.append(number)
      feature['rows'].float_list.value.extend([number] * rows(number))
      feature['name'].bytes_list.value.append(b'%d' % number)
      feature['padding'].bytes_list.value.append(b'x' * size)
      writer.write(example.SerializeToString())
  return path


# Of files; it is removed with this process.
FOLDER = tempfile.TemporaryDirectory()


def write_two(numbers):
  """Writes two files of unequal length in a folder of their own; returns their paths."""
  folder = tempfile.mkdtemp(dir=FOLDER.name)
  return [write(os.path.join(folder, str(file)), part)
          for file, part in enumerate(np.split(numbers, [3]))]


def parse(record):
  features = tf.io.parse_single_example(record, {
      'id': tf.io.FixedLenFeature([], tf.int64), 'rows': tf.io.FixedLenFeature([2], tf.float32),
      'name': tf.io.FixedLenFeature([], tf.string)})
  return {'id': features['id'], 'more': (features['rows'], features['name'])}


def parse_any_rows(record):
  features = tf.io.parse_single_example(record, {
      'id': tf.io.FixedLenFeature([], tf.int64),
      'rows': tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True)})
  return features['id'], features['rows']


def take(examples, mode='split', num_towers=2, **settings):
  """Returns for each step the ids of all towers, in order."""
  steps = taking.take(examples, mode=mode, num_towers=num_towers,
                      read=lambda tensors: tf.nest.flatten(tensors)[0], **settings)
  return [[int(id) for ids, count in by_tower for id in ids[:count]] for by_tower in steps]


def test_a_resumed_run_reads_hardly_a_byte_of_what_lies_before(tmp_path, monkeypatch):
  path = write(tmp_path / 'file', range(4000), size=100)
  index = load_index(path)
  read = []
  kept = Records._pread

  def count(records, file, size, offset):
    read.append((offset, size))
    return kept(records, file, size, offset)

  examples = towers.from_tfrecords(str(path), parse)
  monkeypatch.setattr(Records, '_pread', count)
  assert take(examples, num_steps=1, first_step=450) == [list(range(3600, 3608))]
  before = sum(size for offset, size in read if offset < index.offsets[3600])
  assert before < index.offsets[3600] / 100 and read


def test_files_are_found_by_pattern_list_or_name(tmp_path):
  for number in range(3):
    write(tmp_path / f'train-{number}', range(number * 10, number * 10 + 10))
  for paths in (str(tmp_path / 'train-*'), [tmp_path / 'train-0', str(tmp_path / 'train-[12]')]):
    assert take(towers.from_tfrecords(paths, parse), num_steps=4, num_towers=1) == [
        list(range(begin, min(begin + 8, 30))) for begin in range(0, 30, 8)]


def test_unknown_shapes_become_those_of_the_first_record(tmp_path):
  path = write(tmp_path / 'file', range(9), rows=lambda number: 3)
  examples = towers.from_tfrecords(path, parse_any_rows)
  with tf.Graph().as_default():
    plan = build_plan(num_examples=9, batch_size=3, num_towers=1)
    [batch] = build_inputs(examples, plan=plan).next_batches()
    assert batch.tensors[1].shape.as_list() == [3, 3]


def test_a_list_within_an_example_is_one_tensor_as_tf_data_has_it(tmp_path):
  path, read = write(tmp_path / 'file', range(9)), taking.take
  made = towers.from_tfrecords(path, lambda record: {
      'listed': [parse(record)['id'], 2 * parse(record)['id']], 'id': parse(record)['id']})
  plain = towers.from_dataset(lambda: tf.data.Dataset.range(9).map(
      lambda number: {'listed': [number, 2 * number], 'id': number}))
  for examples in made, plain, towers.augmented(made, lambda example, draws: dict(
      example, listed=tf.unstack(example['listed']))):
    [[(tensors, _)]] = read(examples, read=lambda tensors: tensors)
    np.testing.assert_array_equal(tensors['id'], range(8))
    np.testing.assert_array_equal(tensors['listed'], np.transpose([range(8), range(0, 16, 2)]))


@pytest.mark.nightly(but='split-payload')
@pytest.mark.parametrize('kind', ['payload', 'schema', 'shape'])
@pytest.mark.parametrize('mode', ['split', pytest.param('shard', marks=pytest.mark.nightly)])
def test_a_bad_record_is_named_or_left_out_alone(tmp_path, capsys, kind, mode):
  path = tmp_path / 'file'
  write(path, range(20), rows=lambda number: 3 if (kind, number) == ('shape', 13) else 2)
  offset = int(load_index(path).offsets[13])
  if kind == 'payload':
    damage(path, offset + 20)
  reason = {'payload': 'checksum', 'schema': "parse fails.*'?id", 'shape':
            r"component 1 has shape \[3\], and shape \[2\] in the first example"}[kind]

  def parse_but(record):
    tensors = parse_any_rows(record)
    wrong = {'wrong': tf.io.FixedLenFeature([], tf.int64), 'id': tf.io.FixedLenFeature(
        [], tf.string)}
    if kind != 'schema':
      return tensors
    return tf.cond(tf.equal(tensors[0], 13),
                   lambda: (tf.cast(tf.io.decode_raw(tf.io.parse_single_example(record, wrong)[
                       'id'], tf.int64)[0], tf.int64), tensors[1]), lambda: tensors)

  failing = towers.from_tfrecords(path, parse_but, name='mine')
  with pytest.raises(tf.errors.OpError, match=f'record 13 at byte {offset}: .*{reason}'):
    take(failing, mode, num_steps=3)
  skipping = towers.from_tfrecords(path, parse_but, name='mine', on_bad_record='skip')
  steps = take(skipping, mode, num_steps=6)
  assert [sorted(step) for step in steps] == 2 * [
      list(range(8)), [8, 9, 10, 11, 12, 14, 15], list(range(16, 20))]
  [line] = capsys.readouterr().err.splitlines()
  assert f'{path}: record 13 at byte {offset}' in line


def write_texts(path, contents):
  """Writes records whose checksums are right, whatever is in them."""
  with open(str(path), 'wb') as file:
    for content in contents:
      write_record(file, content)
  return path


def text_example(text):
  """A record with a number as text, and with bytes that are no text."""
  example = tf.train.Example()
  example.features.feature['text'].bytes_list.value.append(text)
  example.features.feature['image'].bytes_list.value.append(b'\xff\xd8' * 200)
  return example.SerializeToString()


def parse_text(record):
  features = tf.io.parse_single_example(record, {'text': tf.io.FixedLenFeature([], tf.string)})
  return tf.strings.to_number(features['text'])


def parse_csv(record):
  return tf.io.decode_csv(record, [[0.0]])[0]


# A function that parses, its records, one on which TensorFlow fails, and the reason.
BAD = dict(
    no_example=(parse_text, text_example, b'\xff' * 30, r'no tf\.train\.Example'),
    # The length of a part, of more than 2^31 bytes.
    long_part=(parse_text, text_example, b'\n\x08\n\x86\x80\x80\x80\x08\n\x00',
               r'no tf\.train\.Example'),
    text=(parse_text, text_example, text_example(b'caf\xe9'), r'parse fails: .*: caf\?'),
    csv=(parse_csv, bytes, b'caf\xe9', r'parse fails: Field 0 .*: caf\?'),
    missing=(parse_text, text_example, b'', r'parse fails: Feature: text'))


@pytest.mark.nightly(but=('fail-no_example', 'fail-text', 'skip-csv'))
@pytest.mark.parametrize('kind', sorted(BAD))
@pytest.mark.parametrize('policy', ['fail', 'skip'])
def test_a_record_of_which_python_cannot_be_told_is_named_or_left_out(
    tmp_path, capsys, kind, policy):
  # On TensorFlow 1.14 the error, and on both the parsing op itself, end the process.
  parse, make, bad, reason = BAD[kind]
  good = [make(b'%d' % number) for number in range(20)]
  path = write_texts(tmp_path / 'file', [*good[:13], bad, *good[14:]])
  place = f'record 13 at byte {int(load_index(path).offsets[13])}: .*{reason}'
  examples = towers.from_tfrecords(path, parse, name='mine', on_bad_record=policy)
  steps = [list(range(8)), [8, 9, 10, 11, 12, 14, 15], list(range(16, 20))]
  if policy == 'fail':
    with pytest.raises(tf.errors.OpError, match=place):
      take(examples, num_steps=3)
  else:
    assert [sorted(step) for step in take(examples, num_steps=6)] == 2 * steps
    assert re.search(place, capsys.readouterr().err)
    path = write_texts(tmp_path / 'first', [bad, *good])
    assert towers.from_tfrecords(path, parse, on_bad_record='skip').num_examples == 21


def test_no_op_of_parse_is_given_a_record_that_is_no_example(tmp_path):
  given, good = [], [text_example(b'%d' % number) for number in range(8)]

  def parse_and_note(record):
    noted = tf.numpy_function(lambda content: given.append(content) or np.float32(0), [record],
                              tf.float32)
    return parse_text(record) + tf.reshape(noted, [])

  bad = [content for _, _, content, reason in BAD.values() if 'tf' in reason]
  path = write_texts(tmp_path / 'file', [*good, *bad, *good])
  take(towers.from_tfrecords(path, parse_and_note, on_bad_record='skip'), num_steps=3)
  assert len(bad) == 2 and set(given) == set(good)


@pytest.mark.parametrize('kind', ['a FIFO', 'a device'])
def test_what_is_no_file_is_refused(tmp_path, kind):
  faults.be_special(tmp_path / 'file', kind)
  with pytest.raises(UsageError, match=f'file: cannot be read: it is {kind}, not a file'):
    towers.from_tfrecords(tmp_path / 'file', parse)


def test_what_cannot_be_read_is_refused_at_once(tmp_path):
  path = write(tmp_path / 'file', range(4))
  (tmp_path / 'file.gz').write_bytes(gzip.compress(path.read_bytes()))

  def refuse(words, paths=path, parse=parse, **settings):
    with pytest.raises(UsageError, match=words):
      towers.from_tfrecords(paths, parse, **settings)

  refuse('decompress', tmp_path / 'file.gz')
  refuse("names no file", tmp_path / 'other-*')
  refuse('is a folder.*tfrecord', tmp_path)
  refuse('named twice', [path, tmp_path / 'fil*', path])
  refuse('letters, digits', name='my split')
  refuse('on_bad_record', on_bad_record='ignore')
  refuse('gs://', 'gs://bucket/train')
  # Nothing shows that the record is damaged: the advice is not to remove it.
  refuse('record 0 at byte 0: parse fails.*x.*Correct the file or what reads it',
         parse=lambda record: tf.io.parse_single_example(
             record, {'x': tf.io.FixedLenFeature([], tf.int64)}))
  refuse('none of the first 4 records', on_bad_record='skip', parse=lambda record:
         tf.io.parse_single_example(record, {'x': tf.io.FixedLenFeature([], tf.int64)}))
  refuse("the component x is a SparseTensor.*to_dense", parse=lambda record:
         tf.io.parse_single_example(record, {'x': tf.io.VarLenFeature(tf.float32)}))
  refuse(r'parse cannot be built: AttributeError, .*, at .*test_records.py:\d+',
         parse=lambda record: record.no_such_attribute)
  refuse(r'parse cannot be built: .*A list is one tensor: for several write a tuple\.$',
         parse=lambda record: {'x': list(tf.nest.flatten(parse(record)))})


@pytest.mark.nightly
def test_a_run_that_left_records_out_resumes(tmp_path):
  path = write(tmp_path / 'file', range(20))
  damage(path, int(load_index(path).offsets[13]) + 20)

  def train(steps):
    with tf.Graph().as_default():
      program = towers.Program(
          lambda batch, is_training: tf.square(batch['more'][0][:, 0] * tf.get_variable('w', [])),
          train=towers.from_tfrecords(path, parse, on_bad_record='skip'), batch_size=5,
          optimizer=tf.train.GradientDescentOptimizer(1e-4), num_towers=2, device='cpu')
      return towers.train(program, steps=steps, checkpoint_dir=str(tmp_path / 'run'), quiet=True)

  assert train(4)['examples_seen'] == 19
  assert train(8)['examples_seen'] == 38


# Writes records of 6 KB, takes an epoch of them, and prints the peak of its memory in bytes.
_EPOCH = """
import sys
import towers
from benchmarks.harness.machine import read_peak_bytes
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.tensorflow_v1 import tf
from tests.data.test_records import parse, write
write(sys.argv[1], range(int(sys.argv[2])), size=6000)
examples = towers.from_tfrecords(sys.argv[1], parse)
plan = build_plan(num_examples=examples.num_examples, batch_size=100, num_towers=2)
inputs = build_inputs(examples, plan=plan, shuffle=True)
batches = [batch.tensors['id'] for batch in inputs.next_batches()]
with tf.Session() as session:
  session.run(inputs.initializer, inputs.feed_dict(0))
  assert sum(len(ids) for _ in range(plan.steps_per_epoch) for ids in session.run(batches)) == int(
      sys.argv[2])
print(read_peak_bytes())
"""


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_memory_does_not_grow_with_the_files(tmp_path):
  peaks = [int(subprocess.check_output(
      [sys.executable, '-c', _EPOCH, str(tmp_path / str(num)), str(num)], cwd=ROOT))
      for num in (5000, 25000)]
  print('30 MB and 150 MB of records:', *[f'{peak / 1e6:.0f} MB' for peak in peaks])
  assert peaks[1] - peaks[0] < 60e6


def test_nothing_of_the_files_stands_in_the_graph(tmp_path):
  sizes = []
  for number in (10, 99):
    examples = towers.from_tfrecords(write(tmp_path / str(number), range(number)), parse)
    with tf.Graph().as_default() as graph:
      plan = build_plan(num_examples=number, batch_size=8, num_towers=2)
      build_inputs(examples, plan=plan).next_batches()
      sizes.append(len(graph.as_graph_def().SerializeToString()))
  assert abs(np.diff(sizes)) < 100
