"""TFRecord: files of records of any length, read by index, and written whole or not at all.

  length        8 bytes, little-endian ─┐ scanned once, checked, and kept as the file's index
  crc of it     4 bytes                ─┘
  payload       `length` bytes         ─┐ read by record, checked at each reading
  crc of it     4 bytes                ─┘

With an index of where each record begins, a pipeline shards, shuffles and skips integers, and reads
only the records it needs. The index of FILE is kept as `.index/FILE`, or in the user's cache where
that cannot be written, and is made anew when the file's size or time of change differs.

Format: TensorFlow's `record_writer.h`; checksums are crc32c (RFC 3720 appendix B.4), which
google-crc32c computes with the processor's own instruction, masked.
"""

import functools
import hashlib
import os
import struct
import sys
import threading
import zlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from towers.base.files import open_handle, open_regular, sweep, write_whole
from towers.base.json_files import seal, unseal
from towers.base.output import write_line
from towers.base.paths import find_in_cache
from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecordError

_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_LENGTH, _CHECKSUM = struct.Struct('<Q'), struct.Struct('<I')
_COMPRESSED = (b'\x1f\x8b', b'\x78\x9c', b'\x78\x01', b'\x78\xda')  # By gzip and zlib.
_FORMAT = 'towers index 2'
_INDEX_DIR = '.index'
_HEADER = dict(format=str, size=int, mtime_ns=object, crc32=int, damage=object, facts={str: object})
_MOST_OPEN_FILES = 256
_MASK_DELTA = 0xA282EAD8


class Damage(NamedTuple):
  """Where a file's records end before the file does."""
  record: int  # The index of the first record that cannot be found.
  offset: int  # Where it begins, in bytes; `num_bytes` are left from there on.
  num_bytes: int
  reason: str


class FileIndex(NamedTuple):
  """Where each record of a file is."""
  path: str
  lengths: np.ndarray  # Of the payloads in bytes, `[records]` int64.
  damage: Optional[Damage] = None  # Where the scan had to stop.
  facts: Dict[str, Any] = {}  # What a writer noted of the file, such as its checksum.

  @property
  def offsets(self) -> np.ndarray:
    """Where each record begins, in bytes, `[records]` int64."""
    sizes = self.lengths + (_HEADER_BYTES + _FOOTER_BYTES)
    return np.cumsum(sizes) - sizes


def load_index(path: Any) -> FileIndex:
  """Returns a file's index: the kept one, or else that of a scan, which is then kept."""
  path = os.fspath(path)
  try:
    status = os.stat(path)
    for kept in _index_paths(path):
      index = _read_index(kept, path, status)
      if index is not None:
        return index
    index = scan_tfrecord(path)
  except OSError as error:
    raise UsageError(f'{path}: cannot be read: {error.strerror}; check the path and its '
                     'permissions.') from None
  keep_index(index, status)
  return index


def scan_tfrecord(path: str) -> FileIndex:
  """Returns a file's index from the header of every record; reads no payload."""
  lengths: List[int] = []
  with open_regular(path) as file:
    descriptor, size = file.fileno(), os.fstat(file.fileno()).st_size
    offset, reason = 0, ''
    while offset < size:
      header = os.pread(descriptor, _HEADER_BYTES, offset)
      if len(header) < _HEADER_BYTES:
        reason = f'truncated: {size - offset} bytes are left, and a header has {_HEADER_BYTES}'
        break
      length, checksum = struct.unpack('<QI', header)
      end = offset + _HEADER_BYTES + length + _FOOTER_BYTES
      if checksum != find_masked_crc(header[:8]):
        reason = 'its length is damaged'
        if offset == 0:
          if header[:2] in _COMPRESSED:
            raise UsageError(f'{path}: compressed as a whole, so that no record can be found '
                             'without reading all before it: decompress it (JPEGs are compressed '
                             'themselves).')
          reason += ', or this is no TFRecord file'
        break
      if end > size:
        reason = (f'truncated: its length is {length:,}, which ends {end - size:,} bytes after the '
                  'file')
        break
      lengths.append(length)
      offset = end
  damage = Damage(len(lengths), offset, size - offset, reason) if reason else None
  return FileIndex(path, np.array(lengths, np.int64), damage)


def keep_index(index: FileIndex, status: Optional[os.stat_result] = None) -> None:
  """Keeps a file's index for `load_index`: beside the file, or else in the user's cache."""
  status = status or os.stat(index.path)
  lengths = index.lengths.astype('<i8').tobytes()
  header = dict(
      format=_FORMAT, size=status.st_size, mtime_ns=status.st_mtime_ns,
      crc32=zlib.crc32(lengths), damage=index.damage, facts=index.facts)
  content = seal(header).encode() + b'\n' + lengths
  for path in _index_paths(index.path):
    try:
      os.makedirs(os.path.dirname(path), exist_ok=True)
      sweep(os.path.dirname(path))
      write_whole(path, content)
      return
    except OSError:  # The next place, or none: then the next run scans again.
      continue


def _index_paths(path: str) -> Tuple[str, str]:
  folder, name = os.path.split(os.path.abspath(path))
  digest = hashlib.sha256(folder.encode(errors='surrogateescape')).hexdigest()[:16]
  return os.path.join(folder, _INDEX_DIR, name), find_in_cache('index', digest, name)


def _read_index(kept: str, path: str, status: os.stat_result) -> Optional[FileIndex]:
  """Returns a kept index, or None if it is missing, damaged or that of another file."""
  try:
    with open_regular(kept) as file:
      header_line, _, content = file.read().partition(b'\n')
    header = unseal(header_line.decode(), _HEADER)
    expected = (_FORMAT, status.st_size, status.st_mtime_ns)
    if (header['format'], header['size'], header['mtime_ns']) != expected:
      return None
    if zlib.crc32(content) != header['crc32']:
      raise ValueError('its lengths are damaged')
    return FileIndex(path, np.frombuffer(content, '<i8').astype(np.int64),
                     header['damage'] and Damage(*header['damage']), header['facts'])
  except FileNotFoundError:
    return None
  except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
    write_line(f'WARNING: {kept} cannot be read ({error}), and is made anew', sys.stderr)
    return None


class Records:
  """The records of several files, by index: those of the first file, then of the second, and so on.

  Any number of threads may read. Files stay open, up to a limit; threads share no file position.

  Attributes:
    lengths: of all payloads in bytes, `[records]` int64.
  """

  def __init__(self, indexes: Sequence[FileIndex]):
    self._paths = [index.path for index in indexes]
    self.lengths = np.concatenate([index.lengths for index in indexes] or [np.zeros(0, np.int64)])
    self._offsets = np.concatenate([index.offsets for index in indexes] or [np.zeros(0, np.int64)])
    self._ends = np.cumsum([len(index.lengths) for index in indexes], dtype=np.int64)
    self._descriptors: Dict[int, int] = {}
    self._lock = threading.Lock()

  def __len__(self) -> int:
    return len(self.lengths)

  def __del__(self) -> None:
    for descriptor in self._descriptors.values():
      os.close(descriptor)

  def place(self, index: int) -> Tuple[str, int, int]:
    """Returns the file of a record, its offset in it in bytes, and its index in it."""
    file = int(np.searchsorted(self._ends, index, 'right'))
    first = int(self._ends[file - 1]) if file else 0
    return self._paths[file], int(self._offsets[index]), index - first

  def read(self, indices: Sequence[int]) -> List[Any]:
    """Returns for each index its payload, bytes, or a BadRecordError."""
    where = np.asarray(indices, np.int64)
    # Of all at a time, as plain numbers: one by one they cost as much as a small record.
    lengths, offsets = self.lengths[where].tolist(), self._offsets[where].tolist()
    files = np.searchsorted(self._ends, where, 'right').tolist()
    self._advise(files, lengths, offsets)
    return list(map(self._read, files, lengths, offsets))

  def _read(self, file, length, offset):
    size = _HEADER_BYTES + length + _FOOTER_BYTES
    try:
      content = self._pread(file, size, offset)
    except OSError as error:
      return BadRecordError(f'cannot be read: {error.strerror}')
    if len(content) < size or _LENGTH.unpack_from(content)[0] != length:
      return BadRecordError('the file has changed since it was indexed')
    payload = content[_HEADER_BYTES:-_FOOTER_BYTES]
    if _CHECKSUM.unpack_from(content, size - _FOOTER_BYTES)[0] != find_masked_crc(payload):
      return BadRecordError('its payload is damaged: the checksum is wrong')
    return payload

  def _advise(self, files, lengths, offsets):
    """Lets the system read all records at a time, instead of one after another."""
    if not hasattr(os, 'posix_fadvise'):
      return
    for file, length, offset in zip(files, lengths, offsets):
      descriptor = self._descriptors.get(file)
      if descriptor is not None:
        size = length + _HEADER_BYTES + _FOOTER_BYTES
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)

  def _pread(self, file, size, offset):
    descriptor = self._descriptors.get(file)
    if descriptor is not None:
      return os.pread(descriptor, size, offset)
    descriptor = open_handle(self._paths[file])
    with self._lock:
      keeps = file not in self._descriptors and len(self._descriptors) < _MOST_OPEN_FILES
      if keeps:
        self._descriptors[file] = descriptor
    try:
      return os.pread(descriptor, size, offset)
    finally:
      if not keeps:
        os.close(descriptor)


def find_masked_crc(content: bytes) -> int:
  """Returns the checksum of bytes as TFRecord files store it, which may hold checksums themselves:
  rotated by 15 bits, and with a constant added.
  """
  checksum = _load_crc32c()(content)
  return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & 0xFFFFFFFF


@functools.lru_cache(maxsize=None)
def _load_crc32c() -> Callable[[bytes], int]:
  """Returns what computes it, not before records are read, and once: to import costs as much."""
  import google_crc32c  # Its last version for Python 3.7 takes 0.1 s.
  return google_crc32c.value


def write_record(file: Any, payload: bytes) -> None:
  """Appends a record to an open binary file."""
  length = struct.pack('<Q', len(payload))
  for part in (length, payload):
    file.write(part + struct.pack('<I', find_masked_crc(part)))
