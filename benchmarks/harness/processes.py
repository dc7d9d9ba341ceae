"""Processes of one kind that take steps on request, together, and wait while others take theirs."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from benchmarks.harness.task import Task
from towers_launch.ports import find_free_ports
from towers_launch.tf_config import format_tf_config

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SECONDS_TO_LEAVE = 20
_LAST_CHARACTERS = 2000


class Failed(Exception):
  """A process has ended too early, or does not answer."""


class Absent(Exception):
  """The package to measure is not installed."""


class Processes:
  """Processes with the same words; each answers a line with a line of JSON, see `turns`."""

  def __init__(self, words: Sequence[str], environments: Sequence[Mapping[str, str]], *,
               limit_seconds: float):
    """Starts one in each environment; `limit_seconds` is the longest wait for any answer."""
    self._limit_seconds = limit_seconds
    errors, self._path = tempfile.mkstemp()
    self._processes = [
        subprocess.Popen([sys.executable, '-m', *words], cwd=_ROOT, text=True, stderr=errors,
                         env=dict(os.environ, **more), stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE)
        for more in environments]
    os.close(errors)

  def take(self, num_steps: int) -> List[Dict[str, Any]]:
    """Takes steps; returns 'seconds', 'cpu_seconds' and 'mean_loss' of each process."""
    return self.ask(str(num_steps))

  def ask(self, line: str) -> List[Dict[str, Any]]:
    """Returns the answers of all."""
    self._send(line)
    return self.wait()

  def _send(self, line):
    for process in self._processes:
      with contextlib.suppress(BrokenPipeError):  # `wait` sees that it has ended.
        process.stdin.write(f'{line}\n')
        process.stdin.flush()

  def wait(self) -> List[Dict[str, Any]]:
    """Returns the next answer of each process.

    Raises:
      Failed: one has ended, or does not answer.
    """
    answers = {}
    with selectors.DefaultSelector() as selector:
      for process in self._processes:
        selector.register(process.stdout, selectors.EVENT_READ, process)
      while len(answers) < len(self._processes):
        ready = selector.select(self._limit_seconds)
        if not ready:
          raise Failed(f'no answer within {self._limit_seconds:g} s\n{self._last_words()}')
        for key, _ in ready:
          line = key.fileobj.readline()  # Each writes one whole line and waits.
          if not line:
            raise Failed(f'exit code {key.data.wait()}\n{self._last_words()}')
          selector.unregister(key.fileobj)
          answers[key.fd] = json.loads(line)
    return list(answers.values())

  def _last_words(self):
    with open(self._path, encoding='utf-8', errors='replace') as file:
      return file.read()[-_LAST_CHARACTERS:].strip()

  def leave(self) -> None:
    """Asks all to leave, and kills those that do not."""
    self._send('0')
    until = time.monotonic() + _SECONDS_TO_LEAVE
    for process in self._processes:
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.1, until - time.monotonic()))
    self.end()

  def end(self) -> None:
    """Kills all."""
    if self._path:
      for process in self._processes:
        process.kill()
        process.communicate()
      os.remove(self._path)
      self._path = ''


def start_workers(arguments: Sequence[str], *, num_workers: int,
                  limit_seconds: float) -> Processes:
  """Returns workers on free ports of loopback, each of which ends itself after `limit_seconds`."""
  addresses = [f'127.0.0.1:{port}' for port in find_free_ports(num_workers)]
  return Processes(
      ['benchmarks.harness.worker_steps', *arguments, repr(time.time()), str(limit_seconds)],
      [dict(TF_CONFIG=format_tf_config(addresses, 'worker', rank)) for rank in range(num_workers)],
      limit_seconds=limit_seconds)


class StepProcess(Processes):
  """A process of `step_process`, which has taken its first step.

  Attributes:
    setup_seconds: from the start of the process to the end of its first step.
    mean_losses: over the first step, the first two, and so on, up to the last that `check` took.
    weights: how far each variable had moved by then, see `task.measure_movement`.
  """

  def __init__(self, kind: str, task: Task, *, limit_seconds: float = 600,
               environment: Optional[Mapping[str, str]] = None):
    """Starts it; raises Absent or Failed."""
    self.kind = kind
    environment = dict(environment or {})
    # On a GPU the first process would take all memory, and all are there at once.
    if task.kind == 'GPU':
      environment['TF_FORCE_GPU_ALLOW_GROWTH'] = 'true'
    super().__init__(['benchmarks.harness.step_process', kind, json.dumps(task._asdict()),
                      repr(time.time())], [environment], limit_seconds=limit_seconds)
    try:
      [first] = self.wait()
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
      self.mean_losses.append(self.take(1)[0]['mean_loss'])
    report = self.report()
    self.weights = report['weights']
    return report

  def report(self) -> Dict[str, Any]:
    """Returns 'weights', 'peak_bytes' and 'versions'."""
    return self.ask('report')[0]
