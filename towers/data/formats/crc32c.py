"""Crc32c: the checksum of TFRecord files (Castagnoli's polynomial, RFC 3720 appendix B.4).

The package google-crc32c computes it with the processor's own instruction: 11 to 14 µs for 110 kB.
"""

from typing import Any, List, Sequence

_MASK_DELTA = 0xA282EAD8


def crc32c_of(buffers: Sequence[bytes]) -> List[int]:
  """Returns the checksum of each buffer, 0 to 2^32 - 1."""
  import google_crc32c  # Not before records are read: its last version for Python 3.7 takes 0.1 s.
  return [google_crc32c.value(buffer) for buffer in buffers]


def mask(checksum: Any) -> Any:
  """Returns a checksum as TFRecord files store it, which may hold checksums themselves.

  It is rotated by 15 bits, and a constant is added.

  Args:
    checksum: an int, or an array of uint64.
  """
  return (((checksum >> 15) | (checksum << 17)) + _MASK_DELTA) & 0xFFFFFFFF
