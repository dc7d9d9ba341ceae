"""Idx: the file format of MNIST and its kin, plain or gzipped.

  byte 0 1     2        3           4 …                       4 + 4·dimensions …
  00 00        dtype    dimensions  one uint32 for each       the elements in C order
                                    (all numbers are big-endian)

The first bytes tell whether a file is gzipped, since downloads and mirrors rename files. What a
damaged header claims is never allocated, and a small archive cannot unpack without end.

Format: the section "file formats for the MNIST database" of LeCun, Cortes and Burges, "The MNIST
database of handwritten digits".
"""

import gzip
import os
import struct
import zlib
from typing import Any, Dict, Sequence, Tuple

import numpy as np

from towers.base.usage_error import UsageError

DTYPES: Dict[int, Any] = {
    0x08: np.dtype('uint8'),
    0x09: np.dtype('int8'),
    0x0B: np.dtype('>i2'),
    0x0C: np.dtype('>i4'),
    0x0D: np.dtype('>f4'),
    0x0E: np.dtype('>f8'),
}
_GZIP_MAGIC = b'\x1f\x8b'
# Deflate cannot do better than 1032 : 1 (zlib's technical details), so no gzipped file holds more
# than this.
_MAX_GZIP_RATIO = 1032
# The most that every supported numpy can hold.
MAX_DIMENSIONS = 32
_CHUNK_BYTES = 1 << 20


def read_idx(path: Any) -> np.ndarray:
  """Returns a plain or gzipped idx file, under any name, as a writable array.

  Raises:
    UsageError: the file is missing, damaged or not idx.
  """
  path = os.fspath(path)
  if not os.path.exists(path):
    raise UsageError(f'{path}: no such file; check the path.')
  if not os.path.isfile(path):
    raise UsageError(f'{path}: this is not a file, and an idx file was expected; check the path.')
  try:
    with open(path, 'rb') as file:
      size = os.path.getsize(path)
      is_gzipped = file.read(2) == _GZIP_MAGIC
      file.seek(0)
      if not is_gzipped:
        return _read_array(file, path, max_bytes=size, kind='the file')
      with gzip.GzipFile(fileobj=file, mode='rb') as unzipped:
        return _read_array(unzipped, path, max_bytes=_MAX_GZIP_RATIO * size,
                           kind='the gzipped file, unpacked,')
  except MemoryError:
    raise UsageError(f'{path}: its elements do not fit into the memory that this process may have; '
                     'see that it is the right file, or run where there is more.') from None
  except (EOFError, zlib.error) as error:
    raise UsageError(_damaged_gzip(path, error)) from error
  except OSError as error:
    # Python 3.7 has no exception of its own for damaged gzip files; an error of the file system has
    # an errno.
    if error.errno is None:
      raise UsageError(_damaged_gzip(path, error)) from error
    raise UsageError(
        f'{path}: cannot be read: {error}; check the path and its permissions.') from error


def _read_array(stream: Any, path: str, *, max_bytes: int, kind: str) -> np.ndarray:
  """Reads an array from a stream of at most `max_bytes`, which messages call `kind`."""
  dtype, shape = _read_header(stream, path, kind)
  # In Python's integers, since damaged dimensions overflow numpy's.
  num_bytes = dtype.itemsize
  for dimension in shape:
    num_bytes *= dimension
  claim = (f'{kind} claims {dtype.name} of shape {list(shape)}, which takes {num_bytes} bytes '
           'after the header')

  max_element_bytes = max_bytes - 4 - 4 * len(shape)
  if num_bytes > max_element_bytes:
    raise UsageError(
        f'{path}: truncated, or its header is damaged: {claim}, and holds {max_element_bytes} at '
        'most; download or copy it again.')
  elements = _read_up_to(stream, num_bytes)
  if len(elements) < num_bytes:
    raise UsageError(f'{path}: truncated: {claim}, and holds {len(elements)}; download or copy it '
                     'again.')
  # One byte further, and not to the end: it reaches gzip's checksum, yet does not unpack without
  # bound.
  if stream.read(1):
    raise UsageError(f'{path}: trailing bytes: {claim}, and holds more; its header is damaged or '
                     'it was written twice: download it again.')

  array = np.frombuffer(elements, dtype=dtype).reshape(shape)
  return array.astype(dtype.newbyteorder('='), copy=False)


def _read_header(stream: Any, path: str, kind: str) -> Tuple[np.dtype, Tuple[int, ...]]:
  """Returns the dtype and the shape; the elements follow in the stream."""
  magic = _read_up_to(stream, 4)
  if not magic:
    raise UsageError(f'{path}: {kind} is empty; download or copy it again.')
  if len(magic) < 4 or magic[:2] != b'\x00\x00':
    raise UsageError(
        f'{path}: not an idx file: {kind} starts with the bytes {_hex(magic)}, and an idx file '
        'with 00 00, its dtype and its number of dimensions; check the path, or download it '
        'again.')
  if magic[2] not in DTYPES:
    known = ', '.join(f'0x{code:02X} ({dtype.name})' for code, dtype in DTYPES.items())
    raise UsageError(f'{path}: the dtype of an idx file is one of {known}, and {kind} has '
                     f'0x{magic[2]:02X}; download it again.')

  dtype, num_dimensions = DTYPES[magic[2]], magic[3]
  if not 1 <= num_dimensions <= MAX_DIMENSIONS:
    raise UsageError(f'{path}: {kind} claims {num_dimensions} dimensions, and 1 to '
                     f'{MAX_DIMENSIONS} are possible; download it again.')
  header = _read_up_to(stream, 4 * num_dimensions)
  if len(header) < 4 * num_dimensions:
    raise UsageError(
        f'{path}: truncated: {kind} ends within its header, after {4 + len(header)} of '
        f'{4 + 4 * num_dimensions} bytes; download or copy it again.')

  shape = struct.unpack(f'>{num_dimensions}I', header)
  if 0 in shape:
    raise UsageError(f'{path}: {kind} has shape {list(shape)} and so no elements; download it '
                     'again.')
  return dtype, shape


def _read_up_to(stream: Any, num_bytes: int) -> bytearray:
  """Reads `num_bytes`, or fewer where the stream ends; allocates no more than is there."""
  content = bytearray()
  while len(content) < num_bytes:
    chunk = stream.read(min(_CHUNK_BYTES, num_bytes - len(content)))
    if not chunk:
      break
    content += chunk
  return content


def _hex(content: Sequence[int]) -> str:
  return ' '.join(f'{byte:02x}' for byte in content)


def _damaged_gzip(path: str, error: Exception) -> str:
  return (f'{path}: damaged: its first bytes are those of gzip, but unpacking its '
          f'{os.path.getsize(path)} bytes fails: {error}; download or copy it again.')
