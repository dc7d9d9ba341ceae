"""The table of `benchmarks.step`, and the check that all kinds compute the same."""

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

OURS, ONE_TOWER = 'towers', 'one tower'
# They allow for sums in another order; faults exceed them by far.
_LOSS_TOLERANCE = 1e-4
_WEIGHT_TOLERANCE = 1e-2
# Floor of a movement's scale, as a share of the largest movement of any variable.
_LEAST_MOVEMENT = 1e-3
_HEAD = '  %-19s %-26s %-21s %9s %9s %7s' % ('', 'ms a step', 'of ours', 'CPU ms', 'set-up s', 'MB')


def find_disagreements(kinds: Dict[str, Dict[str, Any]]) -> List[str]:
  """Returns, in words, which losses and weights of the others differ from ours.

  Args:
    kinds: 'mean_losses' and 'weights' of each, see `processes.StepProcess`.
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
    differing = ', '.join(sorted(set(weights) ^ set(expected))[:3])
    return [f'{kind}: other variables than ours: {differing}']
  least = _LEAST_MOVEMENT * max(length for length, _ in expected.values())
  for name, (length, along) in sorted(expected.items()):
    for what, value, ours in (('has moved by', weights[name][0], length),
                              ('has moved in a random direction by', weights[name][1], along)):
      if not abs(value - ours) <= _WEIGHT_TOLERANCE * max(length, least):
        return [f'{kind}: {name} {what} {value:.5g}, not {ours:.5g}']
  return []


def ratios(line: Dict[str, Any], kind: str) -> List[float]:
  """Returns how many times as long as ours a step of this kind takes, in each round."""
  return [other / ours for other, ours in zip(line['kinds'][kind]['milliseconds'],
                                              line['kinds'][OURS]['milliseconds'])]


def spread(values: Sequence[float]) -> Tuple[float, float, float]:
  """Returns the median, and the quartiles below and above it."""
  low, middle, high = np.percentile(values, [25, 50, 75])
  return float(middle), float(low), float(high)


def format_spread(values: Sequence[float], form: str) -> str:
  """Returns '1.02 (0.98 to 1.05)': median and quartiles, each in the %-format `form`."""
  return f'{form} ({form} to {form})' % spread(values)


def format_machine(machine: Dict[str, str]) -> str:
  """Returns the line above all tables."""
  return '{processor}, {cores} cores, {system}, commit {commit}'.format(**machine)


def format_line(line: Dict[str, Any]) -> str:
  """Returns a table: a row for each kind, then the conclusions."""
  versions = ', '.join(f'{name} {version}' for name, version in sorted(line['versions'].items()))
  rows = [f"{line['net']}, {line['num_towers']} towers of {line['batch_size']}, {versions}", _HEAD]
  for kind, figures in line['kinds'].items():
    has_ratios = OURS in line['kinds'] and kind != OURS
    of_ours = format_spread(ratios(line, kind), '%.2f') if has_ratios else '1'
    cpu_milliseconds = f"{spread(figures['cpu_milliseconds'])[0]:.4g}"
    rows.append(f"  {kind:19} {format_spread(figures['milliseconds'], '%.4g'):26} {of_ours:21} "
                f"{cpu_milliseconds:>9} {figures['setup_seconds']:9.1f} "
                f"{figures['peak_bytes'] / 1e6:7.0f}")
  rows += [f'  {kind:19} {reason}' for kind, reason in line['absent'].items()]
  rows += [f'  {kind:19} FAILED: {reason}' for kind, reason in line['failed'].items()]
  rows += ['  ' + row for row in _conclude(line)]
  return '\n'.join(rows)


def _conclude(line):
  kinds = line['kinds']
  if OURS not in kinds:
    return []
  rows = []
  others = [kind for kind in kinds if kind not in (OURS, ONE_TOWER)]
  if others:
    best = min(others, key=lambda kind: spread(ratios(line, kind))[0])
    rows.append(f'the fastest other, {best}, takes {format_spread(ratios(line, best), "%.2f")} '
                'times as long as ours')
  if ONE_TOWER in kinds:
    num_towers = line['num_towers']
    pairs = zip(kinds[OURS]['milliseconds'], kinds[ONE_TOWER]['milliseconds'])
    of_one = format_spread([towers / (num_towers * one) for towers, one in pairs], '%.2f')
    rows.append(f'{num_towers} towers take {of_one} times as long as {num_towers} steps of one '
                'tower')
  if others and line['disagreements'] is None:
    rows.append('losses and weights are not compared: no time')
  elif others:
    rows += ['DISAGREES: ' + what for what in line['disagreements']] or [
        f"losses of {len(kinds[OURS]['mean_losses'])} steps and movements of "
        f"{len(kinds[OURS]['weights'])} variables agree"]
  return rows
