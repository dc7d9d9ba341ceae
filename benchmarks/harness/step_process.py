"""A process of `benchmarks.step`: takes steps of one kind, a requested number at a time.

If the package is not installed, {"absent": "..."} is its answer in place of that to the first step.

  towers, one tower    the program of main.py with its progress; the second with one tower's batch
  by hand, recipe      see `hand_written`
  mirrored             MirroredStrategy, see `mirrored`
  tensorpack           see `tensorpack_trainer`
"""

import json
import sys
from typing import Callable, Dict, List

from benchmarks.harness.task import Task
from benchmarks.harness.turns import Turns, open_parent
from benchmarks.peers import hand_written, mirrored, ours, tensorpack_trainer

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
    turns = Turns(sys.stdin.readline, write, started=started)
    try:
      KINDS[kind](turns, task)
    except tensorpack_trainer.NotInstalled as error:
      write(json.dumps(dict(absent=str(error))))


if __name__ == '__main__':
  main(sys.argv[1:])
