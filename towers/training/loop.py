"""The loop: steps until the last one, with validations and checkpoints between them when due.

  start ─► warm up ─► train … train ─► validate ─► save ─► train … ─► validate ─► save ─► result

What happens between two steps follows from the step and the history alone. So a run may end
anywhere, by a signal, a fault or `kill -9`, and the next one does the rest.
"""

import signal
import time
from typing import Any, Callable, Dict, NamedTuple, Optional

from towers.process.signals import Interrupted, Signals
from towers.session.validation_pass import ValidationPass
from towers.settings.timetable import Timetable
from towers.training.bad_steps import BadSteps
from towers.training.keeper import Keeper


class LoopEnd(NamedTuple):
  """The result of a loop.

  Attributes:
    step: weight updates, those before a resume included.
    train_loss: the mean loss of the last step's global batch, or None if no step was left.
    validation: each metric's mean over the validation split at the end; empty without validation.
    validation_examples: how many examples these means are over.
    stopped: why the loop has ended before the last step, or None.
  """
  step: int
  train_loss: Optional[float]
  validation: Dict[str, float]
  validation_examples: int
  stopped: Optional[str] = None


class Loop:
  """Trains to the last step, or until validations no longer improve."""

  def __init__(self, run: Any, *, timetable: Timetable, keeper: Keeper, progress: Any,
               signals: Signals, end_at: Optional[float] = None,
               clock: Callable[[], float] = time.monotonic):
    """Prepares.

    Args:
      run: the `Run`, whose session has started; it is told of steps, validations and warnings.
      timetable: when to validate and to save, and when to end.
      keeper: of the session.
      progress: shows lines, and knows how long steps and pauses take.
      signals: once its `received` is set, the run saves and exits.
      end_at: by the clock, when all is to be validated and saved; None for any time.
      clock: returns seconds.
    """
    self._run, self._steps, self._timetable = run, run.session.steps, timetable
    self._progress, self._signals, self._clock = progress, signals, clock
    self._keeper, self._history = keeper, keeper.history
    keeper.tell(progress, run.warn)
    self._bad_steps = BadSteps(run, keeper, timetable.on_nan)
    self._running: Optional[ValidationPass] = None
    self._finished: Optional[ValidationPass] = None
    self._loss: Optional[float] = None
    self._end_at = end_at
    self._stopped: Optional[str] = None  # Why the run ends before its last step.
    self._due = 0  # The next step after which something is scheduled.
    self._save_at = float('inf')

  def run(self) -> LoopEnd:
    """Trains to the end.

    Raises:
      Interrupted: a signal came, and the run has saved.
      RunError: a step was not finite, or a checkpoint not written, and the settings say to stop.
    """
    steps = self._steps
    try:
      self._set_save_time()
      if self._timetable.on_nan == 'rollback' and not self._keeper.has_saved:
        self._keeper.save()
      is_over = self._between_steps()
      while not is_over:
        loss = self._take_step()
        self._run.has_stepped(loss)
        if self._has_something_to_do():
          is_over = self._between_steps()
        if steps.agree('save', self._clock() >= self._save_at):
          self._save_by_the_clock()
      self._measure_the_end()
      self._leave_if_asked()
      finished = self._finished
      return LoopEnd(steps.step, None if self._loss is None else float(self._loss),
                     {} if finished is None else finished.means(),
                     0 if finished is None else finished.num_examples, self._stopped)
    finally:
      self._keeper.close()

  def stop(self, why: str) -> None:
    """Ends the loop after this step, or the next one where other workers must know."""
    self._stopped = self._stopped or why

  def _take_step(self):
    loss, retried = self._steps.take(self._running)
    if retried is None or retried.is_done:
      self._loss = loss
    if retried is not None and self._bad_steps.handle(retried):
      self._running, self._due = None, self._steps.step
    return loss

  def _has_something_to_do(self):
    """Whether to call `_between_steps`.

    The only check after every step, and so a short one: meanwhile all threads wait, and soon sleep.
    """
    return (self._running is not None or self._steps.step >= self._due or self._is_to_leave() or
            self._is_to_stop() or self._keeper.has_failed)

  def _between_steps(self) -> bool:
    """Validates and saves if due and not done yet; returns whether the run is over."""
    step, keeper, timetable = self._steps.step, self._keeper, self._timetable
    self._due = min(timetable.total_steps, timetable.validate_every.next(step),
                    timetable.save_every.next(step))
    self._leave_if_asked()
    is_last = self._is_last()
    self._validate_if_due(is_last)
    if not is_last and self._is_last():  # A callback has asked meanwhile.
      is_last = True
      self._validate_if_due(is_last)

    is_over = is_last or self._history.has_stopped
    if is_over and step < timetable.total_steps:
      self._say_why()
    # A run that resumes at its last step has saved that, but not the validation that it missed.
    if (is_over or self._is_to_save(is_last)) and (keeper.has_news or not keeper.has_saved):
      keeper.save()
    if is_over:
      self._steps.check_replicas()
      keeper.check_saved(step)
    return is_over

  def _is_last(self):
    return self._steps.step >= self._timetable.total_steps or self._is_to_stop()

  def _is_to_save(self, is_last):
    step = self._steps.step
    is_due = is_last or self._timetable.save_every.is_due(step)
    return is_due and step > 0 and not self._keeper.has_saved

  def _say_why(self):
    if self._stopped is not None:
      self._progress.write(f'stopped after step {self._steps.step}: {self._stopped}')
    else:
      self._stopped = f'no validation was better than {self._history.describe_best()}'
      self._progress.write(f'stopped early: {self._stopped}')

  def _validate_if_due(self, is_last):
    steps, step, saves = self._steps, self._steps.step, self._is_to_save(is_last)
    # A pass ends before a checkpoint, since a run that resumes there could not continue it.
    if self._running is not None and (self._running.is_complete or is_last or saves):
      self._finish_pass()
    is_due = is_last or self._timetable.validate_every.is_due(step)
    if (steps.can_validate and self._running is None and step > 0 and is_due and
        not self._history.has_validated(step)):
      self._begin_pass()
      if not steps.has_validation_tower or is_last or saves:
        self._finish_pass()

  def _begin_pass(self):
    self._running = self._steps.begin_pass(self._steps.step)
    if self._steps.has_validation_tower:
      self._steps.pass_began = self._keeper.take()

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
      try:
        means = running.means()
      except Exception:  # A function of the user's has failed: it costs no step, as in a callback.
        self._keeper.save_last()
        raise
      self._run.has_validated(running, means)
    self._finished, self._running = running, None
    measured, steps.pass_began = steps.pass_began, None
    # Where it was not due a run that goes on from here must not find it.
    is_due = (self._timetable.validate_every.is_due(running.step) or
              running.step >= self._timetable.total_steps)
    if is_due and not self._history.has_validated(running.step):
      self._history.add(running.step, means)
      self._keeper.has_news = True
      if self._history.is_best:
        self._keeper.save_best(measured)
    return None

  def _measure_the_end(self):
    """Measures the last weights for the result, where a run before has done so for the history."""
    if self._steps.can_validate and (
        self._finished is None or self._finished.step != self._steps.step):
      self._begin_pass()
      self._finish_pass()

  def _save_by_the_clock(self):
    if self._running is not None:
      self._finish_pass()
    self._keeper.save()
    self._set_save_time()

  def _set_save_time(self):
    if self._timetable.save_seconds is not None:
      self._save_at = self._clock() + self._timetable.save_seconds

  def _goes_on(self):
    """Whether no signal ends the pass here; with other workers, which end it together, it waits."""
    if self._signals.received is None:
      return True
    if self._steps.has_other_workers:
      self._signals.answer()
    return False

  def _is_to_stop(self):
    """Whether all workers know that one of them is to end here."""
    if self._end_at is not None and not self._stopped:
      # As long as the pauses so far, for a validation and a checkpoint, and another step.
      needed = 2 * self._progress.longest_pause + self._progress.seconds_per_step()
      if self._clock() + needed >= self._end_at:
        self._stopped = 'max_seconds are over'
    if not self._steps.agree('stop', self._stopped is not None):
      return False
    self._stopped = self._stopped or 'another worker is to stop'
    return True

  def _is_to_leave(self):
    """Whether all workers know that one of them got a signal to exit."""
    return self._steps.agree('leave', self._signals.received is not None)

  def _leave_if_asked(self):
    """Saves and raises if a signal came, or if the last checkpoint could not be written."""
    if self._is_to_leave():
      self._signals.answer()
      step = self._keeper.save_last()
      self._signals.has_saved()
      outcome = (f'started again, the run resumes from step {step}' if self._keeper.has_folder
                 else 'without a checkpoint_dir nothing is saved')
      raise Interrupted(self._signals.received or signal.SIGTERM,
                        f'ended after step {self._steps.step}; {outcome}')
    if self._keeper.has_failed:
      self._keeper.check_saved(self._steps.step)
