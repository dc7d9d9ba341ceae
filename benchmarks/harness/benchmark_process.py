"""A player: a process that takes steps when it is asked for, and waits while others do."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence

from benchmarks.harness.task import Task

PROCESS = 'benchmarks.harness.step_process'
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SECONDS_TO_LEAVE = 10
_LAST_CHARACTERS = 2000


class Failed(Exception):
  """A player has ended before its time, or does not answer."""


class Absent(Exception):
  """What a player was to measure is not installed."""


class BenchmarkProcess:
  """A process of one kind.

  Attributes:
    kind: of `step_process.KINDS`.
    setup_seconds: from the start of the process to the end of its first step.
    mean_losses: over the first step, the first two, and so on, as far as `check` has taken them.
    weights: how far each variable had moved by then, see `task.weigh`.
  """

  def __init__(self, kind: str, task: Task, *, python: str = sys.executable,
               cores: Optional[Sequence[int]] = None, limit_seconds: float = 600,
               module: str = PROCESS):
    """Starts the process, and waits for its first step.

    Args:
      kind: see above.
      task: that it trains.
      python: the interpreter, of a target of its own.
      cores: that it may use; None for all.
      limit_seconds: that any answer may take.
      module: that it runs.

    Raises:
      Absent: it has nothing to measure.
      Failed: it has ended.
    """
    self.kind = kind
    self._limit_seconds = limit_seconds
    errors, self._path = tempfile.mkstemp()

    def keep_to_cores():
      if cores is not None:
        os.sched_setaffinity(0, cores)

    self._process = subprocess.Popen(
        [python, '-m', module, kind,
         json.dumps(task._asdict()),
         repr(time.time())], cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=errors, text=True, preexec_fn=keep_to_cores)
    os.close(errors)
    try:
      first = self._wait()
      if 'absent' in first:
        raise Absent(first['absent'])
    except BaseException:
      self.end()
      raise
    self.setup_seconds: float = first['seconds']
    self.mean_losses: List[float] = [first['mean_loss']]
    self.weights: Dict[str, List[float]] = {}

  def check(self, num_steps: int) -> Dict[str, Any]:
    """Takes the steps up to the one of this number, one by one, and notes losses and weights;
    returns what it tells.
    """
    while len(self.mean_losses) < num_steps:
      self.mean_losses.append(self.take(1)['mean_loss'])
    told = self.tell()
    self.weights = told['weights']
    return told

  def take(self, num_steps: int) -> Dict[str, Any]:
    """Takes so many steps; returns 'seconds', 'cpu_seconds' and the 'mean_loss' of all steps so
    far.
    """
    return self._ask(str(num_steps))

  def tell(self) -> Dict[str, Any]:
    """Returns 'weights', 'peak_bytes', 'settings' and 'versions'."""
    return self._ask('tell')

  def leave(self) -> None:
    """Asks it to leave, and sees that it does."""
    with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
      self._process.communicate('0\n', timeout=_SECONDS_TO_LEAVE)
    self.end()

  def end(self) -> None:
    """Ends it, whatever it does."""
    if self._path:
      self._process.kill()
      self._process.communicate()
      os.remove(self._path)
      self._path = ''

  def _ask(self, line):
    with contextlib.suppress(BrokenPipeError):  # The end of its other pipe tells.
      self._process.stdin.write(line + '\n')
      self._process.stdin.flush()
    return self._wait()

  def _wait(self):
    """Returns the next line of its own."""
    with selectors.DefaultSelector() as selector:
      selector.register(self._process.stdout, selectors.EVENT_READ)
      if not selector.select(self._limit_seconds):
        raise Failed(f'{self.kind}: no answer within {self._limit_seconds:g} '
                     f's\n{self._last_words()}')
    line = self._process.stdout.readline()
    if not line:
      self._process.wait()
      raise Failed(f'{self.kind}: exit code {self._process.returncode}\n{self._last_words()}')
    return json.loads(line)

  def _last_words(self):
    with open(self._path, encoding='utf-8', errors='replace') as file:
      return file.read()[-_LAST_CHARACTERS:].strip()
