"""Room: how many examples a tower has room for, remembered beside the checkpoints.

  {"checksum": 1234567, "examples_per_tower": 512}

Not the number of micro-batches, since a resumed run may have another number of towers or workers,
and each of them then another share. Workers with a folder each agree on the smallest.
"""

import os
from typing import Optional

from towers.base.json_files import recall, write_sealed

ROOM = 'memory.json'
_MEMBER = 'examples_per_tower'


def read_room(folder: str) -> Optional[int]:
  """Returns the most examples per tower of a micro-batch, or None; warns of a damaged file."""
  found = recall(os.path.join(folder, ROOM), {_MEMBER: int}, 'how much fits is found out anew')
  return found and found[_MEMBER] or None


def write_room(folder: str, most: int) -> None:
  """Remembers the most examples per tower of a micro-batch; raises OSError."""
  os.makedirs(folder, exist_ok=True)
  write_sealed(os.path.join(folder, ROOM), {_MEMBER: most})
