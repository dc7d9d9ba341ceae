"""Peak memory over the global batch, with and without accumulation, on 50,000 CIFAR-shaped synthetic images.

  python -m benchmarks.accumulate                 # a table; some minutes
  python -m benchmarks.accumulate --batch_size=50000 --accumulate=200     # one line of it, in this process
"""

import argparse
import resource
import subprocess
import sys
import time

RUN_SIZE = 250
BATCH_SIZES = (250, 1000, 4000, 16000, 50000)
LARGEST_AT_ONCE = 4000
NUM_EXAMPLES = 50000


def measure(batch_size: int, accumulate: int, num_towers: int) -> str:
  """Trains two steps in this process; returns a line of the table."""
  import data
  import models
  import towers
  from main import build_program
  from tensorflow_v1 import tf
  from training.config import Config
  from training.steps import Steps

  data_set = data.load_synthetic(num_train=NUM_EXAMPLES)
  config = Config(batch_size=batch_size, accumulate=accumulate, validation='none', model='convnet')
  devices = towers.build_devices(num_towers, 'cpu')
  program = build_program(config, models.build_classifier(config.model, num_classes=10), data_set, devices.names)
  with tf.Session(config=towers.build_session_config(devices)) as session:
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    steps = Steps(session, program)
    steps.start(0)
    started = time.monotonic()
    losses = [float(steps.train()) for _ in range(2)]
    seconds = time.monotonic() - started
  peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  sizes = [program.train.inputs.plan.size_at(step) for step in range(2)]
  return '%6d  %10d  %8.2f GB  %6.0f examples/s  losses %.4f, %.4f' % (
      batch_size, accumulate, peak_bytes / 1e9, sum(sizes) / seconds, losses[0], losses[1])


def main() -> None:
  """Prints the table, each line from a process of its own, or one line."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--batch_size', type=int)
  parser.add_argument('--accumulate', type=int, default=1)
  parser.add_argument('--num_towers', type=int, default=2)
  flags = parser.parse_args()
  if flags.batch_size:
    print(measure(flags.batch_size, flags.accumulate, flags.num_towers), flush=True)
    return
  print('%6s  %10s  %11s' % ('batch', 'accumulate', 'peak memory'), flush=True)
  for batch_size in BATCH_SIZES:
    for accumulate in sorted({1, batch_size // RUN_SIZE}):
      if accumulate > 1 or batch_size <= LARGEST_AT_ONCE:
        subprocess.run([sys.executable, '-m', 'benchmarks.accumulate', '--batch_size=%d' % batch_size,
                        '--accumulate=%d' % accumulate, '--num_towers=%d' % flags.num_towers], check=True)


if __name__ == '__main__':
  main()
