"""Folder: what loaders say of a folder that is not what it should be."""

import os
from typing import Any, Optional

from towers.base.usage_error import UsageError

# A message lists so many names of a folder at most.
_MAX_LISTED_NAMES = 20


def check_folder(data_dir: Optional[Any], *, data: str, needs: str) -> str:
  """Returns the path of a folder that is there.

  Args:
    data_dir: the setting, or None.
    data: the data set's name, for the message.
    needs: what should be in the folder, for the message.

  Raises:
    UsageError: it is not given, not there, or not a folder.
  """
  if data_dir is None:
    raise UsageError(f"Data set '{data}' needs a data_dir, a folder with {needs}.")
  path = os.fspath(data_dir)
  if not os.path.isdir(path):
    found = 'is a file, not a folder' if os.path.isfile(path) else 'does not exist'
    raise UsageError(f"data_dir '{path}' {found}; data set '{data}' needs a folder with {needs}.")
  return path


def list_folder(folder: str) -> str:
  """Says what a folder holds, briefly; folders among it end with a slash."""
  try:
    names = sorted(entry.name + '/' * entry.is_dir() for entry in os.scandir(folder))
  except OSError as error:
    return f'what cannot be listed ({error.strerror})'
  if len(names) > _MAX_LISTED_NAMES:
    names[_MAX_LISTED_NAMES:] = [f'... ({len(names)} names in all)']
  return ', '.join(names) or 'nothing'
