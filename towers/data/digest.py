"""Digest: tells two splits apart, for workers that must have the same data, and for resumed runs.

It covers all bytes of small arrays, which labels are, and up to 1,024 rows of others, evenly
spaced. Of records it covers all lengths; of encoded images see `digest_images` of towers-data.
"""

import hashlib
from typing import Any, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from towers.data.examples import Examples

# The name of a tensor in checkpoints that belongs to no variable.
DATA_TENSOR = 'towers/data'
# Raise it with every change of what a digest covers.
_VERSION = 1
MOST_ROWS = 1024
FEWEST_ROWS = 16
# Of an array, so that a digest takes some tens of milliseconds.
_MOST_BYTES = 16 << 20


class Digest(NamedTuple):
  """What stands for a split: an int64 for each of its arrays, or for its files, if it has any."""
  num_examples: int
  parts: Tuple[int, ...] = ()

  def to_array(self) -> np.ndarray:
    """Returns what a checkpoint holds, int64 `[2 + parts]`."""
    return np.array([_VERSION, self.num_examples, *self.parts], np.int64)

  @staticmethod
  def from_array(values: Sequence[int]) -> Optional['Digest']:
    """Returns the digest from the values of `to_array`; None of another version of towers."""
    version, num_examples, *parts = (int(value) for value in values)
    return Digest(num_examples, tuple(parts)) if version == _VERSION else None

  def explain_other(self, other: 'Digest') -> str:
    """Returns in words how this split differs from that of a run, or ''."""
    if self == other:
      return ''
    if self.num_examples != other.num_examples:
      return f'{self.num_examples:,} examples, where this run has {other.num_examples:,}'
    count = f'as many examples, {self.num_examples:,}'
    if len(self.parts) != len(other.parts) or len(self.parts) < 2:
      return f'{count}, of other content'
    differ = [str(number) for number, pair in enumerate(zip(self.parts, other.parts), 1)
              if pair[0] != pair[1]]
    return f"{count}, of other content in array {', '.join(differ)} of {len(self.parts)}"


def take_digest(examples: Examples) -> Digest:
  """Returns the digest of a split: equal for equal ones, and in all likelihood for no others."""
  parts = [_digest_array(array) for array in examples.arrays]
  if examples.num_bytes is not None and not parts:
    parts.append(_digest_array(examples.num_bytes))
  if examples.digest_files is not None:
    parts.append(examples.digest_files())
  return Digest(examples.num_examples, tuple(parts))


def digest_all(parts: Sequence[Examples]) -> int:
  """Returns an int64 that stands for all parts of a split."""
  return to_int64(hashlib.sha256(repr([take_digest(part) for part in parts]).encode()))


def digest_examples(examples: Examples) -> str:
  """Returns a text that is equal for splits of the same examples and the same buckets."""
  digest, buckets = take_digest(examples), examples.buckets
  parts = repr((digest.parts, buckets and (buckets.window, buckets.checksum)))
  return f'{digest.num_examples:,} examples, {hashlib.sha256(parts.encode()).hexdigest()[:8]}'


def _digest_array(array):
  digest = hashlib.sha256(f'{array.dtype} {array.shape}\n'.encode())
  rows = array
  if array.ndim and len(array) and (array.dtype.hasobject or array.nbytes > _MOST_BYTES):
    fitting = _MOST_BYTES * len(array) // array.nbytes
    rows = array[choose_rows(len(array), min(MOST_ROWS, max(FEWEST_ROWS, fitting)))]
  # An array of objects, such as strings, holds their addresses.
  digest.update(repr(rows.tolist()).encode() if array.dtype.hasobject else rows.tobytes())
  return to_int64(digest)


def choose_rows(count: int, most: int) -> np.ndarray:
  """Returns up to `most` of `count` indices, evenly spaced, int64 `[rows]`."""
  spaced = np.linspace(0, count - 1, most).astype(np.int64)
  return np.unique(spaced[spaced >= 0])


def to_int64(digest: Any) -> int:
  """Returns the first bits of a hashlib digest."""
  return int.from_bytes(digest.digest()[:8], 'big', signed=True)
