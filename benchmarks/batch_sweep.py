"""Speed and peak memory over the global batch, 256 to 50,000, with and without accumulation:
AlexNet's CIFAR form.

  python -m benchmarks.batch_sweep                 # a table; some minutes
  python -m benchmarks.batch_sweep --model=convnet --batch_sizes=256,1024 --micro_batch_size=128
  python -m benchmarks.batch_sweep --batch_size=50000 --accumulate=200  # one line, in this process

With `--accumulate` a global batch is taken in runs of about `--micro_batch_size` examples, and
memory stays that of a run. All lines train on the same 50,000 CIFAR-shaped synthetic images, and
each comes from a process of its own.
"""

import argparse
import json
import subprocess
import sys
import time
from typing import Any, Dict

from benchmarks.harness.flags import at_least, one_of, several
from benchmarks.harness.machine import read_peak_bytes
from models import MODELS

BATCH_SIZES = (256, 1024, 4096, 16384, 50000)
LARGEST_AT_ONCE = 4096
NUM_EXAMPLES = 50000


def measure(batch_size: int, accumulate: int, *, model: str = 'alexnet_cifar', num_towers: int = 2,
            num_steps: int = 2, num_examples: int = NUM_EXAMPLES) -> Dict[str, Any]:
  """Trains some steps in this process; returns a line of the table.

  The first step is not timed: it also starts the kernels and makes their buffers.
  """
  from benchmarks.harness.program import open_program
  from tensorflow_v1 import tf
  from towers import data
  from towers.training.settings.config import Config

  data_set = data.load_synthetic(num_train=num_examples, num_validation=10)
  config = Config(batch_size=batch_size, accumulate=accumulate, validation='none', model=model)
  with open_program(config, data_set, num_towers=num_towers) as steps:
    steps.start(0)
    losses = [float(steps.train())]
    started = time.monotonic()
    losses += [float(steps.train()) for _ in range(num_steps - 1)]
    seconds = time.monotonic() - started
    sizes = [steps.program.train.inputs.plan.size_at(step) for step in range(1, num_steps)]
  return dict(batch_size=batch_size, accumulate=accumulate, losses=losses,
              examples_per_second=sum(sizes) / seconds, peak_bytes=read_peak_bytes(),
              tensorflow_version=tf.__version__)


def format_line(line: Dict[str, Any]) -> str:
  """Returns a line of the table."""
  return '%7s  %10s  %8.2f GB  %6.0f examples/s  losses %s' % (
      f"{line['batch_size']:,}", line['accumulate'], line['peak_bytes'] / 1e9, line[
          'examples_per_second'],
      ', '.join(f'{loss:.4f}' for loss in line['losses']))


def find_accumulate(batch_size: int, micro_batch_size: int) -> int:
  """Returns the fewest runs of equal size, of at most `micro_batch_size` examples, that make a
  batch.
  """
  return next(runs for runs in range(-(-batch_size // micro_batch_size), batch_size + 1)
              if batch_size % runs == 0)


def main() -> None:
  """Prints the table, or one line as JSON."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--batch_size', type=at_least(1), help='measure this one alone, in this '
                                                             'process')
  parser.add_argument('--accumulate', type=at_least(1), default=1, help='its runs')
  parser.add_argument('--batch_sizes', type=several(at_least(1)),
                      default=','.join(map(str, BATCH_SIZES)), help='of the table')
  parser.add_argument('--micro_batch_size', type=at_least(1), default=256, help='examples that fit '
                                                                                'a run')
  parser.add_argument('--model', type=one_of(MODELS), default='alexnet_cifar')
  parser.add_argument('--num_towers', type=at_least(1), default=2)
  parser.add_argument('--num_examples', type=at_least(1), default=NUM_EXAMPLES)
  flags = parser.parse_args()
  settings = [f'--model={flags.model}', f'--num_towers={flags.num_towers}',
              f'--num_examples={flags.num_examples}']
  if flags.batch_size:
    print(
        json.dumps(
            measure(flags.batch_size, flags.accumulate, model=flags.model,
                    num_towers=flags.num_towers, num_examples=flags.num_examples)))
    return
  print('%s, %d towers\n%7s  %10s  %11s' % (flags.model, flags.num_towers, 'batch', 'accumulate',
      'peak memory'),
        flush=True)
  for batch_size in flags.batch_sizes:
    for accumulate in sorted({1, find_accumulate(batch_size, flags.micro_batch_size)}):
      if accumulate > 1 or batch_size <= LARGEST_AT_ONCE:
        done = subprocess.run([
            sys.executable, '-m', 'benchmarks.batch_sweep', f'--batch_size={batch_size}',
            f'--accumulate={accumulate}'
        ] + settings, check=True, stdout=subprocess.PIPE)
        print(format_line(json.loads(done.stdout.decode())), flush=True)


if __name__ == '__main__':
  main()
