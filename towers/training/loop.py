"""The loop: steps until the last one, with validations and checkpoints between them when due.

  start ─► warm up ─► train … train ─► validate ─► save ─► train … ─► validate ─► save ─► result

What happens between two steps follows from the step and the history alone. So a run may end
anywhere, by a signal, a fault or `kill -9`, and the next one does the rest.
"""

import contextlib
import os
import signal
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Union

from tensorflow_v1 import tf
from towers.base.files import write_whole
from towers.base.reason import is_about_room
from towers.base.usage_error import UsageError
from towers.data import BadRecords
from towers.placement.counters import get_global_step
from towers.training.faults.run_error import RunError
from towers.training.faults.signals import Interrupted, Signals
from towers.training.reporting.progress import Progress
from towers.training.saving.checkpoints import Checkpoints, ChiefsCheckpoints
from towers.training.saving.history import HISTORY, MOST_ROLLBACKS, History
from towers.training.settings.schedule import Schedule
from towers.training.stepping.not_finite import NotFinite
from towers.training.stepping.steps import Steps
from towers.training.stepping.validation_pass import ValidationPass

# So many steps in a row that are not finite are no accident.
MOST_SKIPPED_IN_A_ROW = 10


@contextlib.contextmanager
def watch_records(bad_records: Optional[BadRecords], progress: Any) -> Iterator[None]:
  """Turns a pipeline's error into one that names the damaged record; sums up skipped ones.

  Raises:
    UsageError: under the policy 'fail', in place of TensorFlow's error.
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


class LoopEnd(NamedTuple):
  """The result of a loop.

  Attributes:
    step: weight updates, those before a resume included.
    train_loss: the mean loss of the last step's global batch, or None if no step was left.
    validation: each metric's mean over the validation split at the end; empty without validation.
    validation_examples: how many examples these means are over.
  """
  step: int
  train_loss: Optional[float]
  validation: Dict[str, float]
  validation_examples: int


def run_loop(steps: Steps, *, session: Any, schedule: Schedule,
             checkpoints: Union[Checkpoints, ChiefsCheckpoints, None], progress: Progress,
             history: Optional[History] = None, signals: Optional[Signals] = None,
             unwatched: Callable[[], Any] = contextlib.suppress,
             clock: Callable[[], float] = time.monotonic) -> LoopEnd:
  """Trains to the last step, or until validations no longer improve.

  Args:
    steps: started.
    session: holds the variables that checkpoints save.
    schedule: when to validate and to save, and when to end.
    checkpoints: saves when due and at the end, or None.
    progress: shows the steps and validations.
    history: up to the step at which `steps` start; empty if None.
    signals: once its `received` is set, the run saves and exits; or None.
    unwatched: opens a context that no watchdog times.
    clock: returns seconds.

  Raises:
    Interrupted: a signal came, and the run has saved.
    RunError: a step was not finite, or a checkpoint could not be written, and the settings say to
      stop then.
  """
  loop = _Loop(steps, session, schedule, checkpoints, progress, history or History(), signals,
               unwatched, clock)
  try:
    return loop.run()
  finally:
    if checkpoints is not None:
      with unwatched():
        checkpoints.close()


class _Loop:
  """The state of a loop: the current pass over the validation split, and the last one."""

  def __init__(self, steps, session, schedule, checkpoints, progress, history, signals, unwatched,
               clock):
    self._steps, self._session, self._schedule = steps, session, schedule
    self._checkpoints, self._progress, self._history = checkpoints, progress, history
    self._signals, self._unwatched, self._clock = signals, unwatched, clock
    self._running: Optional[ValidationPass] = None
    self._finished: Optional[ValidationPass] = None
    self._has_news = False  # The history has a validation that no checkpoint was written with.
    self._loss = None
    self._skipped: List[int] = []
    self._leaves = False
    self._due = 0  # The next step after which something is scheduled.

  def run(self) -> LoopEnd:
    """Trains to the end; see `run_loop`."""
    steps, schedule, clock = self._steps, self._schedule, self._clock
    save_at = float('inf') if schedule.save_seconds is None else clock() + schedule.save_seconds
    if schedule.on_nan == 'rollback' and not self._has_saved():
      self._save()

    is_over = self._between_steps()
    while not is_over:
      try:
        loss = steps.train() if self._running is None else steps.train_and_validate(self._running)
        self._loss = loss
      except NotFinite:
        loss = self._handle_not_finite()
      self._progress.step(step=steps.step, loss=loss)
      if self._has_something_to_do():
        is_over = self._between_steps()
      if steps.agree('save', clock() >= save_at):
        if self._running is not None:
          self._finish_pass()
        self._save()
        save_at = clock() + schedule.save_seconds if schedule.save_seconds else save_at

    if steps.can_validate and (self._finished is None or self._finished.step != steps.step):
      self._begin_pass()
      self._finish_pass()
    self._leave_if_asked()
    finished = self._finished
    return LoopEnd(step=steps.step, train_loss=None if self._loss is None else float(self._loss),
                   validation=finished.means() if finished is not None else {},
                   validation_examples=finished.num_examples if finished is not None else 0)

  def _has_something_to_do(self):
    """Whether to call `_between_steps`.

    The only check after every step, and so a short one: meanwhile all threads of the session wait,
    and would soon sleep.
    """
    return (self._running is not None or self._steps.step >= self._due or self._is_to_leave() or
            (self._checkpoints is not None and bool(self._checkpoints.error)))

  def _between_steps(self) -> bool:
    """Validates and saves if due and not done yet; returns whether the run is over."""
    steps, schedule, step = self._steps, self._schedule, self._steps.step
    self._due = self._next_due(step)
    self._leave_if_asked()
    is_last = step >= schedule.total_steps

    is_saved = self._has_saved()
    saves = not is_saved and (is_last or step % schedule.save_every == 0) and step > 0
    # A pass ends before a checkpoint, since a run that resumes there could not continue it.
    if self._running is not None and (self._running.is_complete or is_last or saves):
      self._finish_pass()
    if (steps.can_validate and self._running is None and step > 0 and
        (is_last or step % schedule.validate_every == 0) and not self._history.has_validated(step)):
      self._begin_pass()
      if not steps.has_validation_tower or is_last or saves:
        self._finish_pass()

    is_over = is_last or self._history.has_stopped
    if is_over and not is_last:
      self._progress.write('stopped early: no validation was better than '
                           f'{self._history.describe_best()}')
    # A run that resumes at its last step has saved that, but not the validation that it missed.
    if (saves or is_over) and (self._has_news or not self._has_saved()):
      self._save()
    if is_over:
      self._steps.check_replicas()
      self._check_saved(step)
    return is_over

  def _next_due(self, step):
    """Returns the next step after which the run validates, saves or ends."""
    schedule = self._schedule
    intervals = (schedule.validate_every, schedule.save_every)
    return min([schedule.total_steps] + [(step // every + 1) * every for every in intervals])

  def _begin_pass(self):
    self._running = self._steps.begin_pass(self._steps.step)
    if self._steps.has_validation_tower and self._checkpoints is not None:
      self._steps.pass_began = self._checkpoints.take(self._session)

  def _finish_pass(self):
    """Measures the rest of the pass, and saves the weights if they are the best so far."""
    running, steps = self._running, self._steps
    assert running is not None
    activity, steps.activity = steps.activity, 'validation'
    with self._progress.paused():
      steps.validate(running, goes_on=self._goes_on)
      steps.activity = activity
      if not running.is_complete:
        return self._leave_if_asked()
      self._progress.validation(step=running.step, metrics=running.means(),
                                examples=running.num_examples)
    self._finished, self._running = running, None
    measured, steps.pass_began = steps.pass_began, None
    if not self._history.has_validated(running.step):
      self._history.add(running.step, running.means())
      self._has_news = True
      if self._checkpoints is not None and self._history.is_best:
        if measured is None or measured.step == steps.step:
          self._save()
        else:
          self._write(measured)
    return None

  def _has_saved(self) -> bool:
    return self._checkpoints is None or self._checkpoints.has_saved(self._steps.step)

  def _save(self):
    if self._checkpoints is not None:
      with self._progress.paused():
        self._steps.check_replicas()
        self._write(self._checkpoints.take(self._session))

  def _write(self, snapshot):
    with self._unwatched():
      self._checkpoints.wait()
      if self._checkpoints.error:
        self._check_saved(self._steps.step)
      self._checkpoints.write(snapshot, self._history)
      self._has_news = False

  def _check_saved(self, step):
    """Waits for the last checkpoint, and raises if that of `step` is not written."""
    if self._checkpoints is not None:
      with self._unwatched():
        self._checkpoints.wait()
      if self._checkpoints.error or not self._checkpoints.has_saved(step):
        fault = (self._checkpoints.error or self._checkpoints.reason or
                 'that step is not saved')
        advice = ('Make room' if is_about_room(fault) else
                  'See to it that the folder can be written')
        raise RunError(f'The run has come to step {self._steps.step}, but {fault}. {advice}, and '
                       'start it again: it resumes from the checkpoint before.')

  def _goes_on(self):
    """Whether no signal ends the pass here; with other workers, which end it together, it waits."""
    if self._signals is None or self._signals.received is None:
      return True
    if self._steps.has_other_workers:
      self._signals.answer()
    return False

  def _is_to_leave(self):
    """Whether all workers know that one of them got a signal to exit."""
    wants = self._signals is not None and self._signals.received is not None
    if not self._leaves and self._steps.agree('leave', wants):
      self._leaves = True
    return self._leaves

  def _leave_if_asked(self):
    """Saves and raises if a signal came, or if the last checkpoint could not be written."""
    if self._signals is not None and self._is_to_leave():
      self._signals.answer()
      # A pass on a validation tower can only be measured again from the step at which it began.
      began = self._steps.pass_began
      step = self._steps.step if began is None else began.step
      if self._checkpoints is not None and not self._checkpoints.has_saved(step):
        if began is None:
          self._save()
        else:
          self._write(began)
      self._check_saved(step)
      self._signals.has_saved()
      if self._checkpoints is None:
        outcome = 'without a checkpoint_dir nothing is saved'
      else:
        outcome = f'started again, the run resumes from step {step}'
      raise Interrupted(self._signals.received or signal.SIGTERM,
                        f'ended after step {self._steps.step}; {outcome}')
    if self._checkpoints is not None and self._checkpoints.error:
      self._check_saved(self._steps.step)

  def _handle_not_finite(self) -> float:
    """Retries a step that changed nothing, then does what `on_nan` says; returns the loss."""
    steps, step = self._steps, self._steps.step
    retried = steps.retry()
    if retried.is_done:
      self._progress.write(f'WARNING: step {step + 1} was not finite, but a retry with the same '
                           'weights and examples was: a device or an op of the model fails now '
                           'and then')
      self._loss = retried.loss
      return retried.loss

    epoch, index = steps.program.plan.position(step)
    what = (f'step {step + 1} (batch {index + 1} of epoch {epoch + 1}) is not finite: '
            f'{retried.describe()}')
    advice = 'skip'
    if self._schedule.on_nan == 'skip':
      recent = [other for other in self._skipped if step - other < MOST_SKIPPED_IN_A_ROW]
      self._skipped = recent + [step]
      if len(self._skipped) < MOST_SKIPPED_IN_A_ROW:
        self._progress.write(f'WARNING: {what}; it is skipped')
        steps.skip()
        return retried.loss
      what += f'; so were the {MOST_SKIPPED_IN_A_ROW - 1} before it, which were skipped'
      advice = 'rollback'
    elif self._schedule.on_nan == 'rollback':
      if self._history.num_rollbacks < MOST_ROLLBACKS:
        return self._roll_back(what, retried.loss)
      what += f'; going back {MOST_ROLLBACKS} times has not helped'

    if not self._has_saved():
      self._save()
    if self._checkpoints is not None:
      with self._unwatched():
        self._checkpoints.wait()
    raise RunError(f'{what[0].upper()}{what[1:]}. Weights and checkpoints are still finite. Lower '
                   'the learning rate or set --clip_norm; look at these examples; or choose '
                   f'--on_nan={advice}.')

  def _roll_back(self, what, loss):
    """Restores the newest checkpoint, and lowers the learning rate."""
    steps = self._steps
    with self._progress.paused(), self._unwatched():
      path = self._checkpoints.restore(self._session)
      steps.broadcast()
      to = int(self._session.run(get_global_step()))
      self._history.roll_back(steps.step, to)
      if self._checkpoints.folder is not None:
        write_whole(os.path.join(self._checkpoints.folder, HISTORY),
                    self._history.format().encode())
      self._progress.write(f'WARNING: {what}; back to {path}, with {self._history.rate_factor:g} '
                           'of the learning rate')
      self._running = steps.pass_began = None
      steps.scale_learning_rate(self._history.rate_factor)
      steps.start(to)
      self._due = to
      self._progress.rewind(to)
    return loss
