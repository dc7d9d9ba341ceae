"""Garbage: not looked for while TensorFlow is imported and a graph is built, since all that is made
stays.

Python looks through the young objects every 700 new ones, and through all of them whenever their
number has grown by a quarter. TensorFlow's modules are 120,000 to 270,000 objects, towers of a deep
net millions: looking through them takes a fifth of the import of 2.21, and an eighth of the time to
the first step of 8 towers of NASNet-Large.

What was made meanwhile is left out of every later look but one: a graph refers to itself in
circles, and where one program is built after another, those before must go, with the arrays that
they were fed.
"""

import contextlib
import gc
import os
import sys
from typing import Iterator, Optional

_WORTH_BYTES = 100 << 20  # A look takes 0.07 s on 1.14 and 0.2 on 2.21, less than to fill these.
_held_bytes: Optional[int] = None  # After the last look, or before the first program.


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
  """Within, nothing is collected; afterwards as before, but without a look at what is there by
  then.
  """
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.freeze()
      gc.enable()


def read_held_bytes() -> int:
  """Returns the memory that this process has; on macOS the most that it had, on Windows 0."""
  try:
    with open('/proc/self/statm', encoding='utf-8') as file:
      return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')
  except OSError:
    if sys.platform == 'win32':
      return 0
    import resource  # Windows has none.
    return resource.getrusage(
        resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)


def collect_former() -> None:
  """Frees the graphs of programs before, if this process has come to need much more memory since
  the last look.
  """
  global _held_bytes
  if _held_bytes is None:
    _held_bytes = read_held_bytes()
  elif read_held_bytes() > _held_bytes + _WORTH_BYTES:
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    _hand_back()
    _held_bytes = read_held_bytes()


def _hand_back():
  """Gives the system what malloc has kept of freed memory, in holes between what is still used."""
  import ctypes  # A start can do without.
  libc = ctypes.CDLL(None)
  if hasattr(libc, 'malloc_trim'):  # glibc's.
    libc.malloc_trim(0)
