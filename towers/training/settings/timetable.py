"""Schedules: what a run does after which step, and whether a resumed run counted steps the same."""

from typing import NamedTuple, Optional

from towers.base.usage_error import UsageError
from towers.input.plan import Plan
from towers.training.settings.intervals import Interval, build_interval, count_steps, parse_interval

# Of the planned examples. If more are missing, the batch was probably another.
_MOST_SKIPPED = 0.1


class Schedule(NamedTuple):
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


def build_schedule(plan: Plan, *, epochs: Optional[float] = None, steps: Optional[int] = None,
                   validate_every: str = '1epoch', checkpoint_every: str = '1epoch',
                   on_nan: str = 'stop') -> Schedule:
  """Returns the schedule of a run over the training split; see `towers.train` for its settings."""
  total_steps = count_steps(plan, epochs=epochs, steps=steps)
  count, unit = parse_interval('checkpoint_every', checkpoint_every)
  if unit == 'seconds':
    save_every, save_seconds = Interval(total_steps), count
  else:
    save_every, save_seconds = build_interval('checkpoint_every', checkpoint_every, plan), None
  return Schedule(total_steps=total_steps,
                  validate_every=build_interval('validate_every', validate_every, plan),
                  save_every=save_every, save_seconds=save_seconds, on_nan=on_nan)


def check_resume(path: str, *, step: int, examples_seen: int, plan: Plan,
                 may_skip: bool = False, was_carried: bool = False) -> None:
  """Raises if a checkpoint was written with steps of another size.

  A step that skips damaged records sees fewer examples than planned. `may_skip` therefore accepts
  up to a tenth fewer, which also accepts a batch that is larger by so little, and never a smaller
  one. A run with last_batch=carry goes on with any batch size where one `was_carried`; and where
  last_batch=keep had come, which has taken the examples in the same order.

  Raises:
    UsageError: names the counts and the fix.
  """
  if plan.carries and was_carried:
    return
  was = plan._replace(last_batch='keep') if plan.carries else plan
  planned = was.examples_before(step)
  if examples_seen == planned:
    return
  if may_skip and (1 - _MOST_SKIPPED) * planned <= examples_seen < planned:
    return
  message = (f'The checkpoint {path} has seen {examples_seen} examples in {step} steps, but with '
             f'this data and batch_size={plan.batch_size} they would be {planned}: resume with the '
             'data, batch_size and last_batch that it was written with, or give another '
             'checkpoint_dir.')
  if was_carried and not plan.carries:
    message += ' It was written with last_batch=carry.'
  if examples_seen < planned and not may_skip:
    message += ' If it skipped damaged records, resume with on_bad_record=skip.'
  raise UsageError(message)
