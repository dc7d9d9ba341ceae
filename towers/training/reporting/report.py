"""Report: a run as one page of HTML, with nothing from elsewhere: curves, times, devices, settings,
versions, warnings.

  python main.py --report=run.html
  python -m towers.training.reporting a.html b.html --output=both.html  # any number, side by side

The page holds what it was drawn from, as JSON; that is what a comparison reads, and what a run that
resumes goes on with. It is written anew after each validation, so that a run under way can be
looked at, and once more at the end.
"""

import argparse
import dataclasses
import html
import json
import math
import os
import platform
import re
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence

from towers.base.cores import count_cores
from towers.base.local_path import check_local_path
from towers.base.usage_error import UsageError
from towers.base.whole_file import write_whole
from towers.training.reporting.chart import NUM_COLOURS, Curve, draw_chart
from towers.training.reporting.metric_writer import MetricWriter, Sample
from towers.training.settings.config import Config

# More points than a chart has columns are no help; then every second one is left out.
_MOST_SAMPLES = 2000
_DATA = re.compile(r'<script type="application/json" id="run-\d+">(.*?)</script>', re.DOTALL)
_STYLE = '''
:root { --paper: #ffffff; --ink: #1c2024; --faint: #6a727a; --line: #e2e5e9;
  --c0: #1f6fd6; --c1: #c8571b; --c2: #1d8348; --c3: #8446c0; --c4: #b8860b; --c5: #0f8390; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14171a; --ink: #e6e9ec; --faint: #98a1aa; --line: #2b3138;
  --c0: #6ea8ff; --c1: #ff9d5c; --c2: #5fd08a; --c3: #c49bff; --c4: #e5c04b; --c5: #4fd0de; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  margin: 2rem auto; max-width: 1180px; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
small, .faint { color: var(--faint); }
.charts { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); }
figure { margin: 0; } figcaption { font-weight: 600; }
figcaption span { margin-left: .7em; font-weight: 400; }
svg { height: auto; width: 100%; } svg text { fill: var(--faint); font-size: 12px; }
.grid { stroke: var(--line); }
polyline { fill: none; stroke: currentColor; stroke-width: 1.3; }
polyline.thick { stroke-width: 2; }
circle { fill: currentColor; } pre { overflow-x: auto; font-size: 13px; }
table { border-collapse: collapse; }
td, th { padding: .15rem 1.2rem .15rem 0; text-align: left; vertical-align: top; }
tr { border-bottom: 1px solid var(--line); } tr.differs td { font-weight: 600; }
.wide { overflow-x: auto; }
.bar { background: currentColor; display: inline-block; height: .6em; margin-right: .5em; }
''' + ''.join('.c%d { color: var(--c%d); }\n' % (number, number) for number in range(NUM_COLOURS))


class Report(MetricWriter):
  """Keeps a run for its page."""

  def __init__(self, path: str, *, config: Config, first_step: int, description: str,
               versions: Dict[str, str], warnings: Sequence[str] = (),
               read_seconds: Callable[[], Dict[str, float]] = dict, warn: Callable[[str],
                                                                                   None] = print):
    """Begins, from the page of an earlier run that this one goes on with, if there is one.

    Args:
      path: of the page.
      config: of the run.
      first_step: steps that an earlier run did.
      description: of devices, data, batches and variables, some lines.
      versions: of packages, by name.
      warnings: that were given already.
      read_seconds: returns how long each phase of this process has taken so far.
      warn: is told that the page cannot be written.
    """
    self._path = path
    self._warn = warn
    self._read_seconds = read_seconds
    self._run: Dict[str, Any] = dict(config=dataclasses.asdict(config), description=description,
                                     versions=versions, warnings=list(warnings), seconds={},
                                     samples=[], validations=[], result=None)
    if first_step and os.path.exists(path):
      try:
        [before] = read_runs(path)
        self._run.update(samples=before['samples'], validations=before['validations'])
      except (UsageError, ValueError) as error:
        warn('WARNING: %s, so that the curves of its page begin at step %d.' % (error, first_step))
    self.rewind(first_step)

  def sample(self, sample: Sample) -> None:
    """Takes a measured step."""
    samples = self._run['samples']
    samples.append(_without_nan(sample._asdict()))
    if len(samples) > _MOST_SAMPLES:
      del samples[::2]

  def validation(self, step: int, metrics: Dict[str, float]) -> None:
    """Takes a validation, and writes the page."""
    self._run['validations'].append(_without_nan(dict(metrics, step=step)))
    self.close()

  def warning(self, text: str) -> None:
    """Takes a line that was written as a warning."""
    self._run['warnings'].append(text)

  def rewind(self, step: int) -> None:
    """Forgets what came after `step`."""
    for name in ('samples', 'validations'):
      self._run[name] = [point for point in self._run[name] if point['step'] <= step]

  def finish(self, result: Dict[str, Any]) -> None:
    """Takes the result of the run, and writes the page."""
    self._run['result'] = result
    self.close()

  def close(self) -> None:
    """Writes the page as far as the run has come."""
    self._run['seconds'] = self._read_seconds()
    try:
      write_whole(self._path, format_page([os.path.basename(self._path)], [self._run]).encode())
    except OSError as error:
      self._warn(f'WARNING: the report {self._path} cannot be written: {error.strerror}')


def read_runs(path: str) -> List[Dict[str, Any]]:
  """Returns what a page was drawn from: one run, or several if it compares.

  Raises:
    UsageError: it cannot be read, or is no page of this kind.
  """
  try:
    with open(path, encoding='utf-8') as file:
      text = file.read()
    runs = [json.loads(found) for found in _DATA.findall(text)]
  except (OSError, ValueError) as error:
    raise UsageError('{} cannot be read: {}'.format(path,
                                                    getattr(error, 'strerror', None) or
                                                    error)) from None
  if not runs:
    raise UsageError(f'{path} is no page that --report has written')
  return runs


def find_versions() -> Dict[str, str]:
  """Returns what the run stands on, by name; TensorFlow must be imported."""
  import numpy

  from tensorflow_v1 import tf
  return dict(TensorFlow=tf.__version__, Python=platform.python_version(), numpy=numpy.__version__,
              system='%s, %d cores' % (platform.platform(), count_cores()), host=platform.node())


def format_page(names: Sequence[str], runs: Sequence[Dict[str, Any]]) -> str:
  """Returns the page of one run, or of several side by side.

  Args:
    names: what each is called.
    runs: as `read_runs` gives them.
  """
  title = ('{} on {}'.format(runs[0]['config']['model'], runs[0]['config']['data'])
           if len(runs) == 1 else ' and '.join(names))
  body = [f'<h1>{html.escape(title)}</h1>', '<p class="faint">{}</p>'.format(html.escape(
      _describe(runs[0]) if len(runs) == 1 else 'Settings and results that differ are bold.'))]
  body += ['<h2>Result</h2>', _table(names, [_results(run) for run in runs])]
  body += ['<h2>Curves</h2>', '<div class="charts">{}</div>'.format(''.join(_charts(names, runs)))]
  body += ['<h2>Time</h2>'] + [_times(names, runs)]
  for name, run in zip(names, runs):
    if run['warnings']:
      body += [f'<h2>Warnings{_of(name, runs)}</h2>', '<ul>{}</ul>'.format(''.join(
          f'<li>{html.escape(text)}</li>' for text in run['warnings']))]
  for name, run in zip(names, runs):
    body += [f'<h2>Devices, data and variables{_of(name, runs)}</h2>',
             '<pre>{}</pre>'.format(html.escape(run['description']))]
  body += ['<h2>Configuration</h2>', _table(names, [run['config'] for run in runs])]
  body += ['<h2>Versions</h2>', _table(names, [run['versions'] for run in runs])]
  for number, run in enumerate(runs):
    content = json.dumps(run).replace('<', '\\u003c')
    body.append('<script type="application/json" id="run-%d">%s</script>' % (number, content))
  return (
      '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
      'content="width=device-width"><title>{}</title><style>{}</style></head>\n<body>\n{}\n</body></html>\n'
      .format(html.escape(title), _STYLE, '\n'.join(body)))


def _describe(run):
  steps = [point['step'] for point in run['samples'] + run['validations']]
  if run['result'] is None:
    return 'not at its end: %s' % (f'step {max(steps):,}' if steps else 'no step was measured')
  return '{global_step:,} steps, {examples_seen:,} examples on {num_towers} towers'.format(**run[
      'result'])


def _results(run):
  if run['result'] is not None:
    return run['result']
  return run['validations'][-1] if run['validations'] else {}


def _charts(names, runs):
  """Returns the figures: training thin, validation with dots; one colour for each run, or for each
  of the two.
  """
  def curves(field, validation=None):
    found = []
    for number, (name, run) in enumerate(zip(names, runs)):
      colour = number if len(runs) > 1 else 0
      of = f' of {name}' if len(runs) > 1 else ''
      if field:
        found.append(Curve('training' + of, _points(run['samples'], field), colour))
      if validation:
        found.append(Curve('validation' + of, _points(run['validations'], validation),
                           colour if len(runs) > 1 else 1, has_dots=True))
    return found

  yield draw_chart('loss', curves('loss', 'loss'))
  metrics = dict.fromkeys(name for run in runs for point in run['validations'] for name in point)
  for metric in metrics:
    if metric not in ('step', 'loss'):
      yield draw_chart(metric, curves(None, metric))
  yield draw_chart('examples per second', curves('examples_per_second'), from_zero=True)
  yield draw_chart('share of time that waits for input', curves('input_wait'), from_zero=True)
  yield draw_chart('learning rate', curves('learning_rate'), from_zero=True)
  yield draw_chart('gradient norm', curves('gradient_norm'), from_zero=True)


def _points(entries, field):
  return [(entry['step'], entry[field]) for entry in entries if entry.get(field) is not None]


def _times(names, runs):
  """Returns a table of phases with a bar for each."""
  longest = max([seconds for run in runs for seconds in run['seconds'].values()] + [1e-3])
  rows = []
  for number, (name, run) in enumerate(zip(names, runs)):
    if len(runs) > 1:
      rows.append(f'<tr><th colspan="3">{html.escape(name)}</th></tr>')
    rows += ['<tr><td>%s</td><td>%.1f s</td><td><span class="bar c%d" style="width: '
             '%.0fpx"></span></td></tr>'
             % (html.escape(phase), seconds, number % NUM_COLOURS, 300 * seconds / longest)
             for phase, seconds in run['seconds'].items()]
  return '<table>{}</table>'.format(''.join(rows))


def _table(names, columns):
  """Returns a table with a row for each key, and a column for each run."""
  head = '<tr><th></th>{}</tr>'.format(''.join(
      '<th class="c%d">%s</th>' % (number % NUM_COLOURS, html.escape(name))
      for number, name in enumerate(names))) if len(names) > 1 else ''
  rows = []
  for key in dict.fromkeys(key for column in columns for key in column):
    cells = [_format_value(column.get(key)) for column in columns]
    rows.append('<tr{}><td>{}</td>{}</tr>'.format(
        ' class="differs"' if len(set(cells)) > 1 else '', html.escape(key),
        ''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)))
  return '<div class="wide"><table>{}{}</table></div>'.format(head, ''.join(rows))


def _format_value(value):
  if value is None:
    return '–'
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return ', '.join(map(_format_value, value)) if isinstance(value, (list, tuple)) else str(value)
  return f'{value:,}' if isinstance(value, int) else f'{value:,.6g}'


def _of(name, runs):
  return f' of {html.escape(name)}' if len(runs) > 1 else ''


def _without_nan(values):
  """Returns values without those that JSON has no word for."""
  return {
      name: value if value is None or math.isfinite(value) else None
      for name, value in values.items()
  }


def main(arguments: Optional[Sequence[str]] = None) -> int:
  """Writes a page that shows runs side by side; returns the exit code."""
  parser = argparse.ArgumentParser(description='Shows runs side by side.')
  parser.add_argument('pages', nargs='+', help='pages that --report has written')
  parser.add_argument('--output', required=True, help='page to write')
  given = parser.parse_args(arguments)
  try:
    for path in given.pages:
      check_local_path('pages', path)
    check_local_path('output', given.output)
    runs = [(os.path.splitext(os.path.basename(path))[0], run)
            for path in given.pages
            for run in read_runs(path)]
    write_whole(given.output, format_page(*zip(*runs)).encode())
  except UsageError as error:
    print(f'towers.training.reporting: error: {error}', file=sys.stderr)
    return 2
  except OSError as error:
    print(f'towers.training.reporting: error: {given.output} cannot be written: {error.strerror}',
          file=sys.stderr)
    return 2
  print('%d runs in %s' % (len(runs), given.output))
  return 0
