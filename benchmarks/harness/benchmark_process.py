"""A process that takes steps of one kind on request, and waits while others take theirs."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List

from benchmarks.harness.task import Task

_PROCESS = 'benchmarks.harness.step_process'
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SECONDS_TO_LEAVE = 10
_LAST_CHARACTERS = 2000


class Failed(Exception):
  """A process has ended too early, or does not answer."""


class Absent(Exception):
  """The package to measure is not installed."""


class BenchmarkProcess:
  """A running process of one kind.

  Attributes:
    kind: of `step_process.KINDS`.
    setup_seconds: from the start of the process to the end of its first step.
    mean_losses: over the first step, the first two, and so on, up to the last that `check` took.
    weights: how far each variable had moved by then, see `task.measure_movement`.
  """

  def __init__(self, kind: str, task: Task, *, limit_seconds: float = 600):
    """Starts the process, and waits for its first step.

    Args:
      kind: see above.
      task: that it trains.
      limit_seconds: longest wait for any answer.

    Raises:
      Absent: the package to measure is not installed.
      Failed: it has ended.
    """
    self.kind = kind
    self._limit_seconds = limit_seconds
    errors, self._path = tempfile.mkstemp()

    command = [sys.executable, '-m', _PROCESS, kind, json.dumps(task._asdict()), repr(time.time())]
    environment = dict(os.environ)
    if task.kind == 'GPU':
      # All processes are there at once, and the first would take all memory of the GPU.
      environment.setdefault('TF_FORCE_GPU_ALLOW_GROWTH', 'true')
    self._process = subprocess.Popen(command, cwd=_ROOT, env=environment, stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=errors, text=True)
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
    """Takes steps one by one, `num_steps` with the first; keeps losses and weights, as reported."""
    while len(self.mean_losses) < num_steps:
      self.mean_losses.append(self.take(1)['mean_loss'])
    report = self.report()
    self.weights = report['weights']
    return report

  def take(self, num_steps: int) -> Dict[str, Any]:
    """Takes steps; returns 'seconds', 'cpu_seconds' and the 'mean_loss' of all steps so far."""
    return self._ask(str(num_steps))

  def report(self) -> Dict[str, Any]:
    """Returns 'weights', 'peak_bytes' and 'versions'."""
    return self._ask('report')

  def leave(self) -> None:
    """Asks the process to leave, and kills it if it does not."""
    with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
      self._process.communicate('0\n', timeout=_SECONDS_TO_LEAVE)
    self.end()

  def end(self) -> None:
    """Kills the process."""
    if self._path:
      self._process.kill()
      self._process.communicate()
      os.remove(self._path)
      self._path = ''

  def _ask(self, line):
    with contextlib.suppress(BrokenPipeError):  # `_wait` sees that it has ended.
      self._process.stdin.write(line + '\n')
      self._process.stdin.flush()
    return self._wait()

  def _wait(self):
    """Returns the next message of the process."""
    with selectors.DefaultSelector() as selector:
      selector.register(self._process.stdout, selectors.EVENT_READ)
      if not selector.select(self._limit_seconds):
        raise Failed(
            f'{self.kind}: no answer within {self._limit_seconds:g} s\n{self._last_words()}')
    line = self._process.stdout.readline()
    if not line:
      self._process.wait()
      raise Failed(f'{self.kind}: exit code {self._process.returncode}\n{self._last_words()}')
    return json.loads(line)

  def _last_words(self):
    with open(self._path, encoding='utf-8', errors='replace') as file:
      return file.read()[-_LAST_CHARACTERS:].strip()
