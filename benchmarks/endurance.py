"""Memory, file handles and threads of a long run: nothing may grow.

  python -m benchmarks.endurance                  # 100,000 steps of a linear model; some minutes
  python -m benchmarks.endurance --model=lenet --batch_size=256 --steps=5000
  python -m benchmarks.endurance --programs=100   # one program after another in one process,
                                                  # of ten steps each

A run is `main.py` with validation, checkpoints, summaries and report on.
"""

import argparse
import os
import sys
import tempfile
import time
from typing import List, Tuple

from benchmarks.harness.flags import at_least, one_of
from models import MODELS
from towers.base.collector import read_held_bytes

REPORTS = 10
_STEPS_OF_A_PROGRAM = 10


def measure() -> Tuple[float, int, int]:
  """Returns resident memory in MB, open file handles and threads of this process."""
  num_handles, num_threads = (len(os.listdir(f'/proc/self/{kind}')) for kind in ('fd', 'task'))
  return read_held_bytes() / 1e6, num_handles, num_threads


class Reports:
  """Prints what the process holds, `REPORTS` times over a run, and at the end its growth."""

  def __init__(self, count: int, unit: str):
    """Prepares reports on `count` steps or programs, as `unit` names them."""
    self._count, self._unit = count, unit
    self._started = time.monotonic()
    self._held: List[Tuple[float, int, int]] = []

  def end(self, done: int) -> None:
    """Prints a line if one is due after `done` of them."""
    if done * REPORTS // self._count > (done - 1) * REPORTS // self._count:
      self._held.append(measure())
      megabytes, handles, threads = self._held[-1]
      self._print(f'{done:7d} {self._unit}  {time.monotonic() - self._started:6.0f} s  '
                  f'{megabytes:7.1f} MB  {handles:3d} handles  {threads:3d} threads')
    if done == self._count:
      # After the first tenth all caches are full.
      megabytes, handles, threads = (
          last - first for first, last in zip(self._held[0], self._held[-1]))
      self._print(f'since the first tenth: {megabytes:+.1f} MB, {handles:+d} handles, '
                  f'{threads:+d} threads')

  def _print(self, line):
    print(line, file=sys.stderr, flush=True)


def run(model: str, batch_size: int, steps: int) -> int:
  """Trains for `steps` steps; returns the exit code of `main.py`."""
  from towers import command_line as job
  with tempfile.TemporaryDirectory() as folder:
    return job.main(['main.py', '--data=synthetic', f'--model={model}', '--device=cpu',
                     f'--batch_size={batch_size}', f'--steps={steps}',
                     f'--validate_every={max(1, steps // 100)}steps',
                     f'--checkpoint_every={max(1, steps // 200)}steps',
                     '--checkpoint_dir=' + os.path.join(folder, 'checkpoints'),
                     '--summary_dir=' + os.path.join(folder, 'summaries'),
                     '--summary_every=10steps',
                     '--report=' + os.path.join(folder, 'run.html')])


def main() -> None:
  """Trains in this process, and prints a line now and then."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--model', type=one_of(MODELS), default='linear')
  parser.add_argument('--batch_size', type=at_least(1), default=16)
  parser.add_argument('--steps', type=at_least(REPORTS), default=100000)
  parser.add_argument('--programs', type=at_least(REPORTS),
                      help='how many programs to run in place of one long run')
  flags = parser.parse_args()
  if flags.programs:
    reports = Reports(flags.programs, 'programs')
    for index in range(flags.programs):
      code = run(flags.model, flags.batch_size, _STEPS_OF_A_PROGRAM)
      if code:
        sys.exit(code)
      reports.end(index + 1)
    return

  from towers.training.stepping.steps import Steps

  reports = Reports(flags.steps, 'steps')
  train = Steps.train

  def counted(steps):
    loss = train(steps)
    reports.end(steps.step)
    return loss

  Steps.train = counted
  sys.exit(run(flags.model, flags.batch_size, flags.steps))


if __name__ == '__main__':
  main()
