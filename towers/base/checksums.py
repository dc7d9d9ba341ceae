"""Sums of a checkpoint: what its files were when they were written.

  model.ckpt-500.data-00000-of-00001    the values
  model.ckpt-500.index                  where each is, with its checksum
  model.ckpt-500.sums                   sizes of both, and a checksum of the index

TensorFlow 1.14 ends the process over some damaged indexes. So an index is compared with the sums
before TensorFlow opens it. Checkpoints of other tools, and of earlier versions, have none.
"""

import glob
import os
import zlib

from towers.base.files import open_regular
from towers.base.json_files import read_sealed, write_sealed

INDEX = '.index'
DATA = '.data-00000-of-00001'
SUMS = '.sums'
_SCHEMA = dict(data_bytes=int, index_bytes=int, index_crc32=int)


def write_sums(path: str) -> None:
  """Writes the sums of a checkpoint whose data and index are written; raises OSError."""
  write_sealed(path + SUMS, _measure(path))


def check_sums(path: str) -> None:
  """Compares a checkpoint with its sums, if it has any; raises ValueError or OSError.

  Without sums its files must be files all the same: of a device TensorFlow reads without end.
  """
  for suffix in (INDEX, '.data-*'):
    for name in glob.glob(glob.escape(path) + suffix):
      open_regular(name).close()
  if os.path.exists(path + SUMS):
    stated = read_sealed(path + SUMS, _SCHEMA)
    for name, found in _measure(path).items():
      if found != stated[name]:
        raise ValueError(f'its {name} is {found}, and was {stated[name]} when it was written')


def _measure(path):
  with open_regular(path + INDEX) as file:
    index = file.read()
  return dict(data_bytes=os.path.getsize(path + DATA), index_bytes=len(index),
              index_crc32=zlib.crc32(index))
