"""Regular files: what else has a path is neither read nor replaced.

To open a FIFO waits for its other end, a device may give bytes without end, and a file that is
written aside and renamed would take the place of either, as root also that of /dev/null.
"""

import errno
import os
import stat
from typing import BinaryIO

_KINDS = ((stat.S_ISFIFO, 'a FIFO'), (stat.S_ISSOCK, 'a socket'), (stat.S_ISCHR, 'a device'),
          (stat.S_ISBLK, 'a device'), (stat.S_ISDIR, 'a folder'))


def name_other_kind(path: str) -> str:
  """Returns what has this path if that is no regular file, such as 'a FIFO'; '' for a file.

  Returns '' too where nothing is, or a link that leads nowhere. A link counts as what it leads to,
  and /dev/stdout as a stream whatever that is.
  """
  folder = os.path.realpath(os.path.dirname(os.path.abspath(path)))
  target = os.path.join(folder, os.readlink(path)) if os.path.islink(path) else ''
  if folder.startswith('/proc/') or target.startswith('/proc/'):
    return 'a stream of a process'
  try:
    return _name_mode(os.stat(path).st_mode)
  except OSError:
    return ''


def open_regular(path: str) -> BinaryIO:
  """Opens a file to read.

  Raises:
    OSError: it cannot be opened, or is no regular file.
  """
  handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
  kind = _name_mode(os.fstat(handle).st_mode)
  if kind:
    os.close(handle)
    raise OSError(errno.EINVAL, f'it is {kind}, not a file', path)
  return os.fdopen(handle, 'rb')


def _name_mode(mode):
  return next((name for is_kind, name in _KINDS if is_kind(mode)), '')
