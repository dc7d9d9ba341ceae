"""Recompute: a line for each setting, which takes less memory."""

import json
import sys

import pytest

from benchmarks import recompute


@pytest.mark.nightly
def test_every_setting_has_a_line(capsys, monkeypatch, tmp_path):
  monkeypatch.setattr(sys, 'argv', [
      'recompute', '--model=convnet', '--batch_size=4', '--settings=none,2', '--rounds=2',
      f"--json={tmp_path / 'lines.json'}"])
  recompute.main()
  plain, copied = json.loads((tmp_path / 'lines.json').read_text())
  assert (plain['num_segments'], copied['num_segments']) == (1, 2)
  assert plain['peak_ratio'] == 1 and copied['peak_bytes'] > 0
  assert capsys.readouterr().out.count(' segments ') == 2
