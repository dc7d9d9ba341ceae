"""Crc32c: the checksum of TFRecord files (Castagnoli's polynomial, RFC 3720 appendix B.4).

The package google-crc32c computes it with the processor's own instruction: 11 to 14 µs for 110 kB.
"""

_MASK_DELTA = 0xA282EAD8


def find_masked_crc(content: bytes) -> int:
  """Returns the checksum of bytes as TFRecord files store it, which may hold checksums themselves:
  rotated by 15 bits, and with a constant added.
  """
  import google_crc32c  # Not before records are read: its last version for Python 3.7 takes 0.1 s.
  checksum = google_crc32c.value(content)
  return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & 0xFFFFFFFF
