"""Memory and file handles over many steps, with validation, checkpoints, summaries and report on: nothing may grow.

  python -m benchmarks.endurance                  # 100,000 steps of a linear model; some minutes
  python -m benchmarks.endurance --steps=20000
"""

import argparse
import os
import sys
import tempfile
import time

from benchmarks.flags import at_least

REPORTS = 11


def measure() -> str:
  """Returns resident memory in MB, open file handles and threads of this process."""
  with open('/proc/self/statm') as file:
    pages = int(file.read().split()[1])
  return '%7.1f MB  %3d handles  %3d threads' % (
      pages * os.sysconf('SC_PAGESIZE') / 1e6, len(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task')))


def main() -> None:
  """Runs main.py in this process, and prints a line now and then."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--steps', type=at_least(REPORTS), default=100000)
  flags = parser.parse_args()

  import main as job
  from training.steps import Steps

  every = flags.steps // (REPORTS - 1)
  train, started = Steps.train, time.monotonic()

  def counted(steps):
    if steps.step % every == 1:
      print('%7d steps  %6.0f s  %s' % (steps.step, time.monotonic() - started, measure()), file=sys.stderr, flush=True)
    return train(steps)

  Steps.train = counted
  with tempfile.TemporaryDirectory() as folder:
    code = job.main(['main.py', '--data=synthetic', '--model=linear', '--device=cpu', '--batch_size=16',
                     '--steps=%d' % flags.steps, '--validate_every=%dsteps' % max(1, flags.steps // 100),
                     '--checkpoint_every=%dsteps' % max(1, flags.steps // 200),
                     '--checkpoint_dir=' + os.path.join(folder, 'checkpoints'),
                     '--summary_dir=' + os.path.join(folder, 'summaries'), '--summary_every=10steps',
                     '--report=' + os.path.join(folder, 'run.html')])
    print('%7d steps  %6.0f s  %s' % (flags.steps, time.monotonic() - started, measure()), file=sys.stderr)
  sys.exit(code)


if __name__ == '__main__':
  main()
