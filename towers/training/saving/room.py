"""Room: how many examples a tower has room for, remembered beside the checkpoints.

  {"checksum": 1234567, "examples_per_tower": 512}

Not the number of micro-batches, since a resumed run may have another number of towers or workers,
and each of them then another share. Workers with a folder each agree on the smallest.
"""

import os
from typing import Optional

from towers.base.json_files import read_sealed, write_sealed
from towers.base.output import write_line

ROOM = 'memory.json'
_MEMBER = 'examples_per_tower'


def read_room(folder: str) -> Optional[int]:
  """Returns the most examples per tower of a micro-batch, or None; warns of a damaged file."""
  path = os.path.join(folder, ROOM)
  try:
    most = read_sealed(path, {_MEMBER: int})[_MEMBER]
    if most:
      return most
    raise ValueError('it holds 0 examples')
  except FileNotFoundError:
    return None
  except (OSError, ValueError) as error:
    write_line(f'WARNING: {path} cannot be read ({error}): how much fits is found out anew')
    return None


def write_room(folder: str, most: int) -> None:
  """Remembers the most examples per tower of a micro-batch; raises OSError."""
  os.makedirs(folder, exist_ok=True)
  write_sealed(os.path.join(folder, ROOM), {_MEMBER: most})
