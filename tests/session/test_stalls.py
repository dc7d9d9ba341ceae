"""Runs of main.py that stall end in time, with a code and one message."""

import time

import pytest

from tests.harness.loaded_process import LoadedProcess


def run(fault, *flags):
  """Runs main.py to its end; returns its error message, and the seconds since its banner."""
  process = LoadedProcess(['-m', 'tests.harness.faulty_run', fault, *flags])
  try:
    for line in process.stdout:
      if line.startswith('  device'):
        break
    started = time.monotonic()
    _, errors = process.communicate(timeout=50)
  finally:
    process.kill()
  assert process.returncode == 3 and 'Traceback' not in errors
  [message] = [line for line in errors.splitlines() if line.startswith('towers: error:')]
  return message, time.monotonic() - started


@pytest.mark.parametrize('fault, flags, words', [
    ('the map function sleeps', ['--input_mode=shard'],
     'the iterator of tower 1 (split train) gives no batch'),
    pytest.param(
        'the map function sleeps', ['--input_mode=next', '--staging_depth=0'],
        'the iterator of all 2 towers, which share one iterator (split train) gives no batch',
        marks=pytest.mark.nightly),
    # When two towers sleep, two cores leave the data set no thread to answer with.
    pytest.param(
        'the model sleeps', [], 'the batches of all towers are there|Or an op of the model',
        marks=pytest.mark.nightly)])
def test_a_run_that_stalls_ends_in_time_and_tells_why(fault, flags, words):
  error, seconds = run(fault, '--stall_seconds=2', *flags)
  assert any(word in error for word in words.split('|'))
  assert 'Nothing went forward for 2 s (stall_seconds)' in error
  # Set-up of the session, the limit, and a second for each iterator.
  assert seconds < 12
