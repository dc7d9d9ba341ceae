"""Files: written whole or not at all, under a name that nobody reads until they are renamed.

  .writing-x7f3k2     locked by the process that writes it, for as long as that lives

The kernel drops the lock when the process ends, also by `kill -9`. So `sweep` takes away what dead
processes left, and never what another one is writing, on this host or on another of a shared disk.

What has a path and is no regular file is neither read nor replaced: to open a FIFO waits for its
other end, a device may give bytes without end, and a rename would take the place of either, as root
also that of /dev/null.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from typing import IO, BinaryIO, Iterator, Tuple

PREFIX = '.writing-'
_KINDS = ((stat.S_ISFIFO, 'a FIFO'), (stat.S_ISSOCK, 'a socket'), (stat.S_ISCHR, 'a device'),
          (stat.S_ISBLK, 'a device'), (stat.S_ISDIR, 'a folder'))


def write_whole(path: str, content: bytes) -> None:
  """Writes a file by one call, as `writing` does; raises OSError."""
  with writing(path) as file:
    file.write(content)


@contextlib.contextmanager
def writing(path: str) -> Iterator[BinaryIO]:
  """Opens a temporary file in the same folder, which is renamed at the end of the context.

  It replaces a link, not its target.

  Raises:
    OSError: and leaves an existing file as it was. Devices, FIFOs and folders are not replaced.
  """
  kind = name_other_kind(path)
  if kind:
    raise OSError(errno.EINVAL, f'it is {kind}, not a file', path)
  with file_aside(os.path.dirname(os.path.abspath(path))) as (temporary, file):
    yield file
    file.flush()
    os.fsync(file.fileno())
    # Until now only the owner can read it.
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)


@contextlib.contextmanager
def file_aside(folder: str) -> Iterator[Tuple[str, BinaryIO]]:
  """Makes a file in a folder; yields its path and the open file, and removes what is left of it."""
  while True:
    handle, path = tempfile.mkstemp(prefix=PREFIX, dir=folder)
    _lock(handle)
    if os.path.exists(path):
      break
    os.close(handle)  # Another process's `sweep` came before the lock.
  with os.fdopen(handle, 'wb') as file:
    try:
      yield path, file
    finally:
      with contextlib.suppress(FileNotFoundError):  # It has been renamed.
        os.remove(path)


@contextlib.contextmanager
def folder_aside(folder: str) -> Iterator[str]:
  """Makes a folder in another; yields its path, and removes it and all that is left in it."""
  path = tempfile.mkdtemp(prefix=PREFIX, dir=folder)
  handle = os.open(path, os.O_RDONLY)
  try:
    _lock(handle)
    yield path
  finally:
    shutil.rmtree(path, ignore_errors=True)
    os.close(handle)


def sweep(folder: str) -> None:
  """Removes what processes that have ended left in a folder; does nothing where it cannot."""
  with contextlib.suppress(OSError):
    for name in os.listdir(folder):
      if name.startswith(PREFIX):
        with contextlib.suppress(OSError):
          _remove_unlocked(os.path.join(folder, name))


def name_other_kind(path: str) -> str:
  """Returns what has this path if that is no regular file, such as 'a FIFO'; else ''.

  A link counts as what it leads to, and /dev/stdout as a stream whatever that is.
  """
  folder = os.path.realpath(os.path.dirname(os.path.abspath(path)))
  target = os.path.join(folder, os.readlink(path)) if os.path.islink(path) else ''
  if folder.startswith('/proc/') or target.startswith('/proc/'):
    return 'a stream of a process'
  try:
    return _name_mode(os.stat(path).st_mode)
  except OSError:
    return ''


def open_regular(path: str, mode: str = 'rb') -> IO:
  """Opens a file as `os.fdopen`; raises an OSError where it is no regular file, too.

  To write, it makes the file, and follows no link, which a folder of another user may hold.
  """
  return os.fdopen(open_handle(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW if '+' in mode else
                               os.O_RDONLY), mode)


def open_handle(path: str, flags: int = os.O_RDONLY) -> int:
  """Opens a file as `os.open`; raises an OSError where it is no regular file, too."""
  handle = os.open(path, flags | os.O_NONBLOCK, 0o644)
  kind = _name_mode(os.fstat(handle).st_mode)
  if kind:
    os.close(handle)
    raise OSError(errno.EINVAL, f'it is {kind}, not a file', path)
  return handle


def _lock(handle):
  # Where files have no locks, nothing is swept either.
  with contextlib.suppress(OSError):
    fcntl.flock(handle, fcntl.LOCK_EX)


def _remove_unlocked(path):
  if os.path.islink(path):  # No process has made it, and it is not followed.
    os.remove(path)
    return
  handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if os.path.isdir(path):
      shutil.rmtree(path, ignore_errors=True)
    else:
      os.remove(path)
  finally:
    os.close(handle)


def _name_mode(mode):
  return next((name for is_kind, name in _KINDS if is_kind(mode)), '')
