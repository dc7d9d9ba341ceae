"""Garbage: not looked for while TensorFlow is imported and a graph is built, since all that is made stays.

Python looks through the young objects every 700 new ones, and through all of them whenever their number has grown by a
quarter. TensorFlow's modules are 120,000 to 270,000 objects, towers of a deep net millions: looking through them takes
a fifth of the import of 2.21, and an eighth of the time to the first step of 8 towers of NASNet-Large.
"""

import contextlib
import gc
from typing import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
  """Within, nothing is collected; afterwards as before, but without a look at what is there by then.

  Begun again, as for another graph, what it left out before is looked at once more: the graph before may be gone.
  """
  was_enabled = gc.isenabled()
  gc.disable()
  gc.unfreeze()
  try:
    yield
  finally:
    if was_enabled:
      gc.freeze()
      gc.enable()
