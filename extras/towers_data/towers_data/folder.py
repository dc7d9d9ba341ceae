"""Folder: that a data set's folder is there, and what it holds."""

import os
from typing import Any, Iterable, List, NamedTuple, Optional

from towers.base.usage_error import UsageError
from towers.data.folders.idx_folder import list_folder


class Entry(NamedTuple):
  """A folder, or a file or anything else, in a folder."""
  name: str
  path: str
  is_folder: bool


def check_folder(data_dir: Optional[Any], *, data: str, needs: str) -> str:
  """Returns the path of a folder that exists; `needs` says what data sets of its kind hold.

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


def check_files(folder: str, names: Iterable[str], *, fix: str = '') -> None:
  """Refuses a folder that lacks some of the files of these names; `fix` is a sentence."""
  names = list(names)
  missing = [name for name in names if not os.path.isfile(os.path.join(folder, name))]
  if missing:
    raise UsageError(f"data_dir '{folder}' lacks {len(missing)} of {len(names)} files: "
                     f"{', '.join(missing)}. It holds {list_folder(folder)}. {fix}".rstrip())


def scan_folder(folder: str) -> List[Entry]:
  """Returns what a folder holds, in the order of names, without hidden entries.

  What is no file, as a FIFO or a link that leads nowhere, is named where it is read.

  Raises:
    UsageError: the folder cannot be listed, or an entry is a link that leads to itself.
  """
  try:
    with os.scandir(folder) as entries:
      return sorted(Entry(entry.name, entry.path, entry.is_dir()) for entry in entries
                    if not entry.name.startswith('.'))
  except OSError as error:
    raise UsageError(f'{error.filename or folder}: cannot be read: {error.strerror}; check its '
                     'permissions and links.') from None
