"""Page: one run, or several side by side, as HTML that loads nothing from elsewhere.

A run is a dict, and the page embeds it as JSON, from which `read_runs` gets it back:

  config        settings by name; a page is titled by `model` and `data`, if they are there
  description   some lines: devices, data, batches, model, variables
  versions      of packages, by name; and host, date and command
  warnings      texts
  seconds       of each phase, by name
  samples       measured steps: step, loss, learning_rate, …
  validations   step, loss and the other metrics
  result        what the run returned, or None while it is not complete

  python -m towers report first.html second.html --output=both.html     side by side
"""

import argparse
import html
import os
import re
from typing import Any, Dict, List, Sequence

from towers.base.files import write_whole
from towers.base.json_files import read_text, seal, unseal
from towers.base.output import write_line
from towers.base.paths import check_local_path
from towers.base.usage_error import UsageError
from towers_tools.chart import NUM_COLOURS, Curve, draw_chart

_POINTS = [{'step': int, str: (float, None)}]
_SCHEMA = dict(config={str: object}, description=str, versions={str: str}, warnings=[str],
               seconds={str: float}, samples=_POINTS, validations=_POINTS,
               result=({'global_step': int, 'examples_seen': int, 'num_towers': int, str: object},
                       None))
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
''' + ''.join(f'.c{index} {{ color: var(--c{index}); }}\n' for index in range(NUM_COLOURS))


def format_page(names: Sequence[str], runs: Sequence[Dict[str, Any]]) -> str:
  """Returns the page of one run, or of several side by side."""
  title = html.escape(_title(names, runs))
  summary = 'Bold settings and results differ.' if len(runs) > 1 else _summarize(runs[0])
  body = [f'<h1>{title}</h1>', f'<p class="faint">{html.escape(summary)}</p>']

  body += ['<h2>Result</h2>', _format_table(names, [_find_result(run) for run in runs])]
  body += ['<h2>Curves</h2>', f'<div class="charts">{"".join(_draw_charts(names, runs))}</div>']
  body += ['<h2>Time</h2>', _format_times(names, runs)]
  for name, run in zip(names, runs):
    if run['warnings']:
      items = ''.join(f'<li>{html.escape(text)}</li>' for text in run['warnings'])
      body += [f'<h2>Warnings{_of(name, runs)}</h2>', f'<ul>{items}</ul>']
  for name, run in zip(names, runs):
    body += [f'<h2>Devices, data and variables{_of(name, runs)}</h2>',
             f"<pre>{html.escape(run['description'])}</pre>"]
  body += ['<h2>Configuration</h2>', _format_table(names, [run['config'] for run in runs])]
  body += ['<h2>Versions, host and command</h2>',
           _format_table(names, [run['versions'] for run in runs])]

  for index, run in enumerate(runs):
    content = seal(run).replace('<', '\\u003c')
    body.append(f'<script type="application/json" id="run-{index}">{content}</script>')
  head = ('<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
          f'<title>{title}</title><style>{_STYLE}</style>')
  return '\n'.join(['<!DOCTYPE html>', f'<html lang="en"><head>{head}</head>', '<body>', *body,
                    '</body></html>', ''])


def read_runs(path: str) -> List[Dict[str, Any]]:
  """Returns the runs of a page: one, or several if it compares them.

  Raises:
    UsageError: the file cannot be read, or is no such page.
  """
  try:
    runs = [unseal(content, _SCHEMA) for content in _DATA.findall(read_text(path))]
  except (OSError, ValueError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise UsageError(f'{path} cannot be read: {reason}') from None
  if not runs:
    raise UsageError(f'{path} is not a page that --report wrote')
  try:
    for run in runs:
      format_page([''], [run])
  except Exception as error:
    # What fails, and how, depends on what another program left out.
    raise UsageError(f'{path} is no page that --report of this version wrote: '
                     f'{type(error).__name__}: {str(error)[:100]}') from None
  return runs


def _title(names, runs):
  if len(runs) > 1:
    return ' and '.join(names)
  settings = runs[0]['config']
  if settings.get('model') and settings.get('data'):
    return f"{settings['model']} on {settings['data']}"
  return names[0]


def _summarize(run):
  result = run['result']
  if result is not None:
    return (f"{result['global_step']:,} steps, {result['examples_seen']:,} examples on "
            f"{result['num_towers']} tower{'' if result['num_towers'] == 1 else 's'}")
  steps = [point['step'] for point in run['samples'] + run['validations']]
  return f'not complete: step {max(steps):,}' if steps else 'not complete: no step was measured'


def _find_result(run):
  if run['result'] is not None:
    return run['result']
  return run['validations'][-1] if run['validations'] else {}


def _draw_charts(names, runs):
  """Yields figures: training as a thin line, validation with dots, a colour for each run.

  A single run has two colours, one for each of its curves.
  """
  is_alone = len(runs) == 1

  def draw(title, training=None, validation=None, from_zero=True):
    curves = []
    for index, (name, run) in enumerate(zip(names, runs)):
      of_run = '' if is_alone else f' of {name}'
      if training:
        curves.append(Curve('training' + of_run, _points(run['samples'], training), index))
      if validation:
        curves.append(Curve('validation' + of_run, _points(run['validations'], validation),
                            1 if is_alone else index, has_dots=True))
    return draw_chart(title, curves, from_zero=from_zero)

  yield draw('loss', training='loss', validation='loss', from_zero=False)
  metrics = dict.fromkeys(name for run in runs for point in run['validations'] for name in point)
  for metric in metrics:
    if metric not in ('step', 'loss'):
      yield draw(metric, validation=metric, from_zero=False)
  yield draw('examples per second', training='examples_per_second')
  yield draw('share of time that waits for input', training='input_wait')
  for rate in sorted({name for run in runs for sample in run['samples'] for name in sample
                      if name.startswith('learning_rate')}):
    yield draw(rate.replace('_', ' ', 1), training=rate)
  yield draw('gradient norm', training='gradient_norm')


def _points(entries, field):
  return [(entry['step'], entry[field]) for entry in entries if entry.get(field) is not None]


def _format_times(names, runs):
  """Returns a table of phases with a bar for each."""
  longest = max([seconds for run in runs for seconds in run['seconds'].values()] + [1e-3])
  rows = []
  for index, (name, run) in enumerate(zip(names, runs)):
    if len(runs) > 1:
      rows.append(f'<tr><th colspan="3">{html.escape(name)}</th></tr>')
    for phase, seconds in run['seconds'].items():
      bar = (f'<span class="bar c{index % NUM_COLOURS}" '
             f'style="width: {300 * seconds / longest:.0f}px"></span>')
      rows.append(f'<tr><td>{html.escape(phase)}</td><td>{seconds:.1f} s</td><td>{bar}</td></tr>')
  return f'<table>{"".join(rows)}</table>'


def _format_table(names, columns):
  """Returns a table with a row for each key, and a column for each run."""
  head = ''
  if len(names) > 1:
    cells = [f'<th class="c{index % NUM_COLOURS}">{html.escape(name)}</th>'
             for index, name in enumerate(names)]
    head = f'<tr><th></th>{"".join(cells)}</tr>'
  rows = []
  for key in dict.fromkeys(key for column in columns for key in column):
    values = [_format_value(column.get(key)) for column in columns]
    cells = [f'<td>{html.escape(text)}</td>' for text in [key] + values]
    differs = ' class="differs"' if len(set(values)) > 1 else ''
    rows.append(f'<tr{differs}>{"".join(cells)}</tr>')
  return f'<div class="wide"><table>{head}{"".join(rows)}</table></div>'


def _format_value(value):
  if value is None:
    return '–'
  if isinstance(value, (list, tuple)):
    return ', '.join(map(_format_value, value))
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return str(value)
  return f'{value:,}' if isinstance(value, int) else f'{value:,.6g}'


def _of(name, runs):
  return f' of {html.escape(name)}' if len(runs) > 1 else ''


def main(arguments: Sequence[str]) -> None:
  """Runs a command line."""
  parser = argparse.ArgumentParser(prog='python -m towers report',
                                   description='Shows runs side by side.')
  parser.add_argument('pages', nargs='+', help='pages that --report wrote')
  parser.add_argument('--output', required=True, help='page to write')
  given = parser.parse_args(arguments)
  for path in given.pages:
    check_local_path('pages', path)
  check_local_path('output', given.output)

  names, runs = [], []
  for path in given.pages:
    for run in read_runs(path):
      names.append(os.path.splitext(os.path.basename(path))[0])
      runs.append(run)
  try:
    write_whole(given.output, format_page(names, runs).encode())
  except OSError as error:
    raise UsageError(f'{given.output} cannot be written: {error.strerror}') from None
  write_line(f'{len(runs)} runs in {given.output}')
