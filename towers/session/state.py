"""State: a session's variables, alike on all workers: how they start, are saved and restored."""

import contextlib
import os
from typing import Any, Callable, Optional, Sequence, Tuple

from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import Checkpoints
from towers.checkpoint.data import Data
from towers.checkpoint.files import INDEX, path_of
from towers.checkpoint.lock import lock_folder
from towers.checkpoint.weights import find_best
from towers.data.digest import Digest, take_digest
from towers.input.plan import ResumePoint
from towers.session.steps import Steps
from towers.warm_start.matching import Names

# The chief shares this and its reason, in place of a path and where the data stands.
_REFUSED = '\0'


class State:
  """The variables and counters of an open session.

  Attributes:
    has_begun: whether they have values to train from; else a file is still to give them.
  """

  def __init__(self, steps: Steps, worker: Any = None):
    """Takes the steps of the session, and this process among several workers."""
    self._steps, self._program, self._worker = steps, steps.program, worker
    self._warm_start = self._program.warm_start
    self.has_begun = self._warm_start is None
    self._digest: Optional[Digest] = None  # Of the training examples, once it is asked for.

  def of_chief(self, text: str) -> str:
    """Returns the chief's text; all workers call it at the same time."""
    return text if self._worker is None else self._worker.peers.share(text)[0]

  def begin(self) -> None:
    """Gives all workers the chief's variables, started from the file that the program names."""
    if self._warm_start is not None and self._program.workers.rank == 0:
      write_line(self._warm_start.open())
      self._warm_start.start(self._steps.session)
    self._warm_start, self.has_begun = None, True
    self._steps.broadcast()

  def checkpoints_in(self, folder: str, *, keep: int = 1 << 30,
                     stop_on_full_disk: bool = False, names: Names = None,
                     new: Sequence[str] = (), new_data: bool = False) -> Checkpoints:
    """Returns what saves the program to a folder, and restores it; see `Checkpoints`."""
    program = self._program
    self._digest = self._digest or take_digest(program.train_examples)
    return Checkpoints(folder, keep=keep, stop_on_full_disk=stop_on_full_disk,
                       inputs=program.feed.inputs, averages=program.averages,
                       data=Data(self._digest, program.plan, may_be_new=new_data,
                                 may_skip=program.train_examples.marks_bad), names=names, new=new)

  def take_up(self, choose: Callable[[], Tuple[Any, Optional[str]]]) -> Optional[str]:
    """Gives all workers a checkpoint of the chief; returns its path, or None without one.

    `choose` returns the `Checkpoints` of this worker, or None, and the path to take, or None for
    the newest. Where it, or a checkpoint, is refused by the chief, all workers raise.

    Raises:
      UsageError: it is of another program, other data or another batch size.
    """
    steps, session = self._steps, self._steps.session
    path: Optional[str] = None
    point: Any = None
    try:
      checkpoints, chosen = choose()
      if checkpoints is not None:
        path = checkpoints.restore(session, chosen)
        point = checkpoints.point
    except Exception as error:
      if self._worker is not None:
        self._worker.peers.share([_REFUSED, str(error)])
      raise
    if self._worker is not None:
      path, point = self._worker.peers.share([path, point])[0]
      if path == _REFUSED:
        raise UsageError(f'The chief restores nothing: {point}')
    if path is None:
      return None
    steps.broadcast()
    if self._warm_start is not None and self._program.workers.rank == 0:
      write_line(f'initial weights: those of the checkpoint; {self._warm_start.settings.path} is '
                 'not read')
    self._warm_start, self.has_begun = None, True
    steps.resume(ResumePoint(*point))
    return path

  def restore(self, folder: str, *, best: bool, best_metric: Optional[str], map: Names,
              new: Sequence[str], new_data: bool) -> str:
    """Does what `Session.restore` says, but for the input."""
    def choose():
      if self._program.workers.rank != 0:
        return None, None
      own, chosen = folder, None
      if best:
        chosen = path_of(folder, find_best(folder, best_metric))
      elif os.path.exists(folder + INDEX):
        own, chosen = os.path.dirname(folder) or '.', folder
      if not os.path.isdir(own):
        return None, None
      return self.checkpoints_in(own, names=map, new=new, new_data=new_data), chosen

    path = self.take_up(choose)
    if path is None:
      raise UsageError(f'There is no checkpoint in {folder}: name the folder that was saved to.')
    return path

  def save(self, folder: str) -> str:
    """Does what `Session.save` says."""
    self._steps.check_replicas()
    if self._program.workers.rank != 0:
      return ''
    with lock_folder(folder), contextlib.closing(
        self.checkpoints_in(folder, stop_on_full_disk=True)) as saved:
      return saved.save(self._steps.session, plan=self._steps.plan)
