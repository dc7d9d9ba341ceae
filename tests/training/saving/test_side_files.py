"""Whatever a side file holds, it is read as what it says or is a warning: no trace, no growth."""

import json
import math

import pytest

from towers.base.usage_error import UsageError
from towers.training.fitting import ROOM, recall_accumulate
from towers.training.saving.history import HISTORY, History
from towers_tools.evaluator import EVALUATIONS, Evaluations
from towers_tools.page import format_page, read_runs
from towers_tools.report import Report

A_RUN = dict(
    config={}, description='', versions={}, warnings=[], seconds={},
    samples=[dict(step=1, loss=1.0)], validations=[dict(step=1, loss=0.5, accuracy=0.75)],
    result=None)
ODD = ['null', 'true', '-1', '1.5', '1e400', '-Infinity', 'NaN', str(2 ** 70), str(2 ** 2000),
       '1e308', '5e-324', '9' * 5000, '""', '"1"', '[]', '[[]]', '{}', '{"step": 1}',
       '[{"step": null}]', '[{"step": 1e400}]', f'[{{"step": {2 ** 70}, "loss": 1}}]',
       '[{"step": 1, "loss": 1e308}, {"step": 2, "loss": -1e308}]',
       '[{"step": 1, "loss": 5e-324}, {"step": 9223372036854775807, "loss": 0}]',
       '[{"step": 1, "loss": [1]}]', '[{"step": 1, "loss": {"a": 1}}]', '[{"step": true}]',
       '[["step", 1]]', '[' * 900 + ']' * 900, '[' * 10 ** 5 + ']' * 10 ** 5]


def read_history(folder, warn):
  history = History(metric='loss', patience=1)
  history.read(folder, 5, warn)
  history.add(9, {'loss': 1.0})
  return (history.best_first(), history.describe_best(), history.has_stopped, history.format(),
          history.rate_factor)


def read_evaluations(folder, warn):
  evaluations = Evaluations(folder)
  evaluations.add(evaluations.last_step() + 1, {'loss': 1.0})


def read_room(folder, warn):
  assert recall_accumulate(folder, batch_size=64, num_towers=2) in (1, 2, 4, 8, 16, 32)


def read_report(folder, warn):
  run = dict(settings={}, first_step=5, description='', versions={})
  Report(f'{folder}/run.html', warn=warn, **run).validated(step=6, metrics={'loss': math.inf})


READERS = {
    HISTORY: (read_history, {'validations': '[]', 'rollbacks': '[]'}),
    EVALUATIONS: (read_evaluations, {'evaluations': '[]'}),
    ROOM: (read_room, {'examples_per_tower': '8'}),
    'run.html': (read_report, {name: json.dumps(value) for name, value in A_RUN.items()}),
}


def contents(members):
  """Yields the members with an odd value in the place of each, and odd values alone."""
  for odd in ODD:
    yield odd
    for name in members:
      yield '{' + ', '.join(f'"{other}": {odd if other == name else value}'
                            for other, value in members.items()) + '}'


@pytest.mark.parametrize('name', sorted(READERS))
def test_odd_contents_are_read_or_are_a_warning(name, tmp_path, capsys):
  read, members = READERS[name]
  warned = 0
  for content in contents(members):
    if name == 'run.html':
      page = format_page([''], [A_RUN])
      before, _, after = page.partition('id="run-0">')
      content = before + 'id="run-0">' + content + after[after.index('</script>'):]
    (tmp_path / name).write_text(content)
    warnings = []
    read(str(tmp_path), warnings.append)
    warned += bool(warnings) or 'WARNING' in capsys.readouterr().out
    if name == 'run.html':
      read_runs(str(tmp_path / name))  # What is written after it is whole.
  assert warned >= len(ODD)


def test_a_file_without_end_is_not_read_to_its_end(tmp_path):
  with open(str(tmp_path / HISTORY), 'wb') as file:
    file.truncate(1 << 40)
  warnings = []
  History().read(str(tmp_path), 5, warnings.append)
  assert 'more than 64 MiB' in warnings[0]
  with open(str(tmp_path / 'run.html'), 'wb') as file:
    file.truncate(1 << 40)
  with pytest.raises(UsageError, match='64 MiB'):
    read_runs(str(tmp_path / 'run.html'))
