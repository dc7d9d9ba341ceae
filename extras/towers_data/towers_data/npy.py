"""Npy: numpy's own files, mapped into memory and only read where batches are gathered from them.

  \\x93NUMPY  version  header length
  {'descr': '|u1', 'fortran_order': False, 'shape': (60000, 28, 28), }
  elements

Numpy reads the header, and the file's size must be what it declares. `numpy.load` would map the
file too, but its message for a truncated file has no sizes, and its product of a damaged shape may
overflow. Nothing is ever unpickled.

Format: numpy's enhancement proposal 1, "A simple file format for numpy arrays".
"""

import os
from typing import Any, Tuple

import numpy as np

from towers.base.files import open_regular
from towers.base.usage_error import UsageError
from towers.data.arrays import DTYPES

# By version: the number of bytes of the header's length, and what reads from there.
_VERSIONS = {(1, 0): (2, np.lib.format.read_array_header_1_0),
             (2, 0): (4, np.lib.format.read_array_header_2_0)}
# What later versions of numpy read; the header of numbers has some hundred.
_MAX_HEADER_BYTES = 10000


def map_npy(path: str) -> np.ndarray:
  """Maps a .npy file into memory, read-only.

  Raises:
    UsageError: it cannot be read, is not a .npy file, or has another size than its header declares.
  """
  try:
    with open_regular(path) as file:
      dtype, shape = _read_header(path, file)
      offset = file.tell()
    size = os.path.getsize(path)
  except OSError as error:
    raise UsageError(f'{path}: cannot be read: {error.strerror}; check the path and its '
                     'permissions.') from None

  num_bytes = dtype.itemsize
  for length in shape:
    num_bytes *= length
  declared = offset + num_bytes
  if declared != size:
    damage = 'truncated' if size < declared else 'damaged'
    raise UsageError(f'{path}: {damage}: its header declares {dtype} of shape {list(shape)}, '
                     f'{declared:,} bytes in all, and the file has {size:,}; copy or make it '
                     'again.')
  if 0 in shape:
    raise UsageError(f'{path}: shape {list(shape)} has no elements; give at least 1 example.')
  return np.memmap(path, dtype, mode='r', offset=offset, shape=shape)


def _read_header(path: str, file: Any) -> Tuple[np.dtype, Tuple[int, ...]]:
  """Returns the dtype and the shape; the elements follow in the file."""
  try:
    length_bytes, read = _VERSIONS[np.lib.format.read_magic(file)]
  except (ValueError, KeyError):
    raise UsageError(f'{path}: not a .npy file, whose first bytes are \\x93NUMPY and a version of '
                     '1 or 2; make it with numpy.save.') from None
  length = int.from_bytes(file.peek(length_bytes)[:length_bytes], 'little')
  if length > _MAX_HEADER_BYTES:
    raise UsageError(f'{path}: damaged: its header declares a length of {length:,} bytes.')
  try:
    shape, is_fortran, dtype = read(file)
    if min(shape, default=0) < 0 or dtype.kind not in 'biufc':
      raise ValueError(f'{dtype} of shape {shape}')
  except Exception as error:
    # Where the text is not a dictionary, numpy raises whatever Python's parsers do.
    raise UsageError(f'{path}: its header is not that of an array of numbers: {str(error)[:200]}; '
                     'make it with numpy.save, of an array of ints or floats.') from None
  if dtype.name not in DTYPES:
    raise UsageError(f"{path}: dtype {dtype.name} cannot be read; convert the array with .astype() "
                     f"to one of {', '.join(DTYPES)}.")
  if is_fortran:
    raise UsageError(f'{path}: in Fortran order, which scatters an example over the whole file; '
                     'save numpy.ascontiguousarray(array).')
  return dtype, shape
