"""Rereading: elements that come otherwise each time are refused or named; others are as before."""

import time

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.input.epoch_order import rereading
from towers.tensorflow_v1 import tf

NUM = 32


def of_generator(rows):
  return tf.data.Dataset.from_generator(rows, tf.int64, [])


def shuffled_by_numpy():
  def rows():
    yield from np.random.permutation(NUM)
  return of_generator(rows)


def made_by_numpy():
  return tf.data.Dataset.from_tensor_slices(np.random.permutation(NUM))


def made_by_its_own_seed():
  np.random.seed(0)
  return made_by_numpy()


def seeded():
  def rows():
    yield from np.random.RandomState(0).permutation(NUM)
  return of_generator(rows)


def interleaved(is_sloppy):
  def wait(element):
    # At random: on a busy machine readers may come in turn, twice in one order.
    time.sleep(np.random.choice([0, .01]))
    return element

  def read(begin):
    elements = tf.data.Dataset.range(begin, begin + NUM // 4)
    return elements.map(lambda element: tf.ensure_shape(
        tf.numpy_function(wait, [element], tf.int64), []))
  return tf.data.Dataset.range(0, NUM, NUM // 4).apply(
      tf.data.experimental.parallel_interleave(read, 4, sloppy=is_sloppy))


def sampled(seed=None):
  return tf.data.experimental.sample_from_datasets(
      [tf.data.Dataset.range(NUM // 2), tf.data.Dataset.range(NUM // 2, NUM)], [.5, .5], seed=seed)


LOOSE = {'numpy in a generator': shuffled_by_numpy, 'numpy': made_by_numpy,
         'sloppy interleave': lambda: interleaved(True),
         'sampling without a seed': sampled, 'other values': lambda: of_generator(
             lambda: iter(np.random.randint(1 << 40, size=NUM)))}
FIXED = {
    'generator': seeded, 'numpy': made_by_its_own_seed, 'interleave': lambda: interleaved(False),
    'sampling': lambda: sampled(3),
    'NaN': lambda: tf.data.Dataset.range(NUM).map(lambda id: tf.fill([3], np.float32(np.nan))),
    'text': lambda: tf.data.Dataset.range(NUM).map(tf.strings.as_string)}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
  """Reads as far as on a machine that has nothing else to do."""
  monkeypatch.setattr(rereading, '_MOST_SECONDS', 60)


def model(batch, is_training):
  values = tf.strings.length(batch) if batch.dtype == tf.string else batch
  values = tf.reshape(tf.cast(values, tf.float32), [tf.shape(values)[0], -1])
  return tf.square(tf.get_variable('w', []) * tf.reduce_sum(values, 1))


def build(make, num_towers=2, is_made=False, is_validation=False, **settings):
  """Returns a program on a function that makes a data set, on a data set, or on Examples."""
  with tf.Graph().as_default():
    given = make
    if not isinstance(make, towers.Examples):
      given = towers.from_dataset(make() if is_made else make, NUM, name='mine')
    return towers.Program(
        model, train=small.id_examples(NUM) if is_validation else given,
        validation=given if is_validation else None, batch_size=8, num_towers=num_towers,
        device='cpu', optimizer=tf.train.GradientDescentOptimizer(.1), **settings)


POINTS = [('numpy in a generator', {}), ('numpy', {}), ('sloppy interleave', {}),
          ('sampling without a seed', {}),
          ('other values', {}), ('numpy in a generator', dict(is_made=True)),
          ('sampling without a seed', dict(is_made=True))]


@pytest.mark.parametrize('kind, settings', small.nightly_but(POINTS[:4], POINTS))
def test_a_loose_input_is_refused_in_shard_and_named_elsewhere(kind, settings, capsys):
  words = r'(?s)mine: element \d+ .*2 iterators.*RandomState\(0\).*seed=0.*sloppy=False.*mode=split'
  with pytest.raises(towers.UsageError, match=words):
    build(LOOSE[kind], input_mode='shard', **settings)
  capsys.readouterr()
  build(LOOSE[kind], **settings)  # As a run that resumes does too.
  [line] = [line for line in capsys.readouterr().err.splitlines() if 'mine: element' in line]
  assert line.startswith('WARNING: ') and 'no run repeats' in line and 'RandomState(0)' in line


@pytest.mark.nightly(but='generator')
@pytest.mark.parametrize('kind', FIXED)
def test_what_is_read_alike_is_taken_without_a_word(kind, capsys):
  for settings in (dict(), dict(input_mode='shard')):
    build(FIXED[kind], **settings)
  assert 'element' not in capsys.readouterr().err


def test_a_validation_split_may_come_in_any_order_where_it_misses_none(capsys):
  with pytest.raises(towers.UsageError, match='mine: element'):
    build(shuffled_by_numpy, is_validation=True, input_mode='shard')
  build(shuffled_by_numpy, is_validation=True)
  build(shuffled_by_numpy, is_validation=True, input_mode='shard', num_towers=1)
  assert 'element' not in capsys.readouterr().err


def test_elements_of_arrays_are_read_and_a_split_with_an_index_is_not(monkeypatch, capsys):
  ids = np.arange(NUM)

  def elements(ids):
    return tf.data.Dataset.from_tensor_slices(ids).shuffle(NUM)

  with pytest.raises(towers.UsageError, match='mine: element'):
    build(towers.Examples(NUM, elements, arrays=(ids,), name='mine'), input_mode='shard')
  monkeypatch.setattr(rereading, '_read_twice', pytest.fail)
  build(small.id_examples(NUM), input_mode='shard')


@pytest.mark.parametrize('mode', ['split', 'shard'])
def test_a_run_that_resumes_on_files_in_another_order_says_so(mode, tmp_path, capsys):
  def resume(files, folder=None):
    examples = towers.from_dataset(lambda: tf.data.Dataset.from_tensor_slices(files), name='mine')
    with build(examples, input_mode=mode).session() as session:
      if folder:
        session.restore(folder)
      session.train()
      session.save(str(tmp_path / 'saved'))
    return 'with another first element' in str(capsys.readouterr())

  files = np.arange(NUM)
  assert not resume(files) and not resume(files, str(tmp_path / 'saved'))
  assert resume(files[::-1].copy(), str(tmp_path / 'saved'))


def test_a_seed_of_the_graph_is_one_for_a_single_iterator(capsys):
  with tf.Graph().as_default():
    tf.set_random_seed(5)
    towers.Program(model, train=towers.from_dataset(sampled, NUM), batch_size=8, num_towers=2,
                   device='cpu', optimizer=tf.train.GradientDescentOptimizer(.1))
  assert 'element' not in capsys.readouterr().err


def test_a_slow_source_delays_no_start_and_one_that_is_read_once_goes_on(monkeypatch, capsys):
  monkeypatch.setattr(rereading, '_MOST_SECONDS', 0.2)
  asked = []

  def slow():
    asked.append(time.monotonic())
    time.sleep(3)
    yield from range(NUM)

  examples = towers.from_dataset(lambda: of_generator(slow), NUM)
  began = time.monotonic()
  rereading.check_rereading(examples, 2, is_trained=True)
  assert time.monotonic() - began < 3 and len(asked) < 2
  monkeypatch.setattr(rereading, '_MOST_SECONDS', 60)
  stream = iter(range(1000))
  program = build(lambda: of_generator(lambda: stream), shuffle=False)
  with program.session() as session:
    taken = session.run([program.batches[0].tensors, program.train_op])[0]
  # Each reading has taken one, which the warning is about.
  assert taken.tolist() == [2, 3, 4, 5] and 'no run repeats' in capsys.readouterr().err
