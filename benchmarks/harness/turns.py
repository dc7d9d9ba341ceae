"""Turns: a process that measures takes the steps that its parent requests, and waits between.

  stdin    ──► 19                   steps to take; 0, or the end of the pipe, to leave
           ──► report               asks for weights, memory and versions
  stdout   ◄── {"steps": 1, ...}    after the first step, and after the last of each request
"""

import contextlib
import json
import os
import platform
import sys
import time
from typing import Any, Callable, Dict, Iterator, List

from benchmarks.harness.machine import read_peak_bytes
from benchmarks.harness.task import measure_movement


class Turns:
  """Decides after each step whether to take another, and waits until the parent requests one."""

  def __init__(self, read: Callable[[], str], write: Callable[[str], Any], *, started: float):
    """Begins with a request for one step.

    Args:
      read: returns the next line of the parent, or ''.
      write: sends it a line.
      started: time.time() when the process was started.
    """
    self._read_line, self._write = read, write
    self._started, self._used = started, 0.0
    self._losses: List[Any] = []
    self._left = 1
    self._measure_movement: Callable[[], Any] = dict

  def watch(self, session: Any, variables: Any) -> None:
    """Sets the variables to report on: one of each, where towers have replicas."""
    by_name = {variable.name: variable for variable in variables}
    self._measure_movement = lambda: measure_movement(session.run(by_name))

  def end_step(self, loss: Any) -> bool:
    """Records the loss of a step; returns whether to take another."""
    self._losses.append(loss)
    self._left -= 1
    if self._left:
      return True
    self._write(json.dumps(dict(
        steps=len(self._losses), seconds=time.time() - self._started,
        cpu_seconds=time.process_time() - self._used,
        mean_loss=sum(map(float, self._losses)) / len(self._losses))))
    self._left = int(self._read() or 0)
    self._started, self._used = time.time(), time.process_time()
    return self._left > 0

  def _read(self):
    line = self._read_line()
    while line.strip() == 'report':
      peak_bytes = read_peak_bytes()
      self._write(json.dumps(dict(weights=self._measure_movement(), peak_bytes=peak_bytes,
                                  versions=find_versions())))
      line = self._read_line()
    return line


def find_versions() -> Dict[str, str]:
  """Returns the versions of Python and of the packages that are imported."""
  found = dict(Python=platform.python_version())
  labels = {'tensorflow': 'TensorFlow', 'tensorpack': 'tensorpack', 'numpy': 'numpy'}
  for name, label in labels.items():
    if name in sys.modules:
      found[label] = getattr(sys.modules[name], '__version__', '?')
  return found


@contextlib.contextmanager
def open_parent() -> Iterator[Callable[[str], None]]:
  """Yields a function that sends the parent a line; all other output goes to stderr."""
  with os.fdopen(os.dup(1), 'w') as stream:
    os.dup2(2, 1)

    def write(line):
      stream.write(line + '\n')
      stream.flush()

    yield write
