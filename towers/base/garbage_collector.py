"""The garbage collector: off while TensorFlow is imported and graphs are built.

Python scans the young objects after every 700 new ones, and all objects whenever their number has
grown by a quarter. TensorFlow's modules are 120,000 to 270,000 objects, towers of a deep net
millions: the scans take a fifth of the import of 2.21, and an eighth of the time to the first step
of 8 towers of NASNet-Large.

Objects made meanwhile are frozen: later scans skip them. Only before a new program is built may one
full scan look at them, since a graph refers to itself in cycles, and a former program must go with
the arrays that fed it.
"""

import contextlib
import gc
import os
from typing import Iterator, Optional

_WORTH_BYTES = 100 << 20  # A scan takes 0.07 s on 1.14 and 0.2 on 2.21, less than to fill these.
_held_bytes: Optional[int] = None  # After the last full scan, or before the first program.


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
  """Turns the collector off within the context, and freezes all objects at its end."""
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.freeze()
      gc.enable()


def read_held_bytes() -> int:
  """Returns this process's resident memory; 0 where the system has no /proc."""
  try:
    with open('/proc/self/statm', encoding='utf-8') as file:
      return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')
  except OSError:
    return 0


def collect_former() -> None:
  """Frees the graphs of former programs, if memory has grown by 100 MiB since the last scan."""
  global _held_bytes
  if _held_bytes is None:
    _held_bytes = read_held_bytes()
  elif read_held_bytes() > _held_bytes + _WORTH_BYTES:
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    _held_bytes = read_held_bytes()
