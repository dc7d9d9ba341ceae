"""The loop: steps until the last one, with validations and checkpoints between them when due.

  start ─► warm up ─► train … train ─► validate ─► save ─► train … ─► validate ─► save ─► result

What happens between two steps follows from the step and the history alone. So a run may end
anywhere, by a signal, a fault or `kill -9`, and the next one does the rest.
"""

import math
import signal
import time
from typing import Any, List, Optional

from towers.base.reason import is_about_room
from towers.checkpoint.checkpoints import Checkpoints, Snapshot
from towers.checkpoint.history import MOST_ROLLBACKS, History
from towers.process.run_error import OutOfMemory, RunError
from towers.process.signals import Interrupted, Signals
from towers.session.not_finite import Retried
from towers.session.validation_pass import ValidationPass
from towers.settings.timetable import Timetable
from towers.tensorflow_v1.devices import uses_persistent_batch_norm

# Stop after this many consecutive non-finite steps.
MOST_SKIPPED_IN_A_ROW = 10


class Loop:
  """Trains to the last step, or until validations no longer improve.

  Attributes:
    loss: the mean of the last step's global batch, or None if no step was left.
    stopped: why it ends before its last step, or None.
  """

  def __init__(self, run: Any, *, timetable: Timetable, checkpoints: Checkpoints, history: History,
               progress: Any, signals: Signals, on_nan: str = 'stop',
               end_at: float = math.inf):
    """Takes the parts of a `Run` that has resumed, and tells it of steps, validations, warnings.

    Args:
      on_nan: what to do with a step that is not finite: stop, skip or rollback.
      end_at: by `time.monotonic`, when all is to be validated and saved.
    """
    self._run, self._session, self._timetable = run, run.session, timetable
    self._progress, self._signals = progress, signals
    self._checkpoints, self._history = checkpoints, history
    self._validation = run.session.program.validation
    self._vote = run.session.agree
    self._pass: Optional[ValidationPass] = None
    self._began: Optional[Snapshot] = None  # When a pass did that goes on beside the steps.
    self._has_news = False  # The history has a validation that no checkpoint was written with.
    self._skipped: List[int] = []
    self._end_at, self._on_nan = end_at, on_nan
    self.loss: Optional[float] = None
    self.stopped: Optional[str] = None
    self._due = 0  # The next step after which something is scheduled.
    self._save_at = time.monotonic() + timetable.save_seconds

  def run(self) -> None:
    """Trains to the end.

    Raises:
      Interrupted: a signal came, and the run has saved.
      RunError: a step was not finite, or a checkpoint not written, and the settings say to stop.
    """
    session = self._session
    try:
      if self._on_nan == 'rollback' and not self._has_saved:
        self._save()
      is_over = self._between_steps()
      while not is_over:
        result = session.take_step(self._pass)
        not_finite = result.not_finite
        if not_finite is None or not_finite.is_done:
          self.loss = result
        if not_finite is None or self._handle(not_finite):
          self._report_step(result)
        if self._vote_and_look():
          is_over = self._between_steps()
        if self._vote('save', time.monotonic() >= self._save_at):
          self._save_by_the_clock()
      self._measure_the_end()
      self._leave_if_asked()
    finally:
      self._close()

  def _report_step(self, loss):
    try:
      self._run.report_step(loss)
    except Exception:  # A callback of the user's has failed: it costs no step.
      self.save_last()
      raise

  def stop(self, why: str) -> None:
    """Ends the loop after this step, or the next one where other workers must know."""
    self.stopped = self.stopped or why

  def save_last(self) -> int:
    """Saves the last step from which the run can go on as if it had not ended; returns it."""
    # A pass on a validation tower can only be measured again from the step at which it began.
    step = self._session.step if self._began is None else self._began.step
    if not self._checkpoints.has_saved(step):
      self._save(self._began)
    self._check_saved(step)
    return step

  def suspend(self, shortage: OutOfMemory) -> Optional[Snapshot]:
    """Returns where the run goes on from in another graph, and saves it if any step is done.

    It is None where the step that was out of memory may have changed a variable.
    """
    if self._began is None and not self._session.has_changed_nothing(shortage):
      return None
    snapshot = self._began or self._session.snapshot()
    if snapshot.step and not self._checkpoints.has_saved(snapshot.step):
      self._save(snapshot)
    self._close()
    return snapshot

  def _vote_and_look(self):
    """Casts this worker's votes; returns whether to call `_between_steps`.

    The only check after every step, and so a short one: meanwhile all threads wait, and soon sleep.
    """
    return (self._pass is not None or self._session.step >= self._due or
            self._vote_to_leave() or self._vote_to_stop() or self._checkpoints.error)

  def _between_steps(self) -> bool:
    """Validates and saves if due and not done yet; returns whether the run is over."""
    step, timetable = self._session.step, self._timetable
    self._due = min(timetable.total_steps, timetable.validate_every.next(step),
                    timetable.save_every.next(step))
    self._leave_if_asked()
    is_last = step >= timetable.total_steps or self._vote_to_stop()
    self._validate_if_due(is_last)
    if not is_last and self._vote_to_stop():  # A callback has asked meanwhile.
      is_last = True
      self._validate_if_due(is_last)

    is_over = is_last or self._history.has_stopped
    if is_over and step < timetable.total_steps:
      self._say_why()
    # A run that resumes at its last step has saved that, but not the validation that it missed.
    if (is_over or self._is_to_save(is_last)) and (self._has_news or not self._has_saved):
      self._save()
    if is_over:
      self._session.check_replicas()
      self._check_saved(step)
    return is_over

  def _say_why(self):
    if self.stopped is not None:
      self._progress.write(f'stopped after step {self._session.step}: {self.stopped}')
    else:
      self.stopped = f'no validation was better than {self._history.describe_best()}'
      self._progress.write(f'stopped early: {self.stopped}')

  # Validation.

  def _validate_if_due(self, is_last):
    step, saves = self._session.step, self._is_to_save(is_last)
    # A pass ends before a checkpoint, since a run that resumes there could not continue it.
    if self._pass is not None and (self._pass.is_complete or is_last or saves):
      self._finish_pass()
    is_due = is_last or self._timetable.validate_every.is_due(step)
    if (self._validation is not None and self._pass is None and step > 0 and is_due and
        not self._history.has_validated(step)):
      self._begin_pass()
      if not self._validation.has_tower or is_last or saves:
        self._finish_pass()

  def _begin_pass(self):
    self._pass = self._session.begin_validation()
    if self._validation.has_tower and self._checkpoints.folder:
      self._began = self._session.snapshot()

  def _finish_pass(self):
    """Measures the rest of the pass, and saves the weights if they are the best so far."""
    measured = self._pass
    assert measured is not None
    with self._progress.paused():
      self._session.finish_validation(measured, self._goes_on)
      if not measured.is_complete:
        self._leave_if_asked()
        return
      try:
        means = measured.means()
        self._run.report_validation(measured, means)
      except Exception:  # A function or a callback of the user's has failed.
        self.save_last()
        raise
    began, self._pass, self._began = self._began, None, None
    is_due = (self._timetable.validate_every.is_due(measured.step) or
              measured.step >= self._timetable.total_steps)
    if not self._history.has_validated(measured.step):
      self._history.add(measured.step, means, is_due=is_due)
      self._has_news = True
      if self._history.is_best:
        self._save(began if began and began.step < self._session.step else None)

  def _measure_the_end(self):
    """Measures the last weights for the result, where a run before has done so for the history."""
    if self._validation is not None and self._run.validation_step != self._session.step:
      self._begin_pass()
      self._finish_pass()

  def _goes_on(self):
    """Whether no signal ends the pass here; with other workers, which end it together, it waits."""
    if self._signals.received is None:
      return True
    if self._session.program.workers.num_workers > 1:
      self._signals.answer()
    return False

  # Checkpoints.

  @property
  def _has_saved(self):
    return self._checkpoints.has_saved(self._session.step)

  def _is_to_save(self, is_last):
    step = self._session.step
    is_due = is_last or self._timetable.save_every.is_due(step)
    return is_due and step > 0 and not self._has_saved

  def _save(self, snapshot: Optional[Snapshot] = None):
    """Saves a snapshot, or else the current step, written in the background."""
    session, checkpoints = self._session, self._checkpoints
    if checkpoints.folder:
      with self._progress.paused():
        snapshot = snapshot or session.snapshot()
        self._wait()
        if checkpoints.error:
          self._check_saved(session.step)
        checkpoints.write(snapshot, self._history)
      self._has_news = False

  def _save_by_the_clock(self):
    if self._pass is not None:
      self._finish_pass()
    self._save()
    self._save_at = time.monotonic() + self._timetable.save_seconds

  def _wait(self):
    with self._session.watchdog.paused():
      self._checkpoints.wait()

  def _check_saved(self, step):
    """Waits for the last checkpoint; raises a RunError if that of `step` is not written."""
    self._wait()
    checkpoints = self._checkpoints
    if checkpoints.error or not checkpoints.has_saved(step):
      fault = checkpoints.reason or 'that step is not saved'
      advice = 'Make room' if is_about_room(fault) else 'See to it that the folder can be written'
      raise RunError(f'The run has come to step {self._session.step}, but {fault}. {advice}, and '
                     'start it again: it resumes from the checkpoint before.')

  def _close(self):
    with self._session.watchdog.paused():
      self._checkpoints.close()

  # The end.

  def _vote_to_stop(self):
    """Tells the other workers whether this one is to end here; returns whether any of them is."""
    if self._end_at < math.inf and not self.stopped:
      # As long as the pauses so far, for a validation and a checkpoint, and another step.
      needed = 2 * self._progress.longest_pause + self._progress.seconds_per_step()
      if time.monotonic() + needed >= self._end_at:
        self.stop('max_seconds are over')
    is_to_stop = self._vote('stop', self.stopped is not None)
    if is_to_stop:
      self.stop('another worker is to stop')
    return is_to_stop

  def _vote_to_leave(self):
    """Tells the other workers of a signal to exit; returns whether any of them got one."""
    return self._vote('leave', self._signals.received is not None)

  def _leave_if_asked(self):
    """Saves and raises if a signal came, or if the last checkpoint could not be written."""
    if self._vote_to_leave():
      self._signals.answer()
      step = self.save_last()
      self._signals.has_saved()
      outcome = (f'started again, the run resumes from step {step}' if self._checkpoints.folder
                 else 'without a checkpoint_dir nothing is saved')
      raise Interrupted(self._signals.received or signal.SIGTERM,
                        f'ended after step {self._session.step}; {outcome}')
    if self._checkpoints.error:
      self._check_saved(self._session.step)

  # Steps that are not finite.

  def _handle(self, retried: Retried) -> bool:
    """Skips a step that was not finite, goes back or ends the run, as `on_nan` says.

    Returns whether the step counts as done: by the retry, or skipped.
    """
    session, step, on_nan = self._session, self._session.step, self._on_nan
    if retried.is_done:
      self._run.warn(f'WARNING: step {step} was not finite, but a retry with the same weights and '
                     'examples was: a device or an op of the model fails now and then')
      return True
    epoch, index = session.plan.epoch_and_index(step)
    what = f'step {step + 1} (batch {index + 1} of epoch {epoch + 1}) is not finite: {retried}'
    if session.program.devices.kind == 'GPU' and uses_persistent_batch_norm():
      what += (" (cuDNN's persistent batch normalisation may overflow: see whether it happens with "
               'TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT=0)')
    if on_nan == 'skip':
      recent = [other for other in self._skipped if step - other < MOST_SKIPPED_IN_A_ROW]
      self._skipped = recent + [step]
      if len(self._skipped) >= MOST_SKIPPED_IN_A_ROW:
        self._give_up(f'{what}; so were the {MOST_SKIPPED_IN_A_ROW - 1} before it, which were '
                      'skipped', 'rollback')
      self._run.warn(f'WARNING: {what}; it is skipped')
      session.skip()
    elif on_nan == 'rollback':
      if self._history.num_rollbacks >= MOST_ROLLBACKS:
        self._give_up(f'{what}; going back {MOST_ROLLBACKS} times has not helped', 'skip')
      path = self._go_back()
      self._run.warn(f'WARNING: {what}; back to {path}, with {self._history.rate_factor:g} of the '
                     'learning rate')
      self._run.report_rewind()
    else:
      self._give_up(what, 'skip')
    return on_nan == 'skip'

  def _go_back(self):
    """Restores the newest checkpoint, and starts from it at a lower rate; returns its path."""
    session, history = self._session, self._history
    with self._progress.paused(), session.watchdog.paused():
      at = session.step
      path = session.resume(self._checkpoints)
      history.roll_back(at, session.step)
      self._checkpoints.write_history(history)
      session.scale_learning_rate(history.rate_factor)
      session.start()
    self._pass = self._began = None
    self._due = session.step
    return path

  def _give_up(self, what, advice):
    if not self._has_saved:
      self._save()
    self._wait()
    raise RunError(f'{what[0].upper()}{what[1:]}. Weights and checkpoints are still finite. Lower '
                   'the learning rate or set clip_norm; look at these examples; or choose '
                   f'on_nan={advice}.')
