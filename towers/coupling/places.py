"""Places: where in a batch the rows stand that a program takes by position.

  x[:n // 2]  from 0 to n / 2        x[0]   from 0 to 1        x[-1]  from n - 1 to n

A place is a share of n, the number of examples, and some rows more; of a static n, rows alone.
Where each tower has one example, x[0] is all there is: it is no pick.
"""

from fractions import Fraction
from typing import Any, Callable, Dict, NamedTuple, Optional

import numpy as np

from tensorflow_v1 import Tensor, get_constant_array
from towers.coupling.values import Operands, Picked, Rows, Shape, Value

_COMPUTED: Dict[str, Callable[..., Any]] = {
    'FloorDiv': np.floor_divide, 'RealDiv': np.divide, 'Mul': np.multiply, 'Sub': np.subtract,
    'Cast': np.trunc, 'Pack': lambda *rows: np.stack(rows),
    'StridedSlice': lambda shape, begin, *_: shape[begin[0]]}


class Place(NamedTuple):
  """The row `share` * n + `offset`."""
  share: Any = Fraction(0)
  offset: int = 0


def find_place(operands: Operands, index: int, element: int) -> Optional[Place]:
  """Returns the place that an element of an input tells, or None if it is not known."""
  tensor, value = operands.op.inputs[index], operands.values[index]
  if isinstance(value, Shape) and value.axis == element:
    return None if value.fold is None else Place(Fraction(value.fold * value.copies))
  if isinstance(value, Shape):
    if tensor.op.type != 'Pack':
      return None
    tensor, element = tensor.op.inputs[element], 0
  row = _compute(tensor)
  return None if row is None else place_of(int(row.reshape([-1])[element]), operands.values[0])


def _compute(tensor: Tensor) -> Optional[np.ndarray]:
  """Returns the value of a tensor that is computed from constants, as parts of a static n are."""
  constant, op = get_constant_array(tensor), tensor.op
  is_range = op.type == 'StridedSlice' and op.get_attr('shrink_axis_mask') != 1
  if constant is not None or op.type not in _COMPUTED or is_range:
    return constant
  inputs = [_compute(given) for given in op.inputs]
  if any(given is None for given in inputs):
    return None
  return np.asarray(_COMPUTED[op.type](*inputs))


def place_of(row: Optional[int], rows: Rows) -> Place:
  """Returns the place of a row, from the end if its number is negative; None for the end."""
  if row is None:
    return Place(Fraction(rows.copies))
  return Place(offset=row) if row >= 0 else Place(Fraction(rows.copies), row)


def take_rows(operands: Operands, rows: Rows, begin: Place, end: Place, *, tensor: Tensor,
              keeps_axis: bool = True) -> Value:
  """Returns the rows of `tensor` from one place up to another."""
  n, most = operands.num_rows, operands.most_rows
  if rows.fold != 1 or rows.is_part or most == 1 and (begin.offset or end.offset):
    return None
  begin, end = [_simplify(place, rows, n, most) for place in (begin, end)]
  copies = Fraction(end.offset - begin.offset, n) if n else end.share - begin.share
  if begin.offset % (n or 1) == 0 and copies.denominator == 1 and (n or end.offset == begin.offset):
    return rows._replace(copies=int(copies)) if keeps_axis and copies > 0 else None
  is_one = end.share == begin.share and end.offset - begin.offset == 1
  if (most is None or rows.are_equal or rows.copies > 1
      or is_one and _is_parameter(operands, tensor)):
    return None
  return Picked(frozenset([(begin, end)]), operands.op, rows if keeps_axis else None)


def _simplify(place, rows, n, most):
  """Returns the place with no share if n is known, and where the rows end if it is behind them."""
  if n:
    return Place(offset=min(int(place.share * n) + place.offset, rows.copies * n))
  is_behind = place.share > rows.copies or (
      rows.copies == 1 and most and not place.share and place.offset >= most)
  return Place(Fraction(rows.copies)) if is_behind else place


def _is_parameter(operands, tensor):
  """Returns whether only one row is read of a tensor, which may then be equal in all of them."""
  row = _find_row(operands.op)
  return row is not None and all(
      _find_row(reader) == row for reader in tensor.consumers()
      if reader in operands.needed and reader.type != 'Shape')


def _find_row(op):
  """Returns the first index of an op that takes a single row, else None."""
  if op.type != 'StridedSlice' or not op.get_attr('shrink_axis_mask') & 1:
    return None
  begin = get_constant_array(op.inputs[1])
  return None if begin is None else int(begin[0])
