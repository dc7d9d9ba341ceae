"""A result is not lost on a full disk, and advice for towers that wait fits the settings."""

import types

import pytest

import towers
from tests.harness import faults, small
from towers.process.run_error import RunError
from towers.tensorflow_v1 import tf
from towers.training.reporting.advice import advise
from towers.training.reporting.result import write_result


@pytest.mark.parametrize('settings, changes, words', [
    ({}, None, ['43%', 'all 8 cores decode already']),
    (dict(input_threads=2), None, ['input_threads=8 uses all cores, where it is 2']),
    (dict(staging_depth=0), None, ['staging_depth=1']),
    (dict(data='images'), None, ['python -m towers convert', '--input_only']),
    ({}, dict(of_batches=False), ['of_batches=True of towers.augmented']),
    ({}, dict(of_batches=True), ['all 8 cores decode'])])
def test_towers_that_wait_get_advice_that_fits(settings, changes, words, monkeypatch):
  monkeypatch.setattr('towers.base.cores.list_cores', lambda: range(8))
  data = settings.get('data', '')
  given = types.SimpleNamespace(**dict(dict(input_threads=None, staging_depth=1), **settings))
  examples = small.random_examples(8)
  if changes is not None:
    examples = towers.augmented(examples, lambda example, draws: example, **changes)
  inputs, plan = types.SimpleNamespace(needs_threads=True), types.SimpleNamespace()
  feed = types.SimpleNamespace(inputs=inputs)
  program = types.SimpleNamespace(
      train_examples=examples, feed=feed, plan=plan, given=given)
  assert advise(0.05, program, data) == ''
  advice = advise(0.43, program, data)
  assert all(word in advice for word in words)
  assert ('--input_only' in advice) == bool(data)
  assert ('of_batches' in advice) == (changes == dict(of_batches=False))
  inputs.needs_threads = False
  for plan.batch_size in (4, 8):
    advice = advise(0.43, program, data)
    assert ('larger batch_size' in advice, 'decode' in advice) == (plan.batch_size == 4, False)


@pytest.mark.parametrize('by_python', [True, False])
def test_a_generator_is_not_told_to_use_more_threads(by_python):
  def make():
    if by_python:
      return tf.data.Dataset.from_generator(lambda: iter(range(8)), tf.float32, [])
    return tf.data.Dataset.range(8).map(lambda number: tf.cast(number, tf.float32))

  program = small.program(
      lambda batch, is_training: tf.square(batch - tf.get_variable('mean', [])),
      train=towers.from_dataset(make, 8), validation=None, input_threads=1)
  advice = advise(0.43, program)
  assert ('one thread does, whatever input_threads says' in advice) == by_python
  assert ('cores decode' in advice or 'uses all cores' in advice) == (not by_python)


def test_a_disk_that_fills_during_the_run_costs_no_result(tmp_path):
  with faults.full_disk(), pytest.raises(RunError) as error:
    write_result(str(tmp_path / 'result.json'), dict(train_loss=0.125))
  assert '"train_loss": 0.125' in str(error.value) and 'Make room' in str(error.value)
  with pytest.raises(RunError) as error:
    write_result('/sys/result.json', dict(train_loss=0.125))
  assert '"train_loss": 0.125' in str(error.value) and 'room' not in str(error.value)
