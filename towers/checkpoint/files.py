"""The files of checkpoints in a folder: how they are named, and which there are.

A checkpoint is a file of data, its index, and the sums of both; it exists once its index does.
"""

import contextlib
import os
import re
from typing import Any, List

from towers.base.files import open_regular
from towers.base.sums import DATA, INDEX, SUMS, check_sums
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf

PREFIX = 'model.ckpt'
# In the order in which they get their names, and in reverse that in which they are deleted.
SUFFIXES = (DATA, SUMS, INDEX)
_MOST_BYTES = 1 << 20  # Of a state file.


def path_of(folder: str, step: int) -> str:
  """Returns the path of a step's checkpoint as TensorFlow takes it, without file suffixes."""
  return os.path.join(folder, f'{PREFIX}-{step}')


def list_steps(folder: str) -> List[int]:
  """Returns the steps of all checkpoints in a folder that have an index, the newest first."""
  pattern = re.compile(rf'{re.escape(PREFIX)}-(\d+){re.escape(INDEX)}$')
  try:
    names = os.listdir(folder)
  except (FileNotFoundError, NotADirectoryError):
    names = []
  except OSError as error:
    raise UsageError(f'The checkpoints in {folder} cannot be listed: {error.strerror}. Let this '
                     'user read the folder, or give another.') from None
  matches = [pattern.match(name) for name in names]
  return sorted((int(match.group(1)) for match in matches if match), reverse=True)


def find_checkpoints(folder: str) -> List[str]:
  """Returns the paths of all checkpoints, those too whose index is gone, the newest first.

  The state file names them, and is not needed for others.
  """
  steps = set(list_steps(folder))
  with contextlib.suppress(OSError), open_regular(os.path.join(folder, 'checkpoint')) as file:
    named = re.findall(rf'{re.escape(PREFIX)}-(\d+)"'.encode(), file.read(_MOST_BYTES))
    steps.update(map(int, named))
  return [path_of(folder, step) for step in sorted(steps, reverse=True)]


def open_reader(path: str) -> Any:
  """Returns TensorFlow's reader of a checkpoint; raises anything if that is damaged."""
  check_sums(path)
  return tf.train.load_checkpoint(path)


def sync(path: str) -> None:
  """Returns once a file or folder is on the disk."""
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)
