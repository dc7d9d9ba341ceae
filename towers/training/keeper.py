"""Keeper: what a run leaves in its folder, so that it may end anywhere and do the rest later."""

import contextlib
import os
from typing import Any, Optional

from towers.base.files import write_whole
from towers.base.reason import is_about_room
from towers.session import Session
from towers.training.faults.run_error import RunError
from towers.training.saving.checkpoints import Snapshot
from towers.training.saving.history import HISTORY, History
from towers.training.saving.standing import Standing


class Keeper:
  """Saves a run's variables with its history; does nothing for a run without a folder.

  Attributes:
    history: of validations and rollbacks.
    has_news: whether the history has a validation that no checkpoint was written with.
  """

  def __init__(self, session: Session, checkpoints: Any, history: Optional[History] = None):
    """Saves nothing yet.

    Args:
      session: that trains.
      checkpoints: `Checkpoints`, or None.
      history: of the run; None for one that has yet no step.
    """
    self.history = history or History()
    self.has_news = False
    self._session, self._checkpoints = session, checkpoints
    self._progress: Any = None

  def begin(self, standing: Optional[Standing] = None) -> Optional[str]:
    """Gives the variables of all workers the values to go on from; returns the checkpoint's path.

    `standing` is where a former graph stood; None to go on from the newest checkpoint, if any.
    """
    session, checkpoints, history = self._session, self._checkpoints, self.history
    path = None
    if standing is not None:
      standing.restore(session.tf_session)
      session.steps.resume(standing.step)
      history.parse(standing.history, standing.step)
    else:
      path = session.state.take_up(lambda: (checkpoints, None))
      if path is None:
        session.state.begin()
      else:
        if checkpoints.folder is not None:
          history.read(checkpoints.folder, session.step)
        else:
          checkpoints.write(self.take())  # The chief has it saved.
        history.parse(session.state.of_chief(history.format()), session.step)
    session.steps.scale_learning_rate(history.rate_factor)
    return path

  def tell(self, progress: Any) -> None:
    """Warns by `progress` from now on, which pauses while the session is read."""
    self._progress = progress
    if self._checkpoints is not None:
      self._checkpoints.warn = progress.write

  @property
  def has_folder(self) -> bool:
    """Whether the run saves at all."""
    return self._checkpoints is not None

  @property
  def has_failed(self) -> bool:
    """Whether a checkpoint could not be written, and the run is to end for it."""
    return self._checkpoints is not None and bool(self._checkpoints.error)

  @property
  def has_saved(self) -> bool:
    """Whether there is nothing to save of the current step."""
    return self._checkpoints is None or self._checkpoints.has_saved(self._session.step)

  def save(self) -> None:
    """Saves the current step, written in the background."""
    if self._checkpoints is not None:
      with self._paused():
        self._session.steps.check_replicas()
        self._write(self._checkpoints.take(self._session.tf_session))

  def take(self) -> Optional[Snapshot]:
    """Returns all variables of now, to save later; None without a folder."""
    return self._checkpoints and self._checkpoints.take(self._session.tf_session)

  def save_best(self, measured: Optional[Snapshot]) -> None:
    """Saves the weights that were measured: these, or those of now."""
    if measured is None or measured.step == self._session.step:
      self.save()
    elif self._checkpoints is not None:
      self._write(measured)

  def save_last(self) -> int:
    """Saves the last step from which the run can go on as if it had not ended; returns it."""
    # A pass on a validation tower can only be measured again from the step at which it began.
    began = self._session.steps.pass_began
    step = self._session.step if began is None else began.step
    if self._checkpoints is not None and not self._checkpoints.has_saved(step):
      self.save_best(began)
    self.check_saved(step)
    return step

  def save_standing(self) -> None:
    """Saves the step that the run goes on from in another graph, if any is done."""
    if self._checkpoints is not None:
      snapshot = self._session.steps.pass_began or self._checkpoints.take(self._session.tf_session)
      if snapshot.step and not self._checkpoints.has_saved(snapshot.step):
        self._write(snapshot)
      self.close()

  def _paused(self):
    return self._progress.paused() if self._progress else contextlib.nullcontext()

  def _write(self, snapshot):
    with self._session.watchdog.paused():
      self._checkpoints.wait()
      if self._checkpoints.error:
        self.check_saved(self._session.step)
      self._checkpoints.write(snapshot, self.history)
      self.has_news = False

  def wait(self) -> None:
    """Waits for the checkpoint that is being written."""
    if self._checkpoints is not None:
      with self._session.watchdog.paused():
        self._checkpoints.wait()

  def check_saved(self, step: int) -> None:
    """Waits for the last checkpoint.

    Raises:
      RunError: that of `step` is not written.
    """
    self.wait()
    if self._checkpoints is not None and (
        self._checkpoints.error or not self._checkpoints.has_saved(step)):
      fault = self._checkpoints.error or self._checkpoints.reason or 'that step is not saved'
      advice = 'Make room' if is_about_room(fault) else 'See to it that the folder can be written'
      raise RunError(f'The run has come to step {self._session.step}, but {fault}. {advice}, and '
                     'start it again: it resumes from the checkpoint before.')

  def roll_back(self) -> str:
    """Restores the newest checkpoint, and starts from it at a lower rate; returns its path."""
    session = self._session
    with self._paused(), session.watchdog.paused():
      at = session.step
      path = session.state.take_up(lambda: (self._checkpoints, None))
      self.history.roll_back(at, session.step)
      if self._checkpoints.folder is not None:
        write_whole(os.path.join(self._checkpoints.folder, HISTORY), self.history.format().encode())
      session.steps.pass_began = None
      session.steps.scale_learning_rate(self.history.rate_factor)
      session.steps.start(session.step)
    return path or ''

  def close(self) -> None:
    """Waits for the last checkpoint, and ends the thread that writes."""
    if self._checkpoints is not None:
      with self._session.watchdog.paused():
        self._checkpoints.close()
