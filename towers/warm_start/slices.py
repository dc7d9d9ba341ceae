"""Slices of variables: where in a checkpoint one is; those of a partitioner share a tensor."""

from typing import Iterable, NamedTuple, Tuple

import numpy as np

from towers.tensorflow_v1 import Variable, tf


class Tensor(NamedTuple):
  """What a checkpoint holds, or a program expects, under a name."""
  shape: tf.TensorShape
  dtype: tf.DType


class VariableSlice(NamedTuple):
  """Where a variable is in a checkpoint: in a tensor of that name, or a slice of it."""
  name: str
  tensor: Tensor
  spec: str = ''  # The slice as TensorFlow writes it; '' for all.
  slices: Tuple[slice, ...] = ()  # The same for numpy.

  def take(self, value: np.ndarray) -> np.ndarray:
    """Returns the variable's slice of the tensor's value."""
    return value[self.slices] if self.slices else value


def find_slice(variable: Variable, saved: Iterable[str] = ()) -> VariableSlice:
  """Returns where a variable is in a checkpoint, as in those of `tf.train.Saver`.

  Earlier versions wrote each slice of a variable under a name of its own, which is then in `saved`.
  """
  cut, dtype = variable._save_slice_info, variable.dtype.base_dtype
  if cut is None or (variable.op.name in saved and cut.full_name not in saved):
    return VariableSlice(variable.op.name, Tensor(variable.shape, dtype))
  slices = tuple(slice(begin, begin + size) for begin, size in zip(cut.var_offset, cut.var_shape))
  return VariableSlice(
      cut.full_name, Tensor(tf.TensorShape(cut.full_shape), dtype), cut.spec, slices)
