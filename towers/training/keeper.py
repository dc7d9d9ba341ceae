"""Keeper: what a run leaves in its folder, so that it may end anywhere and do the rest later."""

import contextlib
import os
from typing import Any, Callable, NamedTuple, Optional

from towers.base.files import write_whole
from towers.base.output import write_line
from towers.base.reason import is_about_room
from towers.checkpoint.checkpoints import Checkpoints, Snapshot, take_snapshot
from towers.checkpoint.history import HISTORY, History
from towers.process.run_error import RunError
from towers.session.session import Session
from towers.tensorflow_v1 import tf
from towers.warm_start.warm_start import load_values


class Standing(NamedTuple):
  """Where a run stands between two steps, in memory, to go on from in another graph.

  As good as a checkpoint: a graph of more micro-batches has the same variables, and the input of
  any graph can begin at any step.
  """
  snapshot: Snapshot
  history: str


class Keeper:
  """Saves a run's variables with its history; does nothing for a run without a folder.

  Attributes:
    history: of validations and rollbacks.
    has_news: whether the history has a validation that no checkpoint was written with.
  """

  def __init__(self, session: Session, checkpoints: Optional[Checkpoints],
               history: Optional[History] = None, *, by_chief: bool = False):
    """Saves nothing yet.

    Args:
      session: that trains.
      checkpoints: in the run's folder; None in a run without one, or if the chief saves.
      history: of the run; None for one that has yet no step.
      by_chief: whether another worker, the chief, saves; this one notes which step.
    """
    self.history = history or History()
    self.has_news = False
    self._session, self._checkpoints, self._by_chief = session, checkpoints, by_chief
    self._saved_step: Optional[int] = None  # By the chief.
    self._progress: Any = None

  def begin(self, standing: Optional[Standing] = None) -> Optional[str]:
    """Gives the variables of all workers the values to go on from; returns the checkpoint's path.

    `standing` is where a former graph stood; None to go on from the newest checkpoint, if any.
    """
    session, checkpoints, history = self._session, self._checkpoints, self.history
    path = None
    if standing is not None:
      step, values, point = standing.snapshot
      assert point is not None
      load_values(session.steps.session, {variable: values[variable.op.name]
                                       for variable in tf.global_variables()})
      session.steps.resume(point)
      history.parse(standing.history, step)
    else:
      path = session.state.take_up(lambda: (checkpoints, None))
      if path is None:
        session.state.begin()
      else:
        self._saved_step = session.step
        if checkpoints is not None:
          history.read(checkpoints.folder, session.step)
          if not os.path.exists(os.path.join(checkpoints.folder, HISTORY)):
            write_line(f'{HISTORY} is not beside {path}: the best checkpoint and early stopping '
                       'start anew')
        history.parse(session.state.of_chief(history.format()), session.step)
    session.steps.scale_learning_rate(history.rate_factor)
    return path

  def tell(self, progress: Any, warn: Callable[[str], None]) -> None:
    """Warns by `warn` from now on, and pauses `progress` while the session is read."""
    self._progress = progress
    if self._checkpoints is not None:
      self._checkpoints.warn = warn

  @property
  def has_folder(self) -> bool:
    """Whether the run saves at all."""
    return self._checkpoints is not None or self._by_chief

  @property
  def has_failed(self) -> bool:
    """Whether a checkpoint could not be written, and the run is to end for it."""
    return self._checkpoints is not None and bool(self._checkpoints.error)

  @property
  def has_saved(self) -> bool:
    """Whether there is nothing to save of the current step."""
    return self._is_saved(self._session.step)

  def _is_saved(self, step):
    if self._checkpoints is not None:
      return self._checkpoints.has_saved(step)
    return not self._by_chief or step == self._saved_step

  def save(self) -> None:
    """Saves the current step, written in the background."""
    if self.has_folder:
      with self._paused():
        self._session.steps.check_replicas()
        self._write(self.take())

  def take(self) -> Optional[Snapshot]:
    """Returns the variables of now, or their step if the chief saves; None without a folder."""
    if self._by_chief:
      return Snapshot(self._session.step, {})
    steps = self._session.steps
    return self._checkpoints.take(steps.session, steps.plan) if self._checkpoints else None

  def save_best(self, measured: Optional[Snapshot]) -> None:
    """Saves the weights that were measured: these, or those of now."""
    if measured is None or measured.step == self._session.step:
      self.save()
    elif self.has_folder:
      self._write(measured)

  def save_last(self) -> int:
    """Saves the last step from which the run can go on as if it had not ended; returns it."""
    # A pass on a validation tower can only be measured again from the step at which it began.
    began = self._session.steps.pass_began
    step = self._session.step if began is None else began.step
    if not self._is_saved(step):
      self.save_best(began)
    self.check_saved(step)
    return step

  def stand(self) -> Standing:
    """Returns where the run goes on from in another graph, and saves it if any step is done."""
    steps = self._session.steps
    snapshot = steps.pass_began or self.take() or take_snapshot(steps.session, steps.plan)
    if snapshot.step and not self._is_saved(snapshot.step):
      self._write(snapshot)
    self.close()
    return Standing(snapshot, self.history.format())

  def _paused(self):
    return self._progress.paused() if self._progress else contextlib.nullcontext()

  def _write(self, snapshot):
    if self._checkpoints is not None:
      self.wait()
      if self.has_failed:
        self.check_saved(self._session.step)
      self._checkpoints.write(snapshot, self.history)
    self._saved_step, self.has_news = snapshot.step, False

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
    if self.has_failed or not self._is_saved(step):
      checkpoints = self._checkpoints
      fault = checkpoints and (checkpoints.error or checkpoints.reason) or 'that step is not saved'
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
      self._saved_step = session.step
      if self._checkpoints is not None:
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
