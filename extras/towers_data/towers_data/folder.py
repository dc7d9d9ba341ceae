"""Folder: that a data set's folder is there, and what it holds."""

import os
from typing import Any, Iterable, List, NamedTuple, Optional

from towers.base.files import name_other_kind
from towers.base.usage_error import UsageError

# The most names of a folder that a message lists.
_MAX_LISTED_NAMES = 20


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


def list_folder(folder: str) -> str:
  """Returns the names in a folder, at most 20, for a message, and what is no file as such."""
  def mark(path):
    if os.path.isdir(path):
      return '/'
    kind = name_other_kind(path) if os.path.exists(path) else 'a link to nothing'
    return f' ({kind})' * bool(kind)

  try:
    names = sorted(name + mark(os.path.join(folder, name)) for name in os.listdir(folder))
  except OSError as error:
    return f'what cannot be listed ({error.strerror})'
  if len(names) > _MAX_LISTED_NAMES:
    names[_MAX_LISTED_NAMES:] = [f'... ({len(names)} names in all)']
  return ', '.join(names) or 'nothing'
