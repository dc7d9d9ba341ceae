"""Room on a disk: whether that is why a file could not be written."""

import errno
import os

_REASONS = [os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]


def is_about_room(reason: str) -> bool:
  """Whether a reason, of Python or TensorFlow, says that a disk, quota or file is full."""
  return any(known in reason for known in _REASONS)
