"""The loop: steps until the last one, and around them, when due, validation and checkpoints.

  start ─► warm up ─► train … train ─► validate ─► save ─► train … ─► validate ─► save ─► result
"""

import contextlib
from typing import Any, Dict, Iterator, NamedTuple, Optional

from data import BadRecords
from tensorflow_v1 import tf
from towers.plan import Plan
from training.checkpoints import Checkpoints
from training.config import Config, count_interval
from training.progress import Progress
from training.steps import Steps, ValidationPass
from usage_error import UsageError

# Of the planned examples: where more are damaged, it is rather the batch that is another.
_MOST_SKIPPED = 0.1


class Schedule(NamedTuple):
  """When a loop does what, counted in steps.

  Attributes:
    total_steps: weight updates in the whole run, those before a resume included.
    validate_every: steps between two passes over the validation split.
    save_every: steps between two checkpoints.
  """
  total_steps: int
  validate_every: int
  save_every: int


def build_schedule(config: Config, plan: Plan) -> Schedule:
  """Returns a config's schedule for the training split's plan."""
  return Schedule(
      total_steps=config.count_steps(plan.steps_per_epoch),
      validate_every=count_interval('validate_every', config.validate_every, plan.steps_per_epoch),
      save_every=count_interval('checkpoint_every', config.checkpoint_every, plan.steps_per_epoch))


def check_resume(path: str, *, step: int, examples_seen: int, plan: Plan, may_skip: bool = False) -> None:
  """Raises if a run cannot go on where a checkpoint stopped, since its steps were of other sizes.

  Where damaged records are skipped, a step sees fewer examples than it planned. Then up to a tenth fewer is taken for
  that, which also lets pass a batch that is larger by so little; a smaller one never passes.

  Raises:
    UsageError: names the counts and the fix.
  """
  planned = plan.examples_before(step)
  if planned != examples_seen and not (may_skip and (1 - _MOST_SKIPPED) * planned <= examples_seen < planned):
    message = ('The checkpoint %s has seen %d examples in %d steps, but with this data and batch_size=%d they would be '
               '%d: resume with the data, batch_size and drop_remainder that it was written with, or give another '
               'checkpoint_dir.' % (path, examples_seen, step, plan.batch_size, planned))
    if examples_seen < planned and not may_skip:
      message += ' If it skipped damaged records, resume with on_bad_record=skip.'
    raise UsageError(message)


@contextlib.contextmanager
def watch_records(bad_records: Optional[BadRecords], progress: Any) -> Iterator[None]:
  """While records are read: an error that a damaged one caused becomes the message that names it, and skipped ones are
  summed up at the end.

  Raises:
    UsageError: under the policy 'fail', instead of TensorFlow's error that a pipeline ended with.
  """
  try:
    yield
  except tf.errors.OpError:
    if bad_records is None or bad_records.failure is None:
      raise
    raise UsageError(bad_records.failure) from None
  finally:
    if bad_records is not None and bad_records.summary():
      progress.write(bad_records.summary())


class Outcome(NamedTuple):
  """What a loop ends with.

  Attributes:
    step: weight updates, all runs together.
    train_loss: the mean loss of the last step's global batch, or None where no step was left to run.
    validation: each metric's mean over the validation split at the end, or empty without validation.
    validation_examples: how many examples that was.
  """
  step: int
  train_loss: Optional[float]
  validation: Dict[str, float]
  validation_examples: int


def run_loop(steps: Steps, *, session: Any, schedule: Schedule, step: int, checkpoints: Optional[Checkpoints],
             progress: Progress) -> Outcome:
  """Trains to the last step.

  Args:
    steps: started at `step`.
    session: holds the variables that checkpoints save.
    schedule: when what is due.
    step: weight updates so far.
    checkpoints: saves when due, at the end and when the user interrupts, or None.
    progress: shows what happens.
  """
  loss = None
  running: Optional[ValidationPass] = None
  finished: Optional[ValidationPass] = None

  def finish(validation_pass):
    with progress.paused():
      steps.validate(validation_pass)
      progress.validation(step=validation_pass.step, metrics=validation_pass.means(),
                          examples=validation_pass.num_examples)
    return validation_pass

  def save():
    if checkpoints is not None:
      with progress.paused():
        checkpoints.save(session)

  try:
    while step < schedule.total_steps:
      loss = steps.train() if running is None else steps.train_and_validate(running)
      step += 1
      progress.step(step=step, loss=loss)

      is_last = step == schedule.total_steps
      if running is not None and (running.is_complete or is_last):
        finished, running = finish(running), None
      if steps.can_validate and running is None and (is_last or step % schedule.validate_every == 0):
        if steps.has_validation_tower and not is_last:
          running = steps.begin_pass(step)
        else:
          finished = finish(steps.begin_pass(step))
      if is_last or step % schedule.save_every == 0:
        save()
  except KeyboardInterrupt:
    save()
    raise

  if steps.can_validate and (finished is None or finished.step != step):
    finished = finish(steps.begin_pass(step))
  return Outcome(step=step, train_loss=None if loss is None else float(loss),
                 validation=finished.means() if finished is not None else {},
                 validation_examples=finished.num_examples if finished is not None else 0)
