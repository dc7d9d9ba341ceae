"""What a checkpoint holds, and where a variable is in it; slices of one share a tensor."""

from typing import Any, Callable, Dict, Iterable, Mapping, NamedTuple, Tuple

import numpy as np

from towers.base.checksums import check_sums
from towers.tensorflow_v1 import Variable, tf
from towers.update.moving_averages import NOT_VARIABLES


class Tensor(NamedTuple):
  """What a checkpoint holds, or a program expects, under a name."""
  shape: tf.TensorShape
  dtype: tf.DType


def open_reader(path: str) -> Any:
  """Returns TensorFlow's reader of a checkpoint; raises anything if that is damaged."""
  check_sums(path)
  return tf.train.load_checkpoint(path)


def open_tensors(path: str) -> Tuple[Any, Dict[str, Tensor]]:
  """Returns the reader of a checkpoint, and what that holds of variables, by name."""
  reader = open_reader(path)
  dtypes = reader.get_variable_to_dtype_map()
  return reader, {name: Tensor(tf.TensorShape(shape), dtypes[name])
                  for name, shape in reader.get_variable_to_shape_map().items()
                  if name not in NOT_VARIABLES}


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


def read_values(read: Callable[[str], np.ndarray], slices: Mapping[Variable, VariableSlice]
                ) -> Dict[Variable, np.ndarray]:
  """Returns the values of variables, by `read(name)` of a tensor, which reads each once."""
  tensors = {name: read(name) for name in {piece.name for piece in slices.values()}}
  return {variable: piece.take(tensors[piece.name]) for variable, piece in slices.items()}
