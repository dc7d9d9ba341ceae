"""A disk for checkpoints that can be full for a while: as root, a file system in memory."""

import contextlib
import os
import shutil
import subprocess

# Twenty times what a chain keeps.
_SIZE = '8m'


class Disk:
  """A folder, and whether it is a disk of its own, `is_mounted`."""

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
  def run_folder(self):
    """Yields the path of a folder for one run."""
    path = os.path.join(self.folder, 'run')
    try:
      yield path
    finally:
      shutil.rmtree(path, ignore_errors=True)

  @contextlib.contextmanager
  def full(self):
    """Leaves no room on it, if it is mounted."""
    with open(self._ballast, 'wb', buffering=0) as file, contextlib.suppress(OSError):
      while True:  # Fills the last page too.
        file.write(bytes(4096))
    try:
      yield
    finally:
      os.remove(self._ballast)
