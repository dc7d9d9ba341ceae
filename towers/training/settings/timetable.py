"""Timetables: after which steps a run validates, saves and ends.

The schedule of the learning rate is in `learning_rate`.
"""

from typing import NamedTuple, Optional

from towers.input.plan import Plan
from towers.training.settings.intervals import Interval, build_interval, count_steps, parse_interval


class Timetable(NamedTuple):
  """When a loop does what, counted in steps.

  Attributes:
    total_steps: weight updates in the whole run, those before a resume included.
    validate_every: between two passes over the validation split.
    save_every: between two checkpoints.
    save_seconds: seconds between two checkpoints, instead of steps.
    on_nan: what to do with a step whose loss or gradients are not finite: stop, skip or rollback.
  """
  total_steps: int
  validate_every: Interval
  save_every: Interval
  save_seconds: Optional[float] = None
  on_nan: str = 'stop'


def build_timetable(plan: Plan, *, epochs: Optional[float] = None, steps: Optional[int] = None,
                    validate_every: str = '1epoch', checkpoint_every: str = '1epoch',
                    on_nan: str = 'stop') -> Timetable:
  """Returns the timetable of a run over the training split; see `towers.train` for its settings."""
  total_steps = count_steps(plan, epochs=epochs, steps=steps)
  count, unit = parse_interval('checkpoint_every', checkpoint_every)
  if unit == 'seconds':
    save_every, save_seconds = Interval(total_steps), count
  else:
    save_every, save_seconds = build_interval('checkpoint_every', checkpoint_every, plan), None
  return Timetable(total_steps=total_steps,
                   validate_every=build_interval('validate_every', validate_every, plan),
                   save_every=save_every, save_seconds=save_seconds, on_nan=on_nan)
