"""Overlap: how much of a slow input hides behind towers that compute for equally long.

  python -m benchmarks.overlap                                     # a minute
  python -m benchmarks.overlap --towers=8 --milliseconds=50

Input and towers sleep, so neither takes a core from the other, and the time of a step shows who
waits: it is the sum of both where one waits for the other, and that of one where they overlap. A
sleeping tower holds a thread, unlike one on a GPU, so there are threads for all that may sleep at
once.
"""

import argparse
import statistics
import time
from typing import Any, Dict

from benchmarks.harness.figures import write_figures
from benchmarks.harness.flags import at_least, path_to_write
from benchmarks.harness.program import open_program

NUM_EXAMPLES = 4096
_WARM_UP_STEPS = 10
_STEPS = 40


def measure(mode: str, depth: int, num_towers: int, seconds: float) -> Dict[str, Any]:
  """Returns the median time of a step, and the share of it that is ideal: 1 hides everything.

  Args:
    mode: of the input.
    depth: of the staging areas.
    num_towers: on virtual CPU devices.
    seconds: to make a global batch, and for each tower to compute on its part.
  """
  import numpy as np

  import towers
  from tensorflow_v1 import tf
  from towers.data import DataSet
  from towers.training.settings.config import Config

  batch_size = 8 * num_towers

  def sleep(value):
    time.sleep(seconds)
    return value

  def make(indices):
    time.sleep(seconds * len(indices) / batch_size)
    return indices

  def parse_batch(indices):
    made = tf.py_func(make, [tf.cast(indices, tf.float32)], tf.float32)
    made.set_shape(indices.shape)
    return made

  def model(batch, is_training):
    del is_training
    computed = tf.py_func(sleep, [batch], tf.float32)
    computed.set_shape(batch.shape)
    return computed * tf.get_variable('weight', [], initializer=tf.zeros_initializer())

  examples = towers.Examples(num_examples=NUM_EXAMPLES,
                             elements=lambda: tf.data.Dataset.range(NUM_EXAMPLES),
                             parse_batch=parse_batch, name='sleepy')
  config = Config(batch_size=batch_size, input_mode=mode, staging_depth=depth, validation='none',
                  shuffle=False, learning_rate=1e-9, schedule='constant', input_threads=1,
                  inter_threads=4 * num_towers + 4)
  times = []
  with open_program(config, DataSet(examples, examples, (), 1), num_towers=num_towers,
                    model=model) as steps:
    steps.start(0)
    for step in range(_WARM_UP_STEPS + _STEPS):
      began = time.perf_counter()
      steps.train()
      if step >= _WARM_UP_STEPS:
        times.append(time.perf_counter() - began)
  step_seconds = statistics.median(times)
  assert np.isfinite(step_seconds)
  return dict(mode=mode, depth=depth, num_towers=num_towers, step_milliseconds=step_seconds * 1e3,
              hidden=seconds / step_seconds, tensorflow_version=tf.__version__)


def main() -> None:
  """Prints a line for each mode and depth."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--towers', type=at_least(1), default=2)
  parser.add_argument('--milliseconds', type=at_least(0, float), default=20.0)
  parser.add_argument('--json', type=path_to_write, help='file to write all lines to')
  flags = parser.parse_args()
  print(f'{flags.towers} towers, {flags.milliseconds:g} ms for a global batch, '
        f'{flags.milliseconds:g} ms to compute')
  lines = []
  for mode in ('split', 'next', 'shard'):
    for depth in (0, 1, 2):
      line = measure(mode, depth, flags.towers, flags.milliseconds / 1e3)
      lines.append(line)
      print(f"{mode:6} depth {depth}   {line['step_milliseconds']:6.1f} ms a step, "
            f"{line['hidden']:.2f} of the ideal", flush=True)
  if flags.json:
    write_figures(flags.json, lines)


if __name__ == '__main__':
  main()
