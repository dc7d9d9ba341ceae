"""The table of steps: what is told of the figures of `benchmarks.step`, and whether they may be
compared at all.
"""

import os
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from towers.training.reporting.chart import Curve, write_chart

OURS, ONE_TOWER, AUTOTUNED = 'towers', 'one tower', 'towers --autotune'
# Sums are added up in another order; what is wrong is wrong by far more.
_LOSS_TOLERANCE = 1e-4
_WEIGHT_TOLERANCE = 1e-2
# A variable that moves less than this part of what the one that moves most does is held to this
# part.
_LEAST_MOVEMENT = 1e-3
_HEAD = '  %-19s %-26s %-21s %9s %9s %7s' % ('', 'ms a step', 'of ours', 'CPU ms', 'set-up s', 'MB')


def find_disagreements(kinds: Dict[str, Dict[str, Any]]) -> List[str]:
  """Returns what of the losses and weights of others is not as ours, in words; nothing if they have
  computed the same.

  Args:
    kinds: for each its 'mean_losses' and 'weights', see `player.BenchmarkProcess`.
  """
  found = []
  expected = kinds.get(OURS)
  for kind, figures in kinds.items():
    if expected is None or kind in (OURS, ONE_TOWER):
      continue
    for step, (loss, ours) in enumerate(zip(figures['mean_losses'], expected['mean_losses'])):
      if not abs(loss - ours) <= _LOSS_TOLERANCE * abs(ours):
        found.append(f'{kind}: the mean loss of {step + 1} steps is {loss:.7g}, not {ours:.7g}')
        break
    found += _compare_weights(kind, figures['weights'], expected['weights'])
  return found


def _compare_weights(kind, weights, expected):
  if set(weights) != set(expected):
    return [f"{kind}: other variables than ours: "
            f"{', '.join(sorted(set(weights) ^ set(expected))[:3])}"]
  least = _LEAST_MOVEMENT * max(length for length, _ in expected.values())
  for name, (length, along) in sorted(expected.items()):
    for what, value, ours in (('has moved by', weights[name][0], length),
                              ('has moved in a random direction by', weights[name][1], along)):
      if not abs(value - ours) <= _WEIGHT_TOLERANCE * max(length, least):
        return [f'{kind}: {name} {what} {value:.5g}, not {ours:.5g}']
  return []


def ratios(line: Dict[str, Any], kind: str) -> List[float]:
  """Returns in each round how long a step of this kind takes while ours takes 1."""
  kinds = line['kinds']
  return [other / ours for other, ours in zip(kinds[kind]['milliseconds'], kinds[OURS][
      'milliseconds'])]


def spread(values: Sequence[float]) -> Tuple[float, float, float]:
  """Returns the median, and the quartiles below and above it."""
  low, middle, high = np.percentile(values, [25, 50, 75])
  return float(middle), float(low), float(high)


def format_spread(values: Sequence[float], form: str) -> str:
  """Returns '1.02 (0.98 to 1.05)', each number in this form."""
  return f'{form} ({form} to {form})' % spread(values)


def format_machine(machine: Dict[str, str]) -> str:
  """Returns the line above all tables."""
  return '{processor}, {cores} cores, {system}, commit {commit}'.format(**machine)


def format_line(line: Dict[str, Any]) -> str:
  """Returns a table: a row for each kind, and what follows from them."""
  rows = ['{net}, {num_towers} towers of {batch_size}, '.format(**line) + ', '.join(
      '{} {}'.format(*item) for item in sorted(line['versions'].items())), _HEAD]
  for kind, figures in line['kinds'].items():
    rows.append('  %-19s %-26s %-21s %9s %9.1f %7.0f' %
                (kind, format_spread(figures['milliseconds'], '%.4g'),
                 format_spread(ratios(line, kind), '%.2f') if OURS in line['kinds'] and kind != OURS
                 else '1', '{:.4g}'.format(spread(figures['cpu_milliseconds'])[0]),
                 spread(figures['setup_seconds'])[0], figures['peak_bytes'] / 1e6))
  rows += ['  %-19s %s' % item for item in line['absent'].items()]
  rows += ['  %-19s FAILED: %s' % item for item in line['failed'].items()]
  rows += ['  ' + row for row in _conclude(line)]
  return '\n'.join(rows)


def _conclude(line):
  kinds = line['kinds']
  if OURS not in kinds:
    return []
  rows = []
  others = [kind for kind in kinds if kind not in (OURS, ONE_TOWER, AUTOTUNED)]
  if others:
    best = min(others, key=lambda kind: spread(ratios(line, kind))[0])
    rows.append('the fastest other, {}, takes {} times as long as ours'.format(
        best, format_spread(ratios(line, best), '%.2f')))
    if AUTOTUNED in kinds:
      pairs = zip(kinds[best]['milliseconds'], kinds[AUTOTUNED]['milliseconds'])
      settings = ' '.join(
          '--{}={}'.format(*item) for item in sorted(kinds[AUTOTUNED]['settings'].items()))
      rows.append('and {} times as long as ours with {}'.format(
          format_spread([other / ours for other, ours in pairs], '%.2f'), settings or 'no settings '
                                                                                      'of its own'))
  if ONE_TOWER in kinds:
    pairs = zip(kinds[OURS]['milliseconds'], kinds[ONE_TOWER]['milliseconds'])
    rows.append('%d towers take %s times as long as %d steps of one tower' %
                (line['num_towers'],
                 format_spread([towers / (line['num_towers'] * one) for towers, one in pairs],
                               '%.2f'), line['num_towers']))
  if others:
    rows += ['DISAGREES: ' + what for what in line['disagreements']] or [
        f"losses of {len(kinds[OURS]['mean_losses'])} steps agree, and how far they have moved "
        f"{len(kinds[OURS]['weights'])} variables"]
  return rows


def draw_lines(lines: Sequence[Dict[str, Any]], path: str) -> List[str]:
  """Draws how long the others' steps take while ours take 1, over towers; returns the files' names.

  Args:
    lines: of all models and versions.
    path: of the files, whose names also tell the model and the version.
  """
  pictures: Dict[Tuple[str, str], Dict[str, List[Tuple[float, float]]]] = {}
  for line in lines:
    others = [kind for kind in line['kinds'] if kind not in (OURS, ONE_TOWER)]
    if OURS in line['kinds'] and others:
      curves = pictures.setdefault((line['net'], line['versions']['TensorFlow']), {})
      for kind in others:
        curves.setdefault(kind, []).append((float(line['num_towers']), spread(ratios(line,
                                                                                     kind))[0]))
  stem, ending = os.path.splitext(path)
  written = []
  for (net, version), points in pictures.items():
    written.append(f'{stem}_{net}_{version}{ending}')
    write_chart(written[-1], f'A step of {net} on TensorFlow {version}, while ours takes 1',
                [Curve(kind, sorted(its_points), number, has_dots=True)
                 for number, (kind, its_points) in enumerate(points.items())], x_label='towers')
  return written
