"""Lengths: integers that give a size, such as the largest length of a batch.

A mask of sequences compares a count up to such a length with each example's own length. Whatever
the length, what is counted is the same for every example, so the mask is one of rows.
"""

from typing import List

from towers.coupling.values import Free, Length, Operands, Value

# Of free values that a length cuts off, each is the same for every example.
_COUNTED = ('Range', 'Slice', 'StridedSlice')


def follow_length(operands: Operands) -> List[Value]:
  """Returns the values of the outputs of an op on lengths and free values, or of a shape."""
  op, values = operands.op, operands.values
  is_free = op.type in _COUNTED and values[0] == Free()
  return [Free() if is_free else Length() if tensor.dtype.is_integer else None
          for tensor in op.outputs]
