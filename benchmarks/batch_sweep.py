"""Speed and peak memory of AlexNet's CIFAR form over the global batch, with accumulation or not.

  python -m benchmarks.batch_sweep                 # a table; ten minutes and more
  python -m benchmarks.batch_sweep --model=convnet --batch_sizes=256,1024 --micro_batch_size=128
  python -m benchmarks.batch_sweep --batch_size=50000 --accumulate=200  # one line, in this process

The global batch goes from 256 to 50,000. Accumulation divides it into micro-batches of about
`--micro_batch_size` examples, so memory stays that of one micro-batch. All lines train on the same
50,000 CIFAR-shaped synthetic images, each in its own process. Seconds of CPU count all cores, and
hardly depend on what else the machine does.
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
# Steps are timed until they have taken so many.
TIMED_EXAMPLES = 4096
HEADER = ('| Global batch | Micro-batches | Peak memory | Examples/s | Epoch | Epoch, CPU | Step | '
          'Step, CPU |\n|---|---|---|---|---|---|---|---|')


def measure(batch_size: int, accumulate: int, *, model: str = 'alexnet_cifar', num_towers: int = 2,
            num_examples: int = NUM_EXAMPLES) -> Dict[str, Any]:
  """Trains some steps in this process; returns a line of the table.

  Steps are timed until they have taken `TIMED_EXAMPLES`. The first step also starts kernels and
  allocates their buffers, so it is timed only where it takes as many by itself.
  """
  from benchmarks.harness.program import open_program
  from tensorflow_v1 import tf
  from towers import data
  from towers.training.settings.config import Config

  data_set = data.load_synthetic(num_train=num_examples, num_validation=10)
  config = Config(batch_size=batch_size, accumulate=accumulate, validation='none', model=model)
  with open_program(config, data_set, num_towers=num_towers) as steps:
    steps.start(0)
    losses = []
    if batch_size < TIMED_EXAMPLES:
      losses.append(float(steps.train()))
    first, count = len(losses), 0
    started, cpu_started = time.monotonic(), time.process_time()
    while count < TIMED_EXAMPLES:
      count += steps.program.plan.size_at(len(losses))
      losses.append(float(steps.train()))
    seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu_started
  return dict(batch_size=batch_size, accumulate=accumulate, losses=losses, seconds=seconds,
              cpu_seconds=cpu_seconds, timed_steps=len(losses) - first, timed_examples=count,
              num_examples=num_examples, peak_bytes=read_peak_bytes(),
              tensorflow_version=tf.__version__)


def format_line(line: Dict[str, Any]) -> str:
  """Returns a row of the table, in Markdown."""
  epochs = line['timed_examples'] / line['num_examples']
  seconds = (line['seconds'], line['cpu_seconds'])
  times = [f'{value / epochs:,.1f} s' for value in seconds]
  times += [f"{1e6 * value / line['timed_steps']:,.0f} µs" for value in seconds]
  return (f"| {line['batch_size']:,} | {line['accumulate']} | {line['peak_bytes'] / 1e9:.2f} GB | "
          f"{line['timed_examples'] / line['seconds']:,.0f} | {' | '.join(times)} |")


def find_accumulate(batch_size: int, micro_batch_size: int) -> int:
  """Returns the fewest equal micro-batches of at most `micro_batch_size` examples."""
  fewest = -(-batch_size // micro_batch_size)
  return next(count for count in range(fewest, batch_size + 1) if batch_size % count == 0)


def main() -> None:
  """Prints the table, or one line as JSON."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--batch_size', type=at_least(1),
                      help='measure this one alone, in this process')
  parser.add_argument('--accumulate', type=at_least(1), default=1, help='its micro-batches')
  parser.add_argument('--batch_sizes', type=several(at_least(1)),
                      default=','.join(map(str, BATCH_SIZES)), help='of the table')
  parser.add_argument('--micro_batch_size', type=at_least(1), default=256,
                      help='examples that fit into memory at a time')
  parser.add_argument('--model', type=one_of(MODELS), default='alexnet_cifar')
  parser.add_argument('--num_towers', type=at_least(1), default=2)
  parser.add_argument('--num_examples', type=at_least(1), default=NUM_EXAMPLES)
  flags = parser.parse_args()
  settings = [f'--model={flags.model}', f'--num_towers={flags.num_towers}',
              f'--num_examples={flags.num_examples}']
  if flags.batch_size:
    line = measure(flags.batch_size, flags.accumulate, model=flags.model,
                   num_towers=flags.num_towers, num_examples=flags.num_examples)
    print(json.dumps(line))
    return
  print(f'{flags.model}, {flags.num_towers} towers\n\n{HEADER}', flush=True)
  for batch_size in flags.batch_sizes:
    for accumulate in sorted({1, find_accumulate(batch_size, flags.micro_batch_size)}):
      if accumulate > 1 or batch_size <= LARGEST_AT_ONCE:
        command = [sys.executable, '-m', 'benchmarks.batch_sweep', f'--batch_size={batch_size}',
                   f'--accumulate={accumulate}', *settings]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        print(format_line(json.loads(done.stdout.decode())), flush=True)


if __name__ == '__main__':
  main()
