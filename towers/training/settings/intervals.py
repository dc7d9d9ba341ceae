"""Intervals: how long a run is, and how often it does something: in steps, epochs or seconds."""

import re
from typing import Optional, Tuple

from towers.base.usage_error import UsageError

_DEFAULT_EPOCHS = 5.0
# No trace viewer opens many more.
_MOST_TRACED = 100


def count_steps(steps_per_epoch: int, *, epochs: Optional[float] = None,
                steps: Optional[int] = None) -> int:
  """Returns a run's weight updates, at least 1: `steps`, or else `epochs`, which are 5 if None."""
  if steps is not None:
    return steps
  return max(1, round((_DEFAULT_EPOCHS if epochs is None else epochs) * steps_per_epoch))


def parse_interval(name: str, text: str) -> Tuple[float, str]:
  """Returns (2.0, 'epochs') from '2epochs'; a number alone counts steps.

  Raises:
    UsageError: `text` is no positive number of steps, epochs or seconds; names the setting.
  """
  match = re.match(r'([0-9]{1,15}(?:\.[0-9]{1,15})?) ?(?:(step|epoch|second)s?)?\Z', text)
  unit = match and (match.group(2) or 'step')
  if not match or float(match.group(1)) == 0 or (unit == 'step' and '.' in match.group(1)):
    raise UsageError(f'{name}={text[:60]}: say how many, as 500steps, 2epochs or, for checkpoints, '
                     '600seconds.')
  return float(match.group(1)), f'{unit}s'


def count_interval(name: str, text: str, steps_per_epoch: int) -> int:
  """Returns the steps, at least 1, of an interval such as '500steps' or '2epochs'."""
  count, unit = parse_interval(name, text)
  return max(1, round(count * (steps_per_epoch if unit == 'epochs' else 1)))


def parse_trace_steps(text: str) -> Tuple[int, int]:
  """Returns (10, 12) from '10:12', or (10, 10) from '10'.

  Raises:
    UsageError: `text` is no range of steps, or one of too many.
  """
  match = re.match(r'([0-9]{1,15})(?::([0-9]{1,15}))?\Z', text)
  first = int(match.group(1)) if match else 0
  last = int(match.group(2) or first) if match else 0
  if not 1 <= first <= last or last - first >= _MOST_TRACED:
    raise UsageError(f'trace_steps={text[:60]}: give the first and the last step to trace, as '
                     f'10:12, from 1 on and at most {_MOST_TRACED}.')
  return first, last
