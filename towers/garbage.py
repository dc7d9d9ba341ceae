"""Garbage: not collected while a graph is built, since all that is made stays.

Python looks through all objects again whenever their number has grown by a quarter, and before that through the young
ones every 700 new ones: for towers of a deep net, which are millions of objects, a tenth of the time to build them.
"""

import contextlib
import gc
from typing import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
  """Within, nothing is collected; afterwards as before."""
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.enable()
