"""Lengths: integers that give a size, such as the largest length of a batch.

A mask of sequences compares a count up to such a length with each example's own length. Whatever
the length, what is counted is the same for every example, so the mask is one of rows.
"""

from typing import List

from towers.coupling.values import Free, Length, Operands, Value


def follow_length(operands: Operands) -> List[Value]:
  """Returns the values of an op's outputs if it computes with lengths alone, else an empty list."""
  op, values = operands.op, operands.values
  if op.type == 'Shape' and values == [None]:
    return [Length()]
  if Length() not in values or not set(values) <= {Free(), Length()}:
    return []
  return [Free() if op.type == 'Range' else Length() if tensor.dtype.is_integer else None
          for tensor in op.outputs]
