"""Outputs: whether a run can write what it is to write, checked before it starts."""

import os
from typing import Optional

from towers.base.usage_error import UsageError


def check_outputs(*, result_file: Optional[str] = None, report: Optional[str] = None,
                  trace_file: Optional[str] = None, summary_dir: Optional[str] = None,
                  export_dir: Optional[str] = None) -> None:
  """Makes the folders that a run writes to, other than that of checkpoints, which `lock` makes.

  Raises:
    UsageError: a file or folder cannot be written; names the flag and the path.
  """
  for name, path in (('result_file', result_file), ('report', report), ('trace_file', trace_file)):
    if path is not None:
      _check_file(name, path)
  for name, path in (('summary_dir', summary_dir), ('export_dir', export_dir)):
    if path is not None:
      _make_folder(name, path)


def _check_file(name, path):
  folder = os.path.dirname(os.path.abspath(path))
  if os.path.isdir(path):
    reason = 'it is a folder'
  elif not os.path.isdir(folder) or not os.access(folder, os.W_OK):
    reason = f'there is no folder {folder} that can be written'
  else:
    return
  raise UsageError(f'{name}={path} cannot be written: {reason}. Choose a file in a folder that '
                   'exists and can be written.')


def _make_folder(name, path):
  try:
    os.makedirs(path, exist_ok=True)
    reason = None if os.access(path, os.W_OK) else 'Permission denied'
  except OSError as error:
    reason = error.strerror
  if reason:
    raise UsageError(f'{name}={path} cannot be made or written to: {reason}. Choose a folder that '
                     'can be.')
