"""Digest: tells two splits of equal size apart, for workers that must all have the same data.

It covers 16 examples, evenly spaced, with the first and the last among them: their bytes, and the
names of files without their folders, since these and the times of files differ between machines.
"""

import hashlib
import os

import numpy as np

from towers.data.bad_records import BadRecordError
from towers.data.encoded_images import ImageSource
from towers.data.examples import Examples

_MOST_EXAMPLES = 16


def digest_examples(examples: Examples) -> str:
  """Returns a text that is equal for equal splits, and in all likelihood for no others.

  Of a split whose examples are neither rows of arrays nor encoded images, that is its size alone.
  """
  digest = hashlib.sha256()
  for array in examples.arrays:
    digest.update(f'{array.dtype} {array.shape}\n'.encode())
    if array.ndim:
      rows = array[_choose(len(array))]
      # An array of objects, such as strings, holds their addresses.
      digest.update(repr(rows.tolist()).encode() if array.dtype.hasobject else rows.tobytes())
  if examples.buckets is not None:
    digest.update(f'{examples.buckets.window} {examples.buckets.checksum}\n'.encode())
  if examples.source is not None:
    _add_images(digest, examples.source, _choose(examples.num_examples))
  return f'{examples.num_examples:,} examples, {digest.hexdigest()[:8]}'


def _choose(count: int) -> np.ndarray:
  spaced = np.linspace(0, count - 1, _MOST_EXAMPLES).astype(np.int64)
  return np.unique(spaced[spaced >= 0])


def _add_images(digest, source: ImageSource, indices) -> None:
  indices = indices.tolist()
  for index, result in zip(indices, source.read(indices)):
    path, offset, record = source.place(index)
    digest.update(f'{os.path.basename(path)} {offset} {record}\n'.encode(errors='surrogateescape'))
    if not isinstance(result, BadRecordError):
      image, label = result
      digest.update(f'{len(image)} {label}\n'.encode() + image)
