"""Streams: data without a number or an end, one law over towers and workers."""

import contextlib
import itertools
import os
import threading
import time

import numpy as np
import pytest

import towers
from tests.harness import small
from tests.harness.in_process_cluster import InProcessCluster
from towers.base.usage_error import UsageError
from towers.process.run_error import RunError
from towers.tensorflow_v1 import tf

BATCH = 12


class Source:
  """Makes examples, and counts those of its newest iterator."""

  def __init__(self, end=None):
    self.made, self._end = 0, end

  def __call__(self):
    random, self.made = np.random.RandomState(0), 0
    while self.made != self._end:
      self.made += 1
      yield (random.randn(small.NUM_FEATURES).astype(np.float32),
             np.int32(random.randint(small.NUM_CLASSES)))


def stream(source=None):
  source = source or Source()
  return towers.from_stream(source, next(Source()()))


def build(source=None, **settings):
  return small.program(train=stream(source), batch_size=BATCH, **settings)


def losses_of(steps, **settings):
  with build(**settings).session() as session:
    return [session.train() for _ in range(steps)]


SHAPES = [dict(num_towers=2), dict(num_towers=3, input_mode='next', staging_depth=0),
          dict(num_towers=2, accumulate=2, staging_depth=2), dict(num_towers=1, staging_depth=0)]


@pytest.mark.nightly(but=['settings1'])
@pytest.mark.parametrize('settings', SHAPES)
def test_any_towers_take_it_as_one_does(settings):
  random, steps = Source(), 5
  examples = list(itertools.islice(random(), BATCH * steps))
  arrays = towers.from_arrays(*map(np.array, zip(*examples)))
  with small.program(train=arrays, batch_size=BATCH, num_towers=1).session() as session:
    expected = [session.train() for _ in range(steps)]
  np.testing.assert_allclose(losses_of(steps, **settings), expected, atol=1e-5)


def test_two_workers_take_their_shares_of_it():
  with small.Run(train=stream(), num_towers=1) as alone, \
      InProcessCluster(num_workers=2, train=stream()) as both:
    for _ in range(4):
      assert both.train() == pytest.approx(alone.train(), abs=1e-5)


@pytest.mark.parametrize('depth', [0, 1, 2])
@pytest.mark.parametrize('num_towers', [1, 2])
def test_an_example_is_as_many_steps_old_as_batches_are_staged(depth, num_towers):
  source = Source()
  program = build(source, staging_depth=depth, num_towers=num_towers, validation=None)
  with program.session() as session:
    for step in range(1, 5):
      session.train()
      assert source.made == (step + depth) * BATCH


def test_a_resumed_run_begins_it_anew_and_says_so(tmp_path, capsys):
  def train(steps):
    return towers.train(build(), steps=steps, checkpoint_dir=str(tmp_path),
                        validate_every='2steps')

  assert train(3)['global_step'] == 3
  shown = capsys.readouterr().out
  assert 'a stream of training and 11 validation examples' in shown and 'epoch' not in shown
  result = train(5)
  assert result['global_step'] == 5 and result['examples_seen'] == 5 * BATCH
  assert 'the stream begins anew: what the 36 examples' in capsys.readouterr().out
  source = Source()
  with build(source).session() as session:
    session.restore(str(tmp_path))
    assert session.step == 5
    session.train()
    assert source.made == 2 * BATCH  # One is staged.


@pytest.mark.parametrize('num_towers', [1, 2])
def test_a_pipe_that_the_script_has_opened_is_read_in_order(num_towers, tmp_path):
  """The way of docs/faults.md; its first example tells shapes and types."""
  os.mkfifo(str(tmp_path / 'pipe'))

  def write():
    with contextlib.suppress(BrokenPipeError), open(str(tmp_path / 'pipe'), 'w') as file:
      file.writelines(f'{number}\n' for number in range(10000))

  threading.Thread(target=write, daemon=True).start()
  with open(str(tmp_path / 'pipe')) as pipe:
    program = small.program(
        lambda batch, is_training: batch + 0 * tf.get_variable('w', []), validation=None,
        train=towers.from_stream(lambda: map(np.float32, pipe)), batch_size=4,
        num_towers=num_towers)
    with program.session() as session:
      assert [session.train() for _ in range(3)] == [2.5, 6.5, 10.5]


def test_what_counts_epochs_is_refused_by_name():
  for settings, message in ((dict(epochs=2), '2 epochs of a stream.*steps=1000'),
                            ({}, 'epochs of a stream'),
                            (dict(steps=3, validate_every='2epochs'), 'validate_every=2epochs'),
                            (dict(steps=3, checkpoint_every='0.5epochs'), 'checkpoint_every=0.5')):
    with pytest.raises(UsageError, match=message):
      towers.train(build(), quiet=True, **settings)
  for make, message in (
      (lambda: build(input_mode='shard', num_towers=2), 'input_mode=split'),
      (lambda: small.program(validation=stream()), 'validation is of towers.from_stream'),
      (lambda: towers.from_stream(5), 'a function that returns an iterator'),
      (lambda: towers.mixed({'a': stream()}), 'cannot be read by number')):
    with pytest.raises(UsageError, match=message):
      make()


def test_one_that_ends_says_so():
  with build(Source(end=3 * BATCH + 2), staging_depth=0).session() as session:
    for _ in range(3):
      session.train()
    with pytest.raises(RunError, match='the stream has ended'):
      session.train()


def test_a_count_without_end_names_the_stream(monkeypatch, capsys):
  monkeypatch.setattr('towers.data.datasets._SECONDS_BETWEEN_LINES', 0.05)

  def count():  # Too slow for many.
    return tf.data.Dataset.from_generator(
        lambda: (time.sleep(0.05) or id for id in range(9)), tf.int64, [])

  towers.from_dataset(count)
  assert 'what has no end goes to towers.from_stream' in capsys.readouterr().err


def test_the_first_example_tells_shapes_and_types():
  examples = towers.from_stream(lambda: iter([{'x': np.zeros([2, 3], np.uint8), 'y': 1.5}] * 9))
  seen = []

  def model(batch, is_training):
    seen.append({name: (part.dtype.name, part.shape.as_list()) for name, part in batch.items()})
    return tf.cast(batch['y'], tf.float32) * tf.get_variable('weight', [])

  small.program(model, train=examples, validation=None, batch_size=6, num_towers=2)
  assert seen[0] == {'x': ('uint8', [3, 2, 3]), 'y': ('float64', [3])}
