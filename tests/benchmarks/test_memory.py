"""Memory of the zoo: a line for each tower, kept in a file."""

import json
import sys

import pytest

from benchmarks.memory import zoo as memory
from models import MODELS


def test_every_model_has_a_size():
  assert set(memory.POINTS) == set(MODELS)


@pytest.mark.nightly
def test_every_tower_has_a_line(capsys, monkeypatch, tmp_path):
  path = tmp_path / 'lines.json'

  def run(*flags):
    monkeypatch.setattr(sys, 'argv', ['memory', f'--json={path}', *flags])
    memory.main()
    return capsys.readouterr().out

  for _ in range(2):  # The second time replaces the lines of the first.
    shown = run('--models=linear', '--towers=2')
    lines = json.loads(path.read_text())['lines']
    assert [line['tower'] for line in lines] == [0, 1] and shown.count('linear') == 2
  head, _, row = run('--print').splitlines()
  assert 'tower 0 of 2 | tower 1 of 2' in head and '`linear`' in row


def test_a_table_has_a_row_for_each_model():
  lines = [dict(model=model, size=28, rows=8, num_towers=2, tower=tower, estimated_bytes=3000000,
                measured_bytes=[2000000, 4000000, 2500000], tensorflow_version='1.14.0')
           for model in ('lenet', 'linear') for tower in (0, 1) if (model, tower) != ('linear', 1)]
  assert memory.find_ratio(lines[0]) == 1.2
  _, _, first, second = memory.format_table(lines).splitlines()
  assert first == '| 1.14.0 | `linear` | 28 | 8 | 3.0 / 2.5 MB: 1.20 |  |'
  assert second.startswith('| 1.14.0 | `lenet` |') and second.count('3.0 / 2.5 MB: 1.20') == 2
