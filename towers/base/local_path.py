"""Local paths: a path that names another file system is refused before anything takes it for a
folder.

Python's own `open` and `os.makedirs` take `hdfs://nn/logs` for the folder `hdfs:` beside the
program, and TensorFlow takes it for what it says: one part of a run would write here and another
part there.
"""

import os
import re
from typing import Any

from towers.base.usage_error import UsageError

# Two letters at least: C:\data and C:/data are drives. One slash is enough, since pathlib leaves no
# more.
_SCHEME = re.compile(r'([A-Za-z][A-Za-z0-9+.-]+):/')
_LOCAL_FILE = re.compile(r'file:(?://(?:localhost)?)?(/(?!/).*)', re.IGNORECASE | re.DOTALL)


def check_local_path(name: str, path: Any) -> None:
  """Refuses a path with a scheme, such as gs://bucket/run.

  Args:
    name: of the setting, for the message.
    path: a str, bytes or `os.PathLike`, which need not exist.

  Raises:
    UsageError: the path has a scheme; names the setting, the path and the fix.
  """
  text = os.fsdecode(path)
  scheme = _SCHEME.match(text)
  if scheme is None:
    return
  local = _LOCAL_FILE.match(text)
  if local:
    raise UsageError(f'{name}={text} is a URL, and a path is needed: use {name}={local.group(1)}.')
  raise UsageError(f'{name}={text} names another file system ({scheme.group(1)}), and only local '
                   'files are read and '
                   'written: use a local folder, or mount that file system and give the path where '
                   'it is mounted.')
