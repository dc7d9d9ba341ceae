"""A process of `benchmarks.step`: takes steps of one kind, a requested number at a time.

  stdin    ──► 19                   steps to take; 0, or the end of the pipe, to leave
           ──► report               asks for weights, memory and versions
  stdout   ◄── {"steps": 1, ...}    after the first step, and after the last of each request
           ◄── {"absent": "..."}    instead of the first, if the package is not installed

  towers, one tower    the program of main.py with its progress; the second with one tower's batch
  by hand, recipe      see `hand_written`
  mirrored             MirroredStrategy, see `mirrored`
  tensorpack           see `tensorpack_trainer`
"""

import json
import platform
import sys
from typing import Any, Callable, Dict, List

from benchmarks.harness.machine import read_peak_bytes
from benchmarks.harness.task import Task, measure_movement
from benchmarks.harness.worker_steps import Turns, open_parent
from benchmarks.peers import hand_written, mirrored, ours, tensorpack_trainer


class StepTurns:
  """Turns of one process, which also answers requests for a report."""

  def __init__(self, read: Callable[[], str], write: Callable[[str], Any], *, started: float):
    """Begins with a request for one step.

    Args:
      read: returns the next line of the parent, or ''.
      write: sends it a line.
      started: time.time() when the process was started.
    """
    self._read_line, self._write = read, write
    self._turns = Turns(self._read, write, started=started)
    self._measure_movement: Callable[[], Any] = dict
    self.end_step = self._turns.end_step

  def watch(self, session: Any, variables: Any) -> None:
    """Sets the variables to report on: one of each, where towers have replicas."""
    by_name = {variable.name: variable for variable in variables}
    self._measure_movement = lambda: measure_movement(session.run(by_name))

  def _read(self):
    line = self._read_line()
    while line.strip() == 'report':
      peak_bytes = read_peak_bytes()
      report = dict(weights=self._measure_movement(), peak_bytes=peak_bytes,
                    versions=find_versions())
      self._write(json.dumps(report))
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


KINDS: Dict[str, Callable[..., None]] = {
    'towers': ours.run_towers,
    'one tower': ours.run_towers,
    'by hand': hand_written.run_by_hand,
    'recipe': hand_written.run_recipe,
    'mirrored': mirrored.run_mirrored,
    'tensorpack': tensorpack_trainer.run_tensorpack,
}


def main(arguments: List[str]) -> None:
  """Runs `KIND TASK STARTED`; the task is a JSON object."""
  kind, fields, started = arguments[0], json.loads(arguments[1]), float(arguments[2])
  task = Task(**fields)
  with open_parent() as write:
    turns = StepTurns(sys.stdin.readline, write, started=started)
    try:
      KINDS[kind](turns, task)
    except tensorpack_trainer.NotInstalled as error:
      write(json.dumps(dict(absent=str(error))))


if __name__ == '__main__':
  main(sys.argv[1:])
