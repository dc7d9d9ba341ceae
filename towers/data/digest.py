"""Digest: tells two splits apart, for workers that must have the same data, and for resumed runs.

It covers all bytes of small arrays, which labels are, and up to 1,024 rows of others, evenly
spaced. Of records it covers all lengths. Of encoded images it covers the names of 1,024 files
without their folders, since these differ between machines, and the bytes of 16.
"""

import hashlib
import os
from typing import Any, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from towers.data.bad_records import BadRecordError
from towers.data.examples import Examples

# The name of a tensor in checkpoints that belongs to no variable.
DATA_TENSOR = 'towers/data'
# Raise it with every change of what a digest covers.
_VERSION = 1
_MOST_ROWS = 1024
_MOST_IMAGES = 16
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
  if examples.source is not None:
    parts.append(_digest_images(examples.source, examples.num_examples))
  return Digest(examples.num_examples, tuple(parts))


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
    rows = array[_choose(len(array), min(_MOST_ROWS, max(_MOST_IMAGES, fitting)))]
  # An array of objects, such as strings, holds their addresses.
  digest.update(repr(rows.tolist()).encode() if array.dtype.hasobject else rows.tobytes())
  return _to_int64(digest)


def _digest_images(source: Any, count: int) -> int:
  digest = hashlib.sha256()
  for index in _choose(count, _MOST_ROWS).tolist():
    path, offset, record = source.place(index)
    digest.update(f'{os.path.basename(path)} {offset} {record}\n'.encode(errors='surrogateescape'))
  for result in source.read(_choose(count, _MOST_IMAGES).tolist()):
    if not isinstance(result, BadRecordError):
      image, label = result
      digest.update(f'{len(image)} {label}\n'.encode() + image)
  return _to_int64(digest)


def _choose(count: int, most: int) -> np.ndarray:
  spaced = np.linspace(0, count - 1, most).astype(np.int64)
  return np.unique(spaced[spaced >= 0])


def _to_int64(digest) -> int:
  return int.from_bytes(digest.digest()[:8], 'big', signed=True)
