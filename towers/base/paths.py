"""Paths: one on another file system is an error, and so is a name that is not UTF-8.

For Python's `open` and `os.makedirs` `hdfs://nn/logs` is a folder `hdfs:` beside the program, and
for TensorFlow it is on HDFS: one run would write its files in two places. And TensorFlow takes only
names that are UTF-8: it would refuse others when it first saves.
"""

import os
import re
from typing import Any, Union

from towers.base.usage_error import UsageError

# Two letters or more, since C:\data is a drive; one slash, since pathlib leaves no more.
_SCHEME = re.compile(r'([A-Za-z][A-Za-z0-9+.-]+):/')
_LOCAL_FILE = re.compile(r'file:(?://(?:localhost)?)?(/(?!/).*)', re.IGNORECASE | re.DOTALL)


def read_path(given: Any, *, line: str) -> str:
  """Returns a path that an argument gives; refuses what is none, with the line to write."""
  if not given or not isinstance(given, (str, os.PathLike)):
    raise UsageError(f'{given!r:.100} is no path: write {line}.')
  return os.fspath(given)


def check_local_path(name: str, path: Union[str, bytes, 'os.PathLike[str]']) -> None:
  """Refuses a path with a scheme, such as gs://bucket/run, and one that is not UTF-8.

  It need not exist; `name` is that of the setting, for the message.
  """
  text = os.fsdecode(path)
  try:
    text.encode()
  except UnicodeEncodeError:
    shown = text.encode(errors='backslashreplace').decode()
    raise UsageError(f'{name}={shown} is a name that is not UTF-8, which TensorFlow cannot open: '
                     'rename it.') from None
  if '\0' in text:
    raise UsageError(f'{name}={text!r} has a character of code 0, which no path can have.')
  scheme = _SCHEME.match(text)
  if scheme is None:
    return
  local = _LOCAL_FILE.match(text)
  if local:
    raise UsageError(f'{name}={text} is a URL, and a path is needed: use {name}={local.group(1)}.')
  raise UsageError(f'{name}={text} names another file system ({scheme.group(1)}), and only local '
                   'files can be read and written: use a local folder, or mount that file system '
                   'and give the path where it is mounted.')


def describe_no_folder(name: str, path: str, reason: str, *, choose: str = 'Choose') -> str:
  """Returns the message about a path that is no folder to write to, for a `reason`."""
  if os.path.isfile(path):
    return (f'{name}={path} is a file, and files are written to a folder: choose another path, as '
            f'{name}={path}_files, or move the file away.')
  return f'{name}={path} cannot be made or written to: {reason}. {choose} a folder that can be.'


def find_in_cache(*names: str) -> str:
  """Returns the path of a file in the user's cache, of what can be made again; makes no folder."""
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
  return os.path.join(cache, 'towers', *names)
