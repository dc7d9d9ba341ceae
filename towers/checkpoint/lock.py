"""The lock of a checkpoint folder: two runs in one would delete each other's checkpoints.

The kernel holds the lock for the process (`flock`), so that a killed run leaves none behind. The
file names the process.
"""

import contextlib
import fcntl
import json
import os
import socket
import time
from typing import Iterator, Optional

from towers.base.files import open_regular
from towers.base.paths import check_local_path, describe_no_folder
from towers.base.usage_error import UsageError

_NAME = 'lock'


@contextlib.contextmanager
def lock_folder(folder: Optional[str]) -> Iterator[None]:
  """Makes a folder and keeps other runs out of it; does nothing for None.

  One that cannot be made, is not on this machine, or is another process's is a UsageError.
  """
  if folder is None:
    yield
    return
  check_local_path('checkpoint_dir', folder)
  try:
    os.makedirs(folder, exist_ok=True)
    opened = open_regular(os.path.join(folder, _NAME), 'r+b')
  except OSError as error:
    raise UsageError(describe_no_folder(
        'checkpoint_dir', folder, error.strerror or str(error))) from None
  with opened as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise UsageError(f'checkpoint_dir {folder} is in use by another run: '
                       f'{_describe(file.read(1000))}. Wait until it has ended, end it, or give '
                       'another checkpoint_dir.') from None
    except OSError as error:
      raise UsageError(f'checkpoint_dir {folder} cannot be locked: {error.strerror}. Choose a '
                       'folder on another file system.') from None
    with contextlib.suppress(OSError):  # On a full disk the lock holds all the same.
      file.truncate(0)
      owner = dict(process=os.getpid(), host=socket.gethostname(),
                   since=time.strftime('%Y-%m-%d %H:%M:%S'))
      os.write(file.fileno(), json.dumps(owner).encode())  # No buffer, to be written at the end.
    yield


def _describe(text):
  try:
    owner = json.loads(text)
    return f"process {owner['process']} on {owner['host']}, since {owner['since']}"
  except (ValueError, KeyError, TypeError):
    return 'a process that did not say which'
