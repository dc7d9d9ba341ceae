"""Batch sweep: it runs small, and accumulation does not change the losses."""

import json
import sys

import pytest

from benchmarks import batch_sweep


def test_micro_batches_are_the_fewest_of_equal_size_that_fit():
  counts = [batch_sweep.find_accumulate(batch_size, 256) for batch_size in batch_sweep.BATCH_SIZES]
  assert counts == [1, 4, 16, 64, 200]
  assert batch_sweep.find_accumulate(7, 4) == 7


def test_a_line_has_speed_memory_and_the_losses_of_the_whole_batch(capsys, monkeypatch):
  lines = []
  for accumulate in (1, 4):
    monkeypatch.setattr(sys, 'argv', [
        'batch_sweep', '--batch_size=32', f'--accumulate={accumulate}', '--model=linear',
        '--num_examples=64'])
    batch_sweep.main()
    lines.append(json.loads(capsys.readouterr().out))
  for line in lines:
    assert line['examples_per_second'] > 0 and line['peak_bytes'] > 1e7
    assert f"{line['batch_size']}" in batch_sweep.format_line(line)
  assert lines[0]['losses'] == pytest.approx(lines[1]['losses'], abs=1e-4)
