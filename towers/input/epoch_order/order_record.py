"""Order: in which order a run takes the examples of an epoch, as its checkpoints record it.

A run that resumes in the middle of an epoch takes each example once if the rest of the epoch comes
in the order in which it began. Modes, towers, workers and micro-batches do not change that order;
the seed does, and so would another permutation in another version of towers.
"""

from typing import NamedTuple, Optional, Sequence

import numpy as np

from towers.base.splitmix import as_int64

# The name of a tensor in checkpoints that belongs to no variable.
ORDER_TENSOR = 'towers/order'
# Raise it with every change of `permutation`.
_VERSION = 1


class Order(NamedTuple):
  """The order of all epochs."""
  seed: Optional[int]  # Of the shuffling; None for the order of the examples.
  shuffle_buffer: int = 0  # Elements that shuffle in a buffer; 0 where positions are permuted.
  version: int = _VERSION  # Of the way in which positions are permuted.
  window: int = 0  # Examples that are sorted by length, or dealt by parts, together; 0 for any.
  lengths: int = 0  # The checksum of their lengths, or of the mixture; 0 without either.

  def to_array(self) -> np.ndarray:
    """Returns what a checkpoint holds, int64 `[4]`, or `[6]` with buckets or a mixture."""
    is_shuffled = self.seed is not None
    values = [self.version, is_shuffled, as_int64(self.seed or 0), self.shuffle_buffer]
    return np.array(values + ([self.window, self.lengths] if self.window or self.lengths else []),
                    np.int64)

  @staticmethod
  def from_array(values: Sequence[int]) -> 'Order':
    """Returns the order from the values of `to_array`."""
    version, is_shuffled, seed, shuffle_buffer, *buckets = (int(value) for value in values)
    return Order(seed if is_shuffled else None, shuffle_buffer, version, *buckets)

  def is_same(self, other: 'Order') -> bool:
    """Whether epochs come in the same order, whatever version permutes what is not shuffled."""
    grouped = self.window or self.lengths or other.window or other.lengths
    if not grouped and None in (self.seed, other.seed):
      return self.seed is other.seed
    return self.to_array().tolist() == other.to_array().tolist()

  def describe(self) -> str:
    """Returns the order in words."""
    sorted_in = (f', in windows of {self.window:,} examples by length or part'
                 if self.window else '')
    if self.lengths:
      sorted_in += f' (checksum {self.lengths})'
    if self.seed is None:
      return 'not shuffled' + sorted_in
    by = f' by a buffer of {self.shuffle_buffer:,}' if self.shuffle_buffer else ''
    return f'shuffled{by} with seed={self.seed}{sorted_in}'
