"""Checkpoints: all variables in TensorFlow's own format, the same for any number of towers, mode and placement.

Variables carry no tower in their names, so a checkpoint of 4 towers on TensorFlow 1.14 loads on 1 tower on 2.x.
"""

import os
from typing import Any, Optional

from tensorflow_v1 import tf
from towers import get_global_step
from usage_error import UsageError

_PREFIX = 'model.ckpt'
_SHOWN = 8


class Checkpoints:
  """Saves to and restores from one folder."""

  def __init__(self, folder: str, *, keep: int):
    """Prepares to save all global variables, of which the newest `keep` checkpoints stay.

    Raises:
      UsageError: the folder cannot be made.
    """
    self.folder = folder
    self._global_step = get_global_step()
    # Relative paths: a folder that is moved or copied still finds its own checkpoints.
    self._saver = tf.train.Saver(tf.global_variables(), max_to_keep=keep, save_relative_paths=True)
    try:
      os.makedirs(folder, exist_ok=True)
    except OSError as error:
      raise UsageError('checkpoint_dir %s cannot be made: %s. Choose a folder that can be written.'
                       % (folder, error.strerror)) from None

  def restore(self, session: Any) -> Optional[str]:
    """Restores the newest checkpoint; returns its path, or None where the folder has none.

    Raises:
      UsageError: the checkpoint is of another program, or cannot be read.
    """
    state = tf.train.get_checkpoint_state(self.folder)
    if state is None:
      return None
    path = state.model_checkpoint_path
    self._saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
    try:
      saved = {name: tuple(shape) for name, shape in tf.train.list_variables(path)}
    except tf.errors.OpError as error:
      raise UsageError('The checkpoint %s cannot be read: %s. Remove it from %s to go on from an earlier one.'
                       % (path, error.message, os.path.join(self.folder, 'checkpoint'))) from None
    _check_same_variables(path, saved, {variable.op.name: tuple(variable.shape.as_list())
                                        for variable in tf.global_variables()})
    try:
      self._saver.restore(session, path)
    except tf.errors.OpError as error:
      raise UsageError('The checkpoint %s is damaged: %s' % (path, error.message)) from None
    return path

  def save(self, session: Any) -> str:
    """Saves all variables, under the number of updates that they have had; returns the path."""
    return self._saver.save(session, os.path.join(self.folder, _PREFIX), global_step=self._global_step,
                            write_meta_graph=False)


def _check_same_variables(path, saved, ours):
  """Raises a UsageError that lists what the checkpoint and the program do not have in common."""
  lines = ['  %s: %s in the checkpoint, %s in the program' % (name, list(saved[name]), list(ours[name]))
           for name in sorted(set(saved) & set(ours)) if saved[name] != ours[name]]
  lines += ['  only in the checkpoint: %s %s' % (name, list(saved[name])) for name in sorted(set(saved) - set(ours))]
  lines += ['  only in the program: %s %s' % (name, list(ours[name])) for name in sorted(set(ours) - set(saved))]
  if lines:
    more = ['  … and %d more' % (len(lines) - _SHOWN)] if len(lines) > _SHOWN else []
    raise UsageError('The checkpoint %s belongs to another model or optimizer:\n%s\nGive the flags that it was written '
                     'with, or another checkpoint_dir.' % (path, '\n'.join(lines[:_SHOWN] + more)))
