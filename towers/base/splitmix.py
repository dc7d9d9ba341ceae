"""SplitMix64: a hash of 64-bit integers, the same for numpy's arrays and TensorFlow's tensors.

The products of both wrap around, and both name their functions of bits alike: callers pass `numpy`
or `tf.bitwise`.

Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
"""

from typing import Any

_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)


def mix(values: Any, bitwise: Any) -> Any:
  """Returns int64 values of the same shape, which look random; equal ones only for equal ones.

  They are a tensor or an array; no single number, since numpy warns where one wraps around.
  """
  for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS):
    values = bitwise.bitwise_xor(values, shift_right(values, shift, bitwise)) * as_int64(multiplier)
  return bitwise.bitwise_xor(values, shift_right(values, _SHIFTS[-1], bitwise))


def shift_right(values: Any, bits: int, bitwise: Any) -> Any:
  """Returns the values shifted, with zeros from the left, where `right_shift` repeats the sign."""
  return bitwise.bitwise_and(bitwise.right_shift(values, bits), 2 ** (64 - bits) - 1)


def as_int64(value: int) -> int:
  """Returns the int64 of the same lowest 64 bits, since Python's ints do not wrap around."""
  value &= 2 ** 64 - 1
  return value - 2 ** 64 if value >= 2 ** 63 else value


GOLDEN = as_int64(0x9E3779B97F4A7C15)
