"""Npy: numpy's own files, mapped into memory and only read where batches are gathered from them."""

import os

import numpy as np

from towers.base.files import open_regular
from towers.base.usage_error import UsageError
from towers.data.arrays import DTYPES


def map_npy(path: str) -> np.ndarray:
  """Maps a .npy file into memory, read-only.

  Raises:
    UsageError: it cannot be read, is not a .npy file, or has another size than its header declares.
  """
  try:
    with open_regular(path) as file:
      if file.read(6) != b'\x93NUMPY':
        raise ValueError('its first bytes are others')
    array = np.load(path, mmap_mode='r', allow_pickle=False)
    size = os.path.getsize(path)
  except Exception as error:  # Of a damaged header numpy raises whatever Python's parsers do.
    raise UsageError(f'{path}: cannot be read as a .npy file of numbers: {str(error)[:200]}; copy '
                     'it again, or make it with numpy.save.') from None
  if array.dtype.kind in 'SU':
    raise UsageError(f'{path}: it holds strings, and numbers are read: number the classes, as by '
                     'names, labels = numpy.unique(array, return_inverse=True), and save labels.')
  if array.dtype.name not in DTYPES or not array.size:
    raise UsageError(f'{path}: {array.dtype.name} of shape {list(array.shape)} cannot be read; '
                     'give at least 1 example, and convert the array with .astype() to one of '
                     f"{', '.join(DTYPES)}.")
  if array.offset + array.nbytes != size:
    raise UsageError(f'{path}: damaged: its header declares {array.dtype} of shape '
                     f'{list(array.shape)}, {array.offset + array.nbytes:,} bytes in all, and the '
                     f'file has {size:,}; copy or make it again.')
  if not array.flags.c_contiguous:
    raise UsageError(f'{path}: in Fortran order, which scatters an example over the whole file; '
                     'save numpy.ascontiguousarray(array).')
  return array
