"""Draws: random numbers that belong to an example, whatever the order of the examples.

Each is a function of (seed, epoch, example index, position) alone, so that augmentation is the
same in every input mode, for any number of towers and threads, and after a resume. A stateful
random op in a pipeline that runs in parallel draws in the order in which threads happen to ask.

The function is SplitMix64's, on int64 tensors: a whole batch takes a dozen ops.
"""

from typing import Any

from towers.base.splitmix import GOLDEN, as_int64, mix, shift_right

_FRACTION_BITS = 24  # What a float32 holds exactly.


def draw(indices: Any, *, epoch: Any, seed: int, count: int) -> Any:
  """Returns float32 `[examples, count]`, each uniform in [0, 1).

  Args:
    indices: of the examples, int64 `[examples]`.
    epoch: int64 scalar.
    seed: any int.
    count: how many to draw for each example.
  """
  from tensorflow_v1 import tf
  state = mix(mix(as_int64(seed) + epoch * GOLDEN, tf.bitwise) + indices, tf.bitwise)
  positions = tf.range(1, count + 1, dtype=tf.int64) * GOLDEN
  mixed = mix(state[:, tf.newaxis] + positions, tf.bitwise)
  fractions = shift_right(mixed, 64 - _FRACTION_BITS, tf.bitwise)
  return tf.cast(fractions, tf.float32) * 2.0 ** -_FRACTION_BITS
