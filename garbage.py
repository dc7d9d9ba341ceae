"""Garbage: not looked for while TensorFlow is imported and a graph is built, since all that is made stays.

Python looks through the young objects every 700 new ones, and through all of them whenever their number has grown by a
quarter. TensorFlow's modules are 120,000 to 270,000 objects, towers of a deep net millions: looking through them takes
a fifth of the import of 2.21, and an eighth of the time to the first step of 8 towers of NASNet-Large.

What was made meanwhile is left out of every later look but one: a graph refers to itself in circles, and where one
program is built after another, those before must go.
"""

import contextlib
import gc
from typing import Iterator

_num_left_out = 0  # After the last look at them, or after the import.


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
  """Within, nothing is collected; afterwards as before, but without a look at what is there by then."""
  global _num_left_out
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.freeze()
      gc.enable()
      _num_left_out = _num_left_out or gc.get_freeze_count()


def collect_former() -> None:
  """Frees the graphs of programs before, if what is left out of every look has doubled since the last one."""
  global _num_left_out
  if gc.get_freeze_count() > 2 * _num_left_out > 0:
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    _num_left_out = gc.get_freeze_count()
