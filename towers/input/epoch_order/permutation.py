"""Permutation: in which order an epoch takes its examples, computed and not stored.

A number is enciphered under a key that follows from (seed, epoch), so the example at any position
of any epoch is known at once.

  position ──► left = position mod a, right = position // a            a = ⌈√n⌉, b = ⌈n / a⌉
           ──► eight times:  left, right = right, (left + hash(key, right)) mod a or b, in turn
           ──► example = left + a · right        enciphered again while it is not below n

This is the generalised Feistel network of Black and Rogaway 2002, "Ciphers with arbitrary finite
domains"; its last step, which they call cycle walking, is rare: n is at most a below a · b.
"""

from typing import Any

import numpy as np

from towers.base.splitmix import GOLDEN, as_int64, mix, shift_right

# With six, ten thousand epochs of a hundred examples show which ones are neighbours too often.
_ROUNDS = 8
_MULTIPLIERS = (as_int64(0xBF58476D1CE4E5B9), as_int64(0x94D049BB133111EB))
_HASH_BITS = 31  # Times a number of 32 bits, the hash stays below 2^63.


def permute(positions: Any, *, size: Any, seed: Any, epoch: Any) -> np.ndarray:
  """Returns which examples an epoch takes at `positions`, int64 of the same shape `[positions]`.

  Over all positions 0 … size-1, each number below `size` comes once. Size, seed and epoch are
  numbers, or arrays of one for each position.
  """
  keys, side = _build_keys(seed, epoch), np.ceil(np.sqrt(size)).astype(np.int64)
  moduli = [side, -(-size // side)]
  if np.ndim(size) == 0:  # An array modulo a number of Python is faster.
    moduli = [int(modulus) for modulus in moduli]
  numbers = _encipher(np.asarray(positions, np.int64), moduli, keys)
  while True:
    beyond = numbers >= size
    if not beyond.any():
      return numbers
    numbers[beyond] = _encipher(numbers[beyond], _select(moduli, beyond), _select(keys, beyond))


def _select(parts, chosen):
  """Returns the numbers for the chosen positions, of parts of one for each position or for all."""
  return [part if np.size(part) == 1 else part[chosen] for part in parts]


def _build_keys(seed, epoch):
  """Returns a key for each round, int64 `[8, 1]`, or `[8, positions]`."""
  seeds, epochs = np.array([as_int64(seed)] if np.ndim(seed) == 0 else seed), np.atleast_1d(epoch)
  state = mix(seeds + epochs.astype(np.int64) * np.array(GOLDEN), np)
  rounds = [[as_int64(GOLDEN * (number + 1))] for number in range(_ROUNDS)]
  return mix(state + np.array(rounds), np)


def _encipher(numbers, moduli, keys):
  """Returns other numbers below a · b, for int64 ones below it."""
  side = moduli[0]
  right = numbers // side
  left = numbers - right * side
  for index, key in enumerate(keys):
    modulus = moduli[index % 2]
    total = left + (_hash(right + key) * modulus >> _HASH_BITS)
    left, right = right, np.where(total < modulus, total, total - modulus)
  return left + right * side


def _hash(values):
  """Returns ints of 31 bits; half of SplitMix64 is enough where there are as many rounds."""
  values = values * _MULTIPLIERS[0]
  values = (values ^ values >> 32) * _MULTIPLIERS[1]
  return shift_right(values, 64 - _HASH_BITS, np)
