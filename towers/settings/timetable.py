"""Timetable: how long a run is, and after which steps it validates, saves, samples and traces.

Users count in steps, epochs or seconds. The schedule of the learning rate is in `learning_rate`.
"""

import math
import re
from fractions import Fraction
from typing import Any, NamedTuple, Tuple, Union

from towers.base.usage_error import UsageError
from towers.input.plan import Plan
from towers.settings.table import SETTINGS

# No trace viewer opens many more.
_MOST_TRACED = 100


class Interval(NamedTuple):
  """How often a run does something: whenever its count of steps, or examples, passes a multiple."""
  every: Union[int, Fraction]  # Steps; or examples, where epochs do not end with a step.
  stride: int = 1  # That a step adds to the count.
  offset: int = 0  # The count at step 0.

  def is_due(self, step: int) -> bool:
    """Whether a multiple lies behind the step before this one, and not behind this one."""
    return self._count(step) > self._count(step - 1)

  def next(self, step: int) -> int:
    """Returns the next step that it is due after."""
    return math.ceil(((self._count(step) + 1) * self.every - self.offset) / self.stride)

  def _count(self, step):
    return (self.offset + step * self.stride) // self.every


class Timetable(NamedTuple):
  """When a loop does what, counted in steps."""
  total_steps: int  # Weight updates in the whole run, those before a resume included.
  validate_every: Interval  # Between two passes over the validation split.
  save_every: Interval  # Between two checkpoints.
  save_seconds: float = math.inf  # Between two checkpoints, instead of steps.


def parse_interval(name: str, given: Any) -> Tuple[float, str]:
  """Returns (2.0, 'epochs') from '2epochs'; a number alone counts steps; else a UsageError."""
  text = str(given)
  match = re.match(r'([0-9]{1,15}(?:\.[0-9]{1,15})?) ?(?:(step|epoch|second)s?)?\Z', text)
  unit = match and (match.group(2) or 'step')
  if not match or float(match.group(1)) == 0 or (unit == 'step' and '.' in match.group(1)):
    raise UsageError(f'{name}={text[:60]}: say how many, as 500steps, 2epochs or, for checkpoints, '
                     '600seconds.')
  return float(match.group(1)), f'{unit}s'


def build_interval(name: str, text: Any, plan: Plan) -> Interval:
  """Returns the interval, of at least 1 step, that '500steps', 500 or '2epochs' mean.

  Where the rest of an epoch is carried, an epoch's end is within a step: it is due after that.
  """
  count, unit = parse_interval(name, text)
  if unit == 'epochs' and plan.is_endless:
    if text != SETTINGS[name].default:
      raise UsageError(f'{name}={text}, and a stream has no epochs: count in steps, as 500steps.')
    return Interval(plan.num_examples)  # At the end of the run alone.
  if unit == 'epochs' and plan.carries:
    every = Fraction(count).limit_denominator(10 ** 15) * plan.num_examples
    return Interval(every, plan.batch_size, plan.offset)
  if unit == 'epochs':
    return Interval(max(1, round(count * plan.steps_per_epoch)),
                    offset=plan.offset // plan.batch_size)
  return Interval(round(count))


def parse_trace_steps(given: Any) -> Tuple[int, int]:
  """Returns (10, 12) from '10:12', or (10, 10) from 10; refuses others by a UsageError."""
  text = str(given)
  match = re.match(r'([0-9]{1,15})(?::([0-9]{1,15}))?\Z', text)
  first = int(match.group(1)) if match else 0
  last = int(match.group(2) or first) if match else 0
  if not 1 <= first <= last or last - first >= _MOST_TRACED:
    raise UsageError(f'trace_steps={text[:60]}: give the first and the last step to trace, as '
                     f'10:12, from 1 on and at most {_MOST_TRACED}.')
  return first, last


def build_timetable(settings: Any, plan: Plan) -> Timetable:
  """Returns the timetable of a run's settings over the training split."""
  timetable = Timetable(
      settings.count_steps(plan),
      validate_every=build_interval('validate_every', settings.validate_every, plan),
      save_every=build_interval('checkpoint_every', settings.checkpoint_every, plan))
  count, unit = parse_interval('checkpoint_every', settings.checkpoint_every)
  if unit != 'seconds':
    return timetable
  return timetable._replace(save_every=Interval(timetable.total_steps), save_seconds=count)
