"""Idx: the file format of MNIST and its kin, plain or gzipped.

  byte 0 1     2        3           4 …                       4 + 4·dimensions …
  00 00        dtype    dimensions  one uint32 for each       the elements in C order
                                    (all numbers are big-endian)

The first bytes tell whether a file is gzipped, since downloads and mirrors rename files. What a
damaged header claims is never allocated.

Format: the section "file formats for the MNIST database" of LeCun, Cortes and Burges, "The MNIST
database of handwritten digits".
"""

import gzip
import os
import struct
import zlib
from typing import Any, Dict, Tuple

import numpy as np

from towers.base.files import open_regular
from towers.base.usage_error import UsageError

DTYPES: Dict[int, Any] = {
    0x08: np.dtype('uint8'), 0x09: np.dtype('int8'), 0x0B: np.dtype('>i2'),
    0x0C: np.dtype('>i4'), 0x0D: np.dtype('>f4'), 0x0E: np.dtype('>f8')}
# The most that every supported numpy can hold.
MAX_DIMENSIONS = 32
_CHUNK_BYTES = 1 << 20


def read_idx(path: Any) -> np.ndarray:
  """Returns a plain or gzipped idx file, under any name, as a writable array.

  Raises:
    UsageError: the file is missing, damaged or not idx.
  """
  path = os.fspath(path)
  try:
    with open_regular(path) as file:
      is_gzipped = file.read(2) == b'\x1f\x8b'
      file.seek(0)
      return _read_array(gzip.GzipFile(fileobj=file) if is_gzipped else file, path)
  except MemoryError:
    raise UsageError(f'{path}: its elements do not fit into the memory that this process may have; '
                     'see that it is the right file, or run where there is more.') from None
  except (EOFError, OSError, zlib.error) as error:
    # Python 3.7 has no exception of damaged gzip files; one of the file system has an errno.
    if isinstance(error, OSError) and error.errno is not None:
      raise UsageError(f'{path}: cannot be read: {error.strerror}; check the path and its '
                       'permissions.') from error
    raise UsageError(
        f'{path}: damaged: its first bytes are those of gzip, but unpacking its '
        f'{os.path.getsize(path)} bytes fails: {error}; download or copy it again.') from error


def _read_array(stream: Any, path: str) -> np.ndarray:
  dtype, shape = _read_header(stream, path)
  # In Python's integers, since damaged dimensions overflow numpy's.
  num_bytes = dtype.itemsize
  for dimension in shape:
    num_bytes *= dimension
  claim = f'its header claims {num_bytes} bytes of {dtype.name}, of shape {list(shape)}'
  elements = _read_up_to(stream, num_bytes)
  if len(elements) < num_bytes:
    raise UsageError(f'{path}: truncated, or its header is damaged: {claim}, and it holds '
                     f'{len(elements)}; download or copy it again.')
  # One byte further, not to the end: it reaches gzip's checksum, yet does not unpack without bound.
  if stream.read(1):
    raise UsageError(f'{path}: trailing bytes: {claim}, and it holds more; download it again.')
  array = np.frombuffer(elements, dtype=dtype).reshape(shape)
  return array.astype(dtype.newbyteorder('='), copy=False)


def _read_header(stream: Any, path: str) -> Tuple[np.dtype, Tuple[int, ...]]:
  """Returns the dtype and the shape; the elements follow in the stream."""
  magic = _read_up_to(stream, 4)
  if (len(magic) < 4 or magic[:2] != b'\x00\x00' or magic[2] not in DTYPES or
      not 1 <= magic[3] <= MAX_DIMENSIONS):
    known = ', '.join(f'{code:02x} ({dtype.name})' for code, dtype in DTYPES.items())
    found = ' '.join(f'{byte:02x}' for byte in magic)
    raise UsageError(
        f'{path}: not an idx file: it ' + (f'starts with the bytes {found}' if found else
                                           'is empty') +
        f', and an idx file with 00 00, its dtype, one of {known}, and its number of dimensions, '
        f'01 to {MAX_DIMENSIONS:02x}; check the path, or download it again.')
  header = _read_up_to(stream, 4 * magic[3])
  if len(header) < 4 * magic[3]:
    raise UsageError(
        f'{path}: truncated: it ends within its header, after {4 + len(header)} of '
        f'{4 + 4 * magic[3]} bytes; download or copy it again.')
  shape = struct.unpack(f'>{magic[3]}I', header)
  if 0 in shape:
    raise UsageError(f'{path}: its shape is {list(shape)}, so it has no elements; download it '
                     'again.')
  return DTYPES[magic[2]], shape


def _read_up_to(stream: Any, num_bytes: int) -> bytearray:
  """Reads `num_bytes`, or fewer where the stream ends; allocates no more than is there."""
  content = bytearray()
  while len(content) < num_bytes:
    chunk = stream.read(min(_CHUNK_BYTES, num_bytes - len(content)))
    if not chunk:
      break
    content += chunk
  return content
