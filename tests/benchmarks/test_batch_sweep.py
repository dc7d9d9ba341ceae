"""Batch sweep: it runs small, and accumulation does not change the losses."""

import json
import sys

import pytest

from benchmarks import batch_sweep


def test_micro_batches_are_the_fewest_of_equal_size_that_fit():
  counts = [batch_sweep.find_accumulate(batch_size, 256) for batch_size in batch_sweep.BATCH_SIZES]
  assert counts == [1, 4, 16, 64, 200]
  assert batch_sweep.find_accumulate(7, 4) == 7


def test_a_line_has_the_losses_of_the_whole_batch(capsys, monkeypatch):
  lines = []
  for accumulate in (1, 4):
    monkeypatch.setattr(batch_sweep, 'TIMED_EXAMPLES', 64)
    monkeypatch.setattr(sys, 'argv', [
        'batch_sweep', '--batch_size=32', f'--accumulate={accumulate}', '--model=linear',
        '--num_examples=64'])
    batch_sweep.main()
    lines.append(json.loads(capsys.readouterr().out))
  for line in lines:
    # One step that is not timed, and two that are.
    assert (len(line['losses']), line['timed_steps'], line['timed_examples']) == (3, 2, 64)
    assert line['seconds'] > 0 and line['cpu_seconds'] > 0 and line['peak_bytes'] > 1e7
  assert lines[0]['losses'] == pytest.approx(lines[1]['losses'], abs=1e-4)


def test_a_row_says_what_an_epoch_and_a_step_take():
  line = dict(batch_size=1024, accumulate=4, timed_steps=8, timed_examples=8192, seconds=16.384,
              cpu_seconds=8.192, num_examples=50000, peak_bytes=1_090_000_000)
  assert batch_sweep.format_line(line) == (
      '| 1,024 | 4 | 1.09 GB | 500 | 100.0 s | 50.0 s | 2,048,000 µs | 1,024,000 µs |')
  assert batch_sweep.HEADER.splitlines()[0].count('|') == batch_sweep.format_line(line).count('|')
