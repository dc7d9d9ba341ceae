"""Writes the values of variables as a checkpoint, beside the session that trains."""

import os
from typing import Any, Mapping, Sequence

import numpy as np

from tensorflow_v1 import tf
from towers.training.saving.files import DATA, INDEX, sync


class Writer:
  """Writes values of the host, in a small graph and session of its own."""

  def __init__(self, variables: Sequence[Any], constants: Mapping[str, np.ndarray]):
    """Builds the graph that writes these variables, and constants by name."""
    self._constants = constants
    with tf.Graph().as_default() as graph, tf.device('/device:CPU:0'):
      prefix = tf.placeholder(tf.string, [])
      values = [tf.placeholder(variable.dtype.base_dtype) for variable in variables]
      names = [variable.op.name for variable in variables] + list(constants)
      op = tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[''] * len(names),
                             tensors=values + list(map(tf.constant, constants.values())))
    # One thread of its own, so that writing takes none from the towers.
    self.session = tf.Session(
        graph=graph,
        config=tf.ConfigProto(device_count={'CPU': 1, 'GPU': 0}, use_per_session_threads=True,
                              inter_op_parallelism_threads=1, intra_op_parallelism_threads=1))
    self._save = self.session.make_callable(op, feed_list=[prefix] + values)

  def write(self, path: str, values: Sequence[np.ndarray]) -> None:
    """Writes data and index, down to the disk.

    Raises:
      OSError: not all bytes were written.
    """
    self._save(path, *values)
    expected = sum(np.asarray(value).nbytes for value in [*values, *self._constants.values()])
    written = os.path.getsize(path + DATA)
    if written != expected:
      raise OSError(None, f'{written} of {expected} bytes were written')
    for suffix in (DATA, INDEX):
      sync(path + suffix)
