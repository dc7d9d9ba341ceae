"""Overlap: it runs in every mode and depth, and prints the share of the ideal."""

import json
import sys

import pytest

from benchmarks import overlap


@pytest.mark.nightly
def test_every_mode_and_depth_has_a_line(capsys, monkeypatch, tmp_path):
  monkeypatch.setattr(
      sys, 'argv', ['overlap', '--milliseconds=1', f"--json={tmp_path / 'lines.json'}"])
  monkeypatch.setattr(overlap, '_STEPS', 3)
  overlap.main()
  lines = json.loads((tmp_path / 'lines.json').read_text())
  assert [(line['mode'], line['depth']) for line in lines] == [
      (mode, depth) for mode in ('split', 'next', 'shard') for depth in (0, 1, 2)]
  # No step takes less than what it waits for.
  assert all(0 < line['hidden'] <= 1 and line['step_milliseconds'] >= 1 for line in lines)
  assert capsys.readouterr().out.count(' of the ideal') == 9
