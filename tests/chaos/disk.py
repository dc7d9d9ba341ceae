"""A disk for checkpoints that can be full for a while.

As root it is a file system of its own in memory; otherwise a limit of the size of the files that
the processes write stands in for it.
"""

import contextlib
import os
import resource
import subprocess

# Twenty times what a chain keeps.
_SIZE = '8m'


class Disk:
  """A folder, and whether its disk is full."""

  def __init__(self, folder: str):
    self.folder = folder
    mount = ['mount', '-t', 'tmpfs', '-o', f'size={_SIZE}', 'chaos', folder]
    try:
      done = subprocess.run(mount, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
      self.is_mounted = done.returncode == 0
    except OSError:
      self.is_mounted = False
    self._ballast = os.path.join(folder, 'ballast')

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self.is_mounted:
      subprocess.run(['umount', '-l', self.folder], check=True)

  @contextlib.contextmanager
  def full(self, pids):
    """Leaves no room on it, for these processes at least."""
    if self.is_mounted:
      with open(self._ballast, 'wb', buffering=0) as file, contextlib.suppress(OSError):
        while True:  # Fills the last page too.
          file.write(bytes(4096))
    else:
      _limit(pids, 0)
    try:
      yield
    finally:
      if self.is_mounted:
        os.remove(self._ballast)
      else:
        _limit(pids, None)


def _limit(pids, num_bytes):
  for pid in pids:
    with contextlib.suppress(ProcessLookupError):
      hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
      resource.prlimit(pid, resource.RLIMIT_FSIZE,
                       (hard if num_bytes is None else num_bytes, hard))
