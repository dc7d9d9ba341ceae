"""Draws: random numbers that belong to an example, whatever the order of the examples.

Each is a function of (seed, epoch, example index, position) alone, so that augmentation is the
same in every input mode, for any number of towers and threads, and after a resume. A stateful
random op in a pipeline that runs in parallel draws in the order in which threads happen to ask.

The function is SplitMix64's (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
generators"), on int64 tensors, whose products wrap around: a whole batch takes a dozen ops.
"""

from typing import Any

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
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
  state = _mix(_mix(_int64(seed) + epoch * _int64(_GOLDEN)) + indices)
  positions = tf.range(1, count + 1, dtype=tf.int64) * _int64(_GOLDEN)
  mixed = _mix(state[:, tf.newaxis] + positions)
  return tf.cast(_shift_right(mixed, 64 - _FRACTION_BITS), tf.float32) * 2.0 ** -_FRACTION_BITS


def _mix(values):
  for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS):
    values = _xor(values, _shift_right(values, shift)) * _int64(multiplier)
  return _xor(values, _shift_right(values, _SHIFTS[-1]))


def _xor(left, right):
  from tensorflow_v1 import tf
  return tf.bitwise.bitwise_xor(left, right)


def _shift_right(values, bits):
  """Shifts zeros in from the left, where TensorFlow shifts in the sign."""
  from tensorflow_v1 import tf
  shifted = tf.bitwise.right_shift(values, tf.constant(bits, tf.int64))
  return tf.bitwise.bitwise_and(shifted, tf.constant(2 ** (64 - bits) - 1, tf.int64))


def _int64(value):
  """Returns the tensor of the same 64 bits, since Python's ints do not wrap around."""
  from tensorflow_v1 import tf
  value &= 2 ** 64 - 1
  return tf.constant(value - 2 ** 64 if value >= 2 ** 63 else value, tf.int64)
