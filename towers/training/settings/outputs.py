"""Outputs: whether everything that a run is to write can be written, told before it starts rather
than at its end.
"""

import os

from towers.base.usage_error import UsageError
from towers.training.settings.config import Config

_FILES = ('result_file', 'report')
_FOLDERS = ('summary_dir', 'export_dir')


def check_outputs(config: Config) -> None:
  """Makes the folders that a run writes to, but that of checkpoints, which `lock` makes.

  Raises:
    UsageError: a file or folder cannot be written; names the flag and the path.
  """
  for name in _FILES + (('trace_file',) if config.trace_steps else ()):
    path = getattr(config, name)
    if path is not None:
      folder = os.path.dirname(os.path.abspath(path))
      if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError('{}={} cannot be written: {}. Choose a file in a folder that exists and '
                         'can be written.'.format(
                             name, path, 'it is a folder' if os.path.isdir(path) else
                             f'there is no folder {folder} that can be written'))
  for name in _FOLDERS:
    path = getattr(config, name)
    if path is not None and config.predict is None:
      try:
        os.makedirs(path, exist_ok=True)
        reason = None if os.access(path, os.W_OK) else 'Permission denied'
      except OSError as error:
        reason = error.strerror
      if reason:
        raise UsageError(f'{name}={path} cannot be made or written to: {reason}. Choose a folder '
                         'that can be.')
