"""Crc32c: the checksum of TFRecord files (Castagnoli's polynomial, RFC 3720 appendix B.4), over many buffers at once.

The package google-crc32c computes it with the processor's own instruction, some 2 µs for a photo. Where it is not
installed, numpy does it some hundred times slower, which is still faster than photos are decoded: a checksum is linear,
so every buffer is cut in lanes of equal length, all lanes of all buffers advance by two bytes at a time, and their
results are folded in pairs.

  lane 0 ─┐
  lane 1 ─┴ fold ─┐         fold(left, right) = left advanced over as many zero bytes as right is long, xor right
  lane 2 ─┐       ├ crc
  lane 3 ─┴ fold ─┘
"""

import functools
from typing import Any, Callable, List, Optional, Sequence

import numpy as np

_POLYNOMIAL = 0x82F63B78
_MAX_LANES = 512
_LANE_STEP_BYTES = 16
_MASK_DELTA = 0xA282EAD8


def crc32c_of(buffers: Sequence[bytes]) -> List[int]:
  """Returns the checksum of each buffer, 0 to 2^32 - 1."""
  native = _find_native()
  return crc32c_by_numpy(buffers) if native is None else [native(buffer) for buffer in buffers]


@functools.lru_cache(maxsize=None)
def _find_native() -> Optional[Callable[[bytes], int]]:
  """Returns the package's function, or None without it; imported when first needed, since that may take 0.1 s."""
  try:
    import google_crc32c
  except ImportError:
    return None
  return google_crc32c.value


def mask(checksum: Any) -> Any:
  """Returns a checksum as TFRecord files store it: rotated and moved, since they may hold checksums themselves.

  Args:
    checksum: an int, or an array of uint64.
  """
  return (((checksum >> 15) | (checksum << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def crc32c_by_numpy(buffers: Sequence[bytes]) -> List[int]:
  """Returns the checksum of each buffer without any native code."""
  if not buffers:
    return []
  longest = max(len(buffer) for buffer in buffers)
  num_lanes = 1
  while num_lanes < _MAX_LANES and num_lanes * _LANE_STEP_BYTES < longest:
    num_lanes *= 2
  lane_bytes = max(-(-longest // (num_lanes * _LANE_STEP_BYTES)), 1) * _LANE_STEP_BYTES
  # Zeros ahead of a message change nothing if the register starts at 0; and starting at all ones is starting at 0 with
  # the first four bytes inverted. Where a message is shorter than that, the rest of them falls to the end.
  lanes = np.zeros([len(buffers), num_lanes * lane_bytes], np.uint8)
  ends = np.zeros([len(buffers), 4], np.uint8)
  for row, end, buffer in zip(lanes, ends, buffers):
    begin = len(row) - len(buffer)
    row[begin:] = np.frombuffer(buffer, np.uint8)
    row[begin:begin + 4] ^= 0xFF
    end[:max(4 - len(buffer), 0)] = 0xFF
  words = lanes.reshape(len(buffers) * num_lanes, lane_bytes).view('<u2')

  table = _two_byte_table()
  register = np.zeros(len(words), np.uint32)
  for column in np.ascontiguousarray(words.T):
    register = (register >> 16) ^ table.take((register & 0xFFFF) ^ column)
  while len(register) > len(buffers):
    register = _advance(register[0::2], lane_bytes) ^ register[1::2]
    lane_bytes *= 2
  return [int(checksum) for checksum in register ^ ends.view('<u4')[:, 0] ^ np.uint32(0xFFFFFFFF)]


@functools.lru_cache(maxsize=None)
def _two_byte_table() -> np.ndarray:
  """Returns what the register becomes after two zero bytes, for each value of its low half, [65536] uint32."""
  values: Any = np.arange(65536, dtype=np.uint32)
  for _ in range(16):
    values = (values >> 1) ^ (_POLYNOMIAL * (values & 1)).astype(np.uint32)
  return values


@functools.lru_cache(maxsize=None)
def _advance_tables(num_bytes: int) -> np.ndarray:
  """Returns what the register becomes after `num_bytes` zero bytes, an even number, for each of its four bytes."""
  values = (np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32))[:, np.newaxis]).astype(np.uint32)
  if num_bytes == 2:
    return (values >> 16) ^ _two_byte_table()[values & 0xFFFF]
  if num_bytes % 4:
    return _advance(_advance(values, num_bytes - 2), 2)
  return _advance(_advance(values, num_bytes // 2), num_bytes // 2)


def _advance(register, num_bytes):
  tables = _advance_tables(num_bytes)
  return (tables[0][register & 255] ^ tables[1][(register >> 8) & 255] ^ tables[2][(register >> 16) & 255]
          ^ tables[3][register >> 24])
