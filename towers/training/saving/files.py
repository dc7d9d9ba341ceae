"""The files of checkpoints in a folder: how they are named, and which there are.

A checkpoint is a file of data, its index, and the sums of both; it exists once its index does.
"""

import os
import re
from typing import Any, List

from tensorflow_v1 import tf
from towers.base.sums import DATA, INDEX, SUMS, check_sums
from towers.base.usage_error import UsageError

PREFIX = 'model.ckpt'
# In the order in which they get their names, and in reverse that in which they are deleted.
SUFFIXES = (DATA, SUMS, INDEX)


def path_of(folder: str, step: int) -> str:
  """Returns the path of a step's checkpoint as TensorFlow takes it, without file suffixes."""
  return os.path.join(folder, f'{PREFIX}-{step}')


def list_steps(folder: str) -> List[int]:
  """Returns the steps of all checkpoints in a folder that have an index, the newest first."""
  pattern = re.compile(rf'{re.escape(PREFIX)}-(\d+){re.escape(INDEX)}$')
  matches = [pattern.match(name) for name in os.listdir(folder)]
  return sorted((int(match.group(1)) for match in matches if match), reverse=True)


def find_checkpoints(folder: str) -> List[str]:
  """Returns the paths of all checkpoints, the newest first, those of other tools included.

  A state file that points outside of the folder is a UsageError.
  """
  if not os.path.isdir(folder):
    return []
  paths = [path_of(folder, step) for step in list_steps(folder)]
  try:
    state = tf.train.get_checkpoint_state(folder)
  except Exception:
    state = None  # Unreadable. Checkpoints of this package are found without it.
  named = []
  if state is not None:
    named = [state.model_checkpoint_path, *reversed(state.all_model_checkpoint_paths)]
    named = [path for path in named if path]

  here = os.path.realpath(folder)
  for path in named:
    if os.path.realpath(os.path.dirname(path)) != here:
      raise UsageError(f"The state file {os.path.join(folder, 'checkpoint')} names {path}, "
                       "which is outside of the folder: move the checkpoint that you want to "
                       "resume from there, and remove the state file.")
  paths += [os.path.join(folder, os.path.basename(path)) for path in named]
  paths = list(dict.fromkeys(paths))
  # Paths without a step stay behind those with one, in their order.
  paths.sort(key=lambda path: -int((re.findall(r'-(\d+)$', path) or ['-1'])[0]))
  return paths


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
