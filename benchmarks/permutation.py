"""Time and memory to enter a shuffled epoch, by a computed permutation and by a shuffle buffer.

  python -m benchmarks.permutation --numbers=1000000000

Starts the input of so many examples, which are only indices, at three steps of the first epoch, and
takes a batch of each. A buffer of a million numbers stands beside it; it would hold all of them.
"""

import argparse
import time
from typing import Any

from benchmarks.harness.flags import at_least
from benchmarks.harness.machine import read_peak_bytes

BATCH_SIZE = 64
_BUFFERED = 1000000


def measure(name: str, examples: Any) -> None:
  """Prints the seconds to the first batch of some steps, and how much the process has grown."""
  import towers
  from tensorflow_v1 import tf

  plan = towers.build_plan(num_examples=examples.num_examples, batch_size=BATCH_SIZE, num_towers=1)
  for step in (0, plan.steps_per_epoch // 2, plan.steps_per_epoch - 2):
    before = read_peak_bytes()
    with tf.Graph().as_default():
      inputs = towers.build_inputs(examples, plan=plan, shuffle=True)
      [batch] = inputs.next_batches()
      with tf.Session() as session:
        started = time.monotonic()
        session.run(inputs.initializer, inputs.feed_dict(step))
        indices = session.run(batch.tensors)
        seconds = time.monotonic() - started
    if examples.elements is None:
      assert indices.tolist() == plan.indices_at(step, seed=0).tolist()
    print(f'{name:11}  {examples.num_examples:>13,}  {step:>10,}  {seconds:>8.3f} s'
          f'  {(read_peak_bytes() - before) / 1e6:>8.1f} MB', flush=True)


def main() -> None:
  """Prints a table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--numbers', type=at_least(1000), default=1000000000, help='of examples')
  numbers = parser.parse_args().numbers

  import towers
  from tensorflow_v1 import tf
  tf.logging.set_verbosity(tf.logging.ERROR)
  print('order             examples        step  to a batch  growth of peak memory')
  buffered = min(numbers, _BUFFERED)
  measure('permutation', towers.Examples(num_examples=buffered))
  measure('permutation', towers.Examples(num_examples=numbers))
  measure('buffer', towers.Examples(num_examples=buffered,
                                    elements=lambda: tf.data.Dataset.range(buffered)))


if __name__ == '__main__':
  main()
