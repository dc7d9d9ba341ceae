"""Aside: files and folders under a name that nobody reads, until they are whole and renamed.

  .writing-x7f3k2     locked by the process that writes it, for as long as that lives

The kernel drops the lock when the process ends, also by `kill -9`. So `sweep` takes away what dead
processes left, and never what another one is writing, on this host or on another of a shared disk.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from typing import BinaryIO, Iterator, Tuple

PREFIX = '.writing-'


@contextlib.contextmanager
def file_aside(folder: str) -> Iterator[Tuple[str, BinaryIO]]:
  """Makes a file in a folder; yields its path and the open file, and removes what is left of it.

  Raises:
    OSError: it cannot be made.
  """
  while True:
    handle, path = tempfile.mkstemp(prefix=PREFIX, dir=folder)
    with os.fdopen(handle, 'wb') as file:
      if _lock(handle, path):
        try:
          yield path, file
        finally:
          with contextlib.suppress(FileNotFoundError):  # It has been renamed.
            os.remove(path)
        return


@contextlib.contextmanager
def folder_aside(folder: str) -> Iterator[str]:
  """Makes a folder in another; yields its path, and removes it and all that is left in it.

  Raises:
    OSError: it cannot be made.
  """
  while True:
    path = tempfile.mkdtemp(prefix=PREFIX, dir=folder)
    handle = os.open(path, os.O_RDONLY)
    try:
      if _lock(handle, path):
        try:
          yield path
        finally:
          shutil.rmtree(path, ignore_errors=True)
        return
    finally:
      os.close(handle)


def sweep(folder: str) -> None:
  """Removes what processes that have ended left in a folder; does nothing where it cannot."""
  with contextlib.suppress(OSError):
    for name in os.listdir(folder):
      if name.startswith(PREFIX):
        with contextlib.suppress(OSError):
          _remove_unlocked(os.path.join(folder, name))


def _lock(handle, path):
  """Locks a new file; returns whether it is still there, since a sweep may have come first."""
  # Where files have no locks, nothing is swept either.
  with contextlib.suppress(OSError):
    fcntl.flock(handle, fcntl.LOCK_EX)
  try:
    return os.path.samestat(os.stat(path), os.fstat(handle))
  except FileNotFoundError:
    return False


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
