"""Shapes: those of a graph's tensors once the number of rows of its batch is known.

Static shapes leave open what depends on the batch. For a number of rows the sizes go through the
graph: a reshape keeps the number of elements, a concatenation of rows adds them up, other ops keep
those of an input, and a batch has the rows.
"""

import functools
from typing import Dict, List, Optional, Tuple

from tensorflow_v1 import DType, Operation, Tensor, multiply, tf

# Ops whose shape is an input, and which one.
_SHAPED = {'BroadcastTo': 1, 'Fill': 0, 'Reshape': 1}


def static_bytes(tensor: Tensor) -> Optional[int]:
  """Returns the bytes of a tensor, 0 for one without a dtype of numbers, or None if its shape is
  not static."""
  sizes = _list_sizes(tensor)
  return None if sizes is None or None in sizes else _item_bytes(tensor.dtype) * multiply(sizes)


@functools.lru_cache(maxsize=None)
def _item_bytes(dtype: DType) -> int:
  """Returns the bytes of one element, 0 for a dtype without numbers."""
  return 0 if dtype in (tf.resource, tf.variant, tf.string) else dtype.base_dtype.size


class Shapes:
  """Shapes of tensors, op by op.

  Attributes:
    unknown: names of tensors that have no elements here, since the number depends on values.
  """

  def __init__(self, rows: int):
    """Begins with a number of rows."""
    self._rows = rows
    # Those that are not static, as they are and as found; by id, since tensors are slow to hash.
    self._open: Dict[int, Tuple[Optional[List[Optional[int]]], List[int]]] = {}
    self.unknown: List[str] = []

  def add(self, op: Operation) -> None:
    """Finds the shapes of an op's outputs, after those of its inputs."""
    for output in op.outputs:
      shape = _list_sizes(output)
      if shape is None or None in shape:
        self._open[id(output)] = shape, self._find_shape(op, output, shape)

  def find(self, tensor: Tensor) -> List[int]:
    """Returns a tensor's shape; unknown axes have no elements."""
    if id(tensor) in self._open:
      return self._open[id(tensor)][1]
    shape = _list_sizes(tensor)
    return [0] if shape is None else [size or 0 for size in shape]

  def count_bytes(self, tensor: Tensor) -> int:
    """Returns the bytes of a tensor, 0 for one without a dtype of numbers."""
    return _item_bytes(tensor.dtype) * multiply(self.find(tensor))

  def _find_shape(self, op, output, shape):
    kind = op.type
    given = _find_given(op, kind)
    if given is not None:
      return self.find(given)
    if kind == 'Reshape':
      return _fill(shape or [None], self.find(op.inputs[0]))
    if kind == 'Sum':
      # A gradient, that of a value which may have been broadcast: it gets that value's shape.
      for consumer in output.consumers():
        if consumer.type == 'Reshape':
          given = _find_given(consumer, 'Reshape')
          if given is not None:
            return self.find(given)
          if consumer.outputs[0].shape.is_fully_defined():
            return consumer.outputs[0].shape.as_list()
    inputs = [self._open[id(tensor)] for tensor in op.inputs if id(tensor) in self._open]
    if shape is None:
      if kind.startswith('FusedBatchNorm'):
        return [0]  # What only kernels of GPUs have to say.
      if inputs:
        return inputs[0][1]
      if _item_bytes(output.dtype):
        self.unknown.append(output.name)
      return [0]
    return [self._guess(op, output, axis, inputs) if size is None else size
            for axis, size in enumerate(shape)]

  def _guess(self, op, output, axis, inputs):
    """Returns the size of an axis: that of inputs which do not know it either, or the rows."""
    sizes = [found[axis] for shape, found in inputs
             if shape is not None and shape[axis:axis + 1] == [None]]
    if sizes:
      return sum(sizes) if not axis and _joins_rows(op, output) else sizes[0]
    if axis:
      self.unknown.append(output.name)
      return 0
    return self._rows


def _list_sizes(tensor):
  """Returns the sizes of a tensor's axes, those that are unknown as None; or None for all."""
  shape = tensor.shape
  return None if shape.ndims is None else shape.as_list()


def _find_given(op, kind):
  """Returns the tensor whose shape an op makes, or None."""
  if kind in _SHAPED:
    shape = op.inputs[_SHAPED[kind]].op
    if shape.type == 'Shape':
      return shape.inputs[0]
  return None


def _fill(shape, source):
  """Returns a shape with as many elements as another one. Of several axes that are unknown the
  first has the other's rows, and the last one all that is missing."""
  first, *_, last = [axis for axis, size in enumerate(shape) if size is None] * 2
  filled = [1 if size is None else size for size in shape]
  missing = multiply(source) // max(multiply(filled), 1)
  if first != last and source and source[0] and missing % source[0] == 0:
    filled[first] = source[0]
    missing //= source[0]
  filled[last] = missing
  return filled


def _joins_rows(op, output):
  return op.type == 'ConcatV2' and output.shape[1:].as_list() == op.inputs[0].shape[1:].as_list()
