"""Folder: checks of a data set's folder, and the messages of all loaders."""

import os
from typing import Any, Optional

from towers.base.usage_error import UsageError

# The most names of a folder that a message lists.
_MAX_LISTED_NAMES = 20


def check_folder(data_dir: Optional[Any], *, data: str, needs: str) -> str:
  """Returns the path of a folder that exists.

  Args:
    data_dir: the setting, or None.
    data: the data set's name, for the message.
    needs: what should be in the folder, for the message.

  Raises:
    UsageError: data_dir is None, does not exist, or is not a folder.
  """
  if data_dir is None:
    raise UsageError(f"Data set '{data}' needs a data_dir, a folder with {needs}.")
  path = os.fspath(data_dir)
  if not os.path.isdir(path):
    found = 'is a file, not a folder' if os.path.isfile(path) else 'does not exist'
    raise UsageError(f"data_dir '{path}' {found}; data set '{data}' needs a folder with {needs}.")
  return path


def list_folder(folder: str) -> str:
  """Returns the names in a folder, at most 20, for a message; folders end with a slash."""
  try:
    names = sorted(entry.name + '/' * entry.is_dir() for entry in os.scandir(folder))
  except OSError as error:
    return f'what cannot be listed ({error.strerror})'
  if len(names) > _MAX_LISTED_NAMES:
    names[_MAX_LISTED_NAMES:] = [f'... ({len(names)} names in all)']
  return ', '.join(names) or 'nothing'
