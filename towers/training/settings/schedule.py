"""Schedules: what a run does in which step, and whether a run that goes on had the same."""

from typing import NamedTuple, Optional

from towers.base.usage_error import UsageError
from towers.input.plan import Plan
from towers.training.settings.config import Config, count_interval, parse_interval

# Of the planned examples: where more are damaged, it is rather the batch that is another.
_MOST_SKIPPED = 0.1


class Schedule(NamedTuple):
  """When a loop does what, counted in steps.

  Attributes:
    total_steps: weight updates in the whole run, those before a resume included.
    validate_every: steps between two passes over the validation split.
    save_every: steps between two checkpoints.
    save_seconds: seconds between two checkpoints, instead of steps.
    on_nan: what to do with a step whose loss or gradients are not finite: stop, skip or rollback.
  """
  total_steps: int
  validate_every: int
  save_every: int
  save_seconds: Optional[float] = None
  on_nan: str = 'stop'


def build_schedule(config: Config, plan: Plan) -> Schedule:
  """Returns a config's schedule for the training split's plan."""
  total_steps = config.count_steps(plan.steps_per_epoch)
  number, unit = parse_interval('checkpoint_every', config.checkpoint_every)
  by_the_clock = unit == 'seconds'
  return Schedule(
      total_steps=total_steps,
      validate_every=count_interval('validate_every', config.validate_every, plan.steps_per_epoch),
      save_every=(total_steps if by_the_clock else count_interval(
          'checkpoint_every', config.checkpoint_every, plan.steps_per_epoch)),
      save_seconds=number if by_the_clock else None, on_nan=config.on_nan)


def check_resume(path: str, *, step: int, examples_seen: int, plan: Plan,
                 may_skip: bool = False) -> None:
  """Raises if a run cannot go on where a checkpoint stopped, since its steps were of other sizes.

  Where damaged records are skipped, a step sees fewer examples than it planned. Then up to a tenth
  fewer is taken for that, which also lets pass a batch that is larger by so little; a smaller one
  never passes.

  Raises:
    UsageError: names the counts and the fix.
  """
  planned = plan.examples_before(step)
  if planned != examples_seen and not (may_skip and
                                       (1 - _MOST_SKIPPED) * planned <= examples_seen < planned):
    message = (f'The checkpoint {path} has seen {examples_seen} examples in {step} steps, but with '
               f'this data and batch_size={plan.batch_size} they would be {planned}: resume '
               'with the data, batch_size and drop_remainder that it was written with, or give '
               'another checkpoint_dir.')
    if examples_seen < planned and not may_skip:
      message += ' If it skipped damaged records, resume with on_bad_record=skip.'
    raise UsageError(message)
