"""Small files, written whole or not at all, and once if they are to stay."""

import contextlib
import errno
import os

from towers.base.aside import file_aside
from towers.base.regular_file import name_other_kind


def write_whole(path: str, content: bytes) -> None:
  """Writes a temporary file in the same folder and renames it; replaces a link, not its target.

  Raises:
    OSError: and leaves an existing file as it was. Devices, FIFOs and folders are not replaced.
  """
  kind = name_other_kind(path)
  if kind:
    raise OSError(errno.EINVAL, f'it is {kind}, not a file', path)
  with _write_aside(path, content) as temporary:
    os.replace(temporary, path)


def write_once(path: str, content: bytes) -> bool:
  """Writes a new file; returns False, and leaves the other as it is, if somebody was faster.

  Of several processes, on one host or on many, that call it with the same path, all find the same
  content afterwards.

  Raises:
    OSError: it cannot be written, or the file system has no hard links.
  """
  with _write_aside(path, content) as temporary:
    try:
      os.link(temporary, path)  # Unlike a rename, it replaces nothing.
    except FileExistsError:
      return False
  return True


@contextlib.contextmanager
def _write_aside(path, content):
  """Writes a temporary file in the folder of `path`, and removes what is left of it."""
  with file_aside(os.path.dirname(os.path.abspath(path))) as (temporary, file):
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
    # Until now only the owner can read it.
    os.chmod(temporary, 0o644)
    yield temporary
