"""The cache of what XLA has compiled, in the user's cache, for one TensorFlow and processor.

  look at each program in the folder ─► load TensorFlow ─► compile what lacks ─► note its sums

TensorFlow ends the process over a damaged program, and takes one of another version or processor
for its own. So a program that is not as its sum says, or that has none, as of a run that was
killed, is removed before TensorFlow looks. TensorFlow 1.14 has no such cache.
"""

import atexit
import contextlib
import glob
import os
import re
import zlib
from typing import MutableMapping, Optional, Set

from towers.base.files import open_regular, write_whole
from towers.base.paths import find_in_cache

_FLAGS = 'TF_XLA_FLAGS'
_DIRECTORY = '--tf_xla_persistent_cache_directory='
_SUM = '.crc32'
_MOST_BYTES = 2 ** 30  # Of all programs; the oldest give way.
_folder: Optional[str] = None
_found: Set[str] = set()


def use_cache(environ: MutableMapping[str, str], version: str) -> None:
  """Names the folder in the flags that this version of TensorFlow reads when it loads."""
  global _folder
  flags = environ.get(_FLAGS, '')
  is_asked_for = re.search(r'tf_xla_auto_jit=(?!-|0)', flags)
  may_compile = is_asked_for or (os.path.isdir('/proc/driver/nvidia') and 'auto_jit' not in flags)
  folder = find_in_cache('xla', f'{version}-{_find_processor(environ):08x}')
  if not may_compile or 'persistent_cache' in flags or re.search(r'\s', folder):
    return
  try:
    os.makedirs(folder, exist_ok=True)
    _remove_damaged(folder)
  except OSError:  # Without it all is compiled anew.
    return
  environ[_FLAGS] = f'{flags} {_DIRECTORY}{folder}'.strip()
  _folder = folder
  _found.update(_list_programs(folder))
  atexit.register(count_compiled)


def count_compiled() -> Optional[int]:
  """Returns how many programs this process has compiled; None where no cache tells.

  It notes the sums of these programs. Those of a process beside this one may be counted too.
  """
  if _folder is None:
    return None
  new = set(_list_programs(_folder)) - _found
  for path in new:
    with contextlib.suppress(OSError):
      if not os.path.exists(path + _SUM):
        write_whole(path + _SUM, _sum(path))
  return len(new)


def _find_processor(environ):
  """Returns a number for the processor, GPUs and settings that programs are compiled for."""
  lines = [f'{name}={environ.get(name)}' for name in ('XLA_FLAGS', 'TF_CUDNN_DETERMINISTIC')]
  for path in ['/proc/cpuinfo', '/proc/driver/nvidia/version',
               *sorted(glob.glob('/proc/driver/nvidia/gpus/*/information'))]:
    with contextlib.suppress(OSError), open(path, errors='replace') as file:
      lines += [line for line in file if line.startswith(('model name', 'flags', 'Model', 'NVRM'))]
  return zlib.crc32(''.join(sorted(set(lines))).encode())


def _list_programs(folder):
  return [path for path in glob.glob(os.path.join(glob.escape(folder), '*'))
          if not path.endswith(_SUM)]


def _remove_damaged(folder):
  """Removes programs that are not as they were written, and the oldest of too many."""
  total = 0
  for path in sorted(_list_programs(folder), key=os.path.getmtime, reverse=True):
    total += os.path.getsize(path)
    is_whole = False
    with contextlib.suppress(OSError), open_regular(path + _SUM) as file:
      is_whole = file.read() == _sum(path)
    if not is_whole or total > _MOST_BYTES:
      for name in (path, path + _SUM):
        with contextlib.suppress(FileNotFoundError):  # Another process may remove it too.
          os.remove(name)


def _sum(path):
  with open_regular(path) as file:
    return b'%08x' % zlib.crc32(file.read())
