"""Writes the values of variables as a checkpoint, beside the session that trains.

A checkpoint is a file of data, its index, and the sums of both; it exists once its index does.
"""

import os
from typing import Any, Mapping, Sequence

import numpy as np

from towers.base.checksums import DATA, INDEX, SUMS, write_sums
from towers.tensorflow_v1 import tf
from towers.warm_start.slices import find_slice

# In the order in which they get their names, and in reverse that in which they are deleted.
SUFFIXES = (DATA, SUMS, INDEX)


class Writer:
  """Writes values of the host, in a small graph and session of its own."""

  def __init__(self, variables: Sequence[Any], constants: Mapping[str, np.ndarray]):
    """Builds the graph that writes these variables, and constants of these names and dtypes."""
    with tf.Graph().as_default() as graph, tf.device('/device:CPU:0'):
      prefix = tf.placeholder(tf.string, [])
      values = [tf.placeholder(variable.dtype.base_dtype) for variable in variables]
      values += [tf.placeholder(constant.dtype) for constant in constants.values()]
      slices = [find_slice(variable) for variable in variables]
      op = tf.raw_ops.SaveV2(
          prefix=prefix, tensor_names=[piece.name for piece in slices] + list(constants),
          shape_and_slices=[piece.spec for piece in slices] + [''] * len(constants),
          tensors=values)
    # One thread of its own, so that writing takes none from the towers.
    self.session = tf.Session(
        graph=graph,
        config=tf.ConfigProto(device_count={'CPU': 1, 'GPU': 0}, use_per_session_threads=True,
                              inter_op_parallelism_threads=1, intra_op_parallelism_threads=1))
    self._save = self.session.make_callable(op, feed_list=[prefix] + values)

  def write(self, path: str, values: Sequence[np.ndarray]) -> None:
    """Writes data, index and their sums, down to the disk; raises OSError.

    The values are those of the variables, then of the constants.
    """
    self._save(path, *values)
    expected = sum(map(_count_bytes, values))
    written = os.path.getsize(path + DATA)
    if written != expected:
      raise OSError(None, f'{written} of {expected} bytes were written')
    write_sums(path)
    for suffix in SUFFIXES:
      sync(path + suffix)


def _count_bytes(value):
  """Returns the size of a value in the data of a checkpoint."""
  value = np.asarray(value)
  if value.dtype.kind not in 'OS':
    return value.nbytes
  # Texts: the length of each in 7 bits a byte, a checksum of these, then the texts.
  lengths = [len(text) for text in value.astype(object).ravel()]
  return sum(max(1, -(-length.bit_length() // 7)) + length for length in lengths) + 4


def sync(path: str) -> None:
  """Returns once a file or folder is on the disk."""
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)
