"""Shapes: those of a graph's tensors once the number of rows of its batch is known.

Static shapes leave open what depends on the batch. For a number of rows the sizes go through the
graph: a reshape keeps the number of elements, a concatenation of rows adds them up, other ops keep
those of an input, and a batch has the rows.
"""

from typing import Dict, List

from tensorflow_v1 import Operation, Tensor, multiply, tf

# Ops whose shape is an input, and which one.
_SHAPED = {'BroadcastTo': 1, 'Fill': 0, 'Reshape': 1}
_NO_NUMBERS = (tf.resource, tf.variant, tf.string)


class Shapes:
  """Shapes of tensors, op by op.

  Attributes:
    unknown: names of tensors that have no elements here, since the number depends on values.
  """

  def __init__(self, rows: int):
    """Begins with a number of rows."""
    self._rows = rows
    self._shapes: Dict[Tensor, List[int]] = {}  # Those that are not static.
    self.unknown: List[str] = []

  def add(self, op: Operation) -> None:
    """Finds the shapes of an op's outputs, after those of its inputs."""
    for output in op.outputs:
      if not output.shape.is_fully_defined():
        self._shapes[output] = self._find_shape(op, output)

  def find(self, tensor: Tensor) -> List[int]:
    """Returns a tensor's shape; unknown axes have no elements."""
    if tensor in self._shapes:
      return self._shapes[tensor]
    if tensor.shape.ndims is None:
      return [0]
    return [size or 0 for size in tensor.shape.as_list()]

  def count_bytes(self, tensor: Tensor) -> int:
    """Returns the bytes of a tensor, 0 for one without a dtype of numbers."""
    if tensor.dtype in _NO_NUMBERS:
      return 0
    return tensor.dtype.base_dtype.size * multiply(self.find(tensor))

  def _find_shape(self, op, output):
    inputs = [tensor for tensor in op.inputs if tensor in self._shapes]
    given = _find_given(op)
    if given is not None:
      return self.find(given)
    if op.type == 'Reshape':
      return _fill(output.shape.as_list() if output.shape.ndims else [None],
                   self.find(op.inputs[0]))
    if op.type == 'Sum':
      # A gradient, that of a value which may have been broadcast: it gets that value's shape.
      for consumer in output.consumers():
        if consumer.type == 'Reshape':
          given = _find_given(consumer)
          if given is not None:
            return self.find(given)
          if consumer.outputs[0].shape.is_fully_defined():
            return consumer.outputs[0].shape.as_list()
    if output.shape.ndims is None:
      if op.type.startswith('FusedBatchNorm'):
        return [0]  # What only kernels of GPUs have to say.
      if inputs:
        return self._shapes[inputs[0]]
      if output.dtype not in _NO_NUMBERS:
        self.unknown.append(output.name)
      return [0]
    shape = output.shape.as_list()
    return [self._guess(op, output, axis, inputs) if size is None else size
            for axis, size in enumerate(shape)]

  def _guess(self, op, output, axis, inputs):
    """Returns the size of an axis: that of inputs which do not know it either, or the rows."""
    sizes = [self._shapes[tensor][axis] for tensor in inputs
             if tensor.shape.ndims is not None and tensor.shape.as_list()[axis:axis + 1] == [None]]
    if sizes:
      return sum(sizes) if not axis and _joins_rows(op, output) else sizes[0]
    if axis:
      self.unknown.append(output.name)
      return 0
    return self._rows


def _find_given(op):
  """Returns the tensor whose shape an op makes, or None."""
  if op.type in _SHAPED:
    shape = op.inputs[_SHAPED[op.type]].op
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
