"""The loop: steps until the last one, and around them, when due, validation and checkpoints.

  start ─► warm up ─► train … train ─► validate ─► save ─► train … ─► validate ─► save ─► result
"""

from typing import Any, Dict, NamedTuple, Optional

from training.checkpoints import Checkpoints
from training.steps import Steps, ValidationPass


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


def run_loop(steps: Steps, *, session: Any, schedule: Schedule, step: int, has_validation: bool,
             validates_aside: bool, checkpoints: Optional[Checkpoints], progress: Any) -> Outcome:
  """Trains to the last step.

  Args:
    steps: started at `step`.
    session: holds the variables that checkpoints save.
    schedule: when what is due.
    step: weight updates so far.
    has_validation: measure the validation split, when due and at the end.
    validates_aside: a tower of its own measures while the others train.
    checkpoints: saves when due and at the end, or None.
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

  while step < schedule.total_steps:
    if running is None:
      loss = steps.train()
    else:
      loss = steps.train_and_validate(running)
    step += 1
    progress.step(step=step, loss=loss)

    is_last = step == schedule.total_steps
    if running is not None and (running.is_complete or is_last):
      finished, running = finish(running), None
    if has_validation and (is_last or step % schedule.validate_every == 0) and running is None:
      if validates_aside and not is_last:
        running = steps.begin_pass(step)
      else:
        finished = finish(steps.begin_pass(step))
    if checkpoints is not None and (is_last or step % schedule.save_every == 0):
      with progress.paused():
        checkpoints.save(session, step)

  if has_validation and (finished is None or finished.step != step):
    finished = finish(steps.begin_pass(step))
  return Outcome(step=step, train_loss=None if loss is None else float(loss),
                 validation=finished.means() if finished is not None else {},
                 validation_examples=finished.num_examples if finished is not None else 0)
