"""Layout: where the axis of the examples goes in ops that move elements, and fill shapes.

A rule is as in `towers.coupling.arithmetic`.
"""

from fractions import Fraction
from typing import List, Optional

import numpy as np

from tensorflow_v1 import get_constant_array
from towers.coupling.places import Place, find_place, place_of, take_rows
from towers.coupling.values import Free, Grouped, Mixed, Operands, Rows, Shape, Total, Value


def shape(operands: Operands) -> Value:
  """Returns the shape of rows."""
  value = operands.values[0]
  if not isinstance(value, Rows):
    return None
  return Shape(value.axis, value.fold, value.is_part, value.copies)


def size(operands: Operands) -> Value:
  """Returns the number of rows, times a constant."""
  value = operands.values[0]
  if not isinstance(value, Rows):
    return None
  times = _count(value) if operands.rank(0) == 1 else None
  return Total(0, operands.op) if value.is_part else Free(1, times)


def _count(value) -> Optional[Fraction]:
  """Returns the number of rows, in batches."""
  return None if value.fold is None else Fraction(value.fold * value.copies)


def filled(operands: Operands) -> Value:
  """The rule of ops that fill a shape, with constants or random numbers."""
  shape = operands.values[0]
  if not isinstance(shape, Shape) or any(value != Free() for value in operands.values[1:]):
    return None
  fold = shape.fold if isinstance(shape.fold, int) else None
  return Rows(shape.axis, are_equal=operands.op.type == 'Fill' and not shape.is_part, fold=fold,
              is_part=shape.is_part, copies=shape.copies)


def like(operands: Operands) -> Value:
  """The rule of ones and zeros in the shape of rows."""
  value = operands.values[0]
  if not isinstance(value, Rows):
    return None
  return value._replace(power=0, are_equal=not value.is_part)


def strided_slice(operands: Operands) -> Value:
  """Of a slice in Python: rows keep all examples, and a shape may give their number."""
  op, value = operands.op, operands.values[0]
  begin, end, strides = [get_constant_array(tensor) for tensor in op.inputs[1:4]]
  masks = {name: op.get_attr(f'{name}_mask')
           for name in ('begin', 'end', 'ellipsis', 'new_axis', 'shrink_axis')}
  if isinstance(value, Total):
    return value
  if isinstance(value, Shape):
    if begin is None or begin.size != 1 or masks['shrink_axis'] != 1:
      return None
    if begin[0] != value.axis:
      return Free()
    return Total(0, op) if value.is_part else Free(1, _count(value))
  if not isinstance(value, Rows) or strides is None or masks['ellipsis']:
    return None
  axis_in = axis_out = 0
  for index, stride in enumerate(strides):
    bit = 1 << index
    if masks['new_axis'] & bit:
      axis_out += 1
      continue
    if axis_in == value.axis:
      if masks['begin'] & masks['end'] & bit and abs(stride) == 1:
        return value._replace(axis=axis_out) if stride == 1 else Mixed(op)  # Backwards.
      return _slice_rows(operands, index, axis_out, masks) if stride == 1 else None
    axis_in += 1
    axis_out += not masks['shrink_axis'] & bit
  return value._replace(axis=axis_out + value.axis - axis_in)


def _slice_rows(operands, index, axis, masks):
  """Returns rows from one place to another, or one of them."""
  rows, bit = operands.values[0], 1 << index
  begin = Place() if masks['begin'] & bit else find_place(operands, 1, index)
  if masks['shrink_axis'] & bit:
    end = begin and begin._replace(offset=begin.offset + 1)
  else:
    end = place_of(None, rows) if masks['end'] & bit else find_place(operands, 2, index)
  if begin is None or end is None:
    return None
  return take_rows(operands, rows._replace(axis=axis), begin, end, tensor=operands.op.inputs[0],
                   keeps_axis=not masks['shrink_axis'] & bit)


def slice_(operands: Operands) -> Value:
  """The rule of `tf.slice`."""
  rows = operands.values[0]
  begin, size = [get_constant_array(tensor) for tensor in operands.op.inputs[1:3]]
  if not isinstance(rows, Rows) or begin is None or size is None:
    return rows if isinstance(rows, Total) else None
  first, count = int(begin[rows.axis]), int(size[rows.axis])
  if first == 0 and count < 0:
    return rows
  end = place_of(None if count < 0 else first + count, rows)
  return take_rows(operands, rows, place_of(first, rows), end, tensor=operands.op.inputs[0])


def reshape(operands: Operands) -> Value:
  """Follows the axis of examples where it stays the first; it may be joined with others."""
  value, (data, *_), output = operands.values[0], operands.op.inputs, operands.op.outputs[0]
  if isinstance(value, (Free, Total)):
    return value
  if not isinstance(value, Rows) or value.axis or None in (data.shape.ndims, output.shape.ndims):
    return None
  if not output.shape.ndims:
    return None
  sizes = [shape.as_list()[1:] for shape in (data.shape, output.shape)]
  if sizes[0] == sizes[1] and None not in sizes[0]:
    return value
  if None in sizes[1]:
    return value._replace(fold=None) if value.fold is None else _group(operands, value)
  if None in sizes[0]:
    # The last axes stay, and the others are joined with that of the examples.
    count = len(sizes[1])
    is_joined = not count or sizes[0][-count:] == sizes[1]
    return value._replace(fold=None) if is_joined else None
  before, after = (int(np.prod(size)) for size in sizes)
  if value.fold is None:
    return value
  values_per_example = value.fold * before
  if not after or values_per_example % after:
    return _group(operands, value)
  return value._replace(fold=values_per_example // after)


def _group(operands, rows):
  """Returns rows in groups, if a reshape cuts their axis in two and leaves the others."""
  [row, (first, *others)] = [shape.as_list()[skipped:] for shape, skipped in (
      (operands.op.inputs[0].shape, 1), (operands.op.outputs[0].shape, 0))]
  if (operands.most_rows in (None, 1) or rows._replace(power=0) != Rows(0) or not others
      or 1 in (first, others[0]) or None in row + others[1:]):
    return None
  return Grouped(operands.op) if np.prod(row) == np.prod(others[1:]) else None


def expand_dims(operands: Operands) -> Value:
  """Moves the axis where the new one comes before it."""
  value, axis = operands.values[0], get_constant_array(operands.op.inputs[1])
  if not isinstance(value, Rows):
    return value if isinstance(value, Total) else None
  rank = operands.rank(0)
  if axis is None or rank is None:
    return None
  return value.insert(int(axis) % (rank + 1))


def squeeze(operands: Operands) -> Value:
  """Moves the axis where those that go come before it."""
  value, shape = operands.values[0], operands.op.inputs[0].shape
  if not isinstance(value, Rows) or shape.ndims is None:
    return value if isinstance(value, Total) else None
  axes = [axis % shape.ndims for axis in operands.op.get_attr('squeeze_dims')] or [
      axis for axis, size in enumerate(shape.as_list()) if size == 1 and axis != value.axis]
  if value.axis in axes:
    return None
  return value.drop(axes)


def transpose(operands: Operands) -> Value:
  """Moves the axis by the permutation."""
  value, order = operands.values[0], get_constant_array(operands.op.inputs[1])
  if not isinstance(value, Rows) or order is None:
    return value if isinstance(value, Total) else None
  return value._replace(axis=order.tolist().index(value.axis))


def pack(operands: Operands) -> Value:
  """Of rows, or of the numbers that make a shape."""
  rank = operands.rank(0)
  sizes = [index for index, value in enumerate(operands.values) if value != Free()]
  if rank == 0 and len(sizes) == 1 and isinstance(operands.values[sizes[0]], Free):
    return _shape_of(sizes[0], operands.values[sizes[0]])
  value = _same_rows(operands.values)
  if value is None or rank is None:
    return None
  return value.insert(operands.op.get_attr('axis') % (rank + 1))


def _shape_of(axis, size):
  """Returns the shape that has a size, a multiple of n, at this axis."""
  if size.times is None:
    return Shape(axis, fold=None) if size.power == 1 else None
  is_whole = size.times.denominator == 1
  return Shape(axis, copies=int(size.times)) if is_whole else Shape(axis, fold=size.times)


def concat(operands: Operands) -> Value:
  """Of rows along their axis, which then has several copies of the examples, or another."""
  *values, _ = operands.values
  rank, axis = operands.rank(0), get_constant_array(operands.op.inputs[-1])
  if rank is None or axis is None or not all(isinstance(value, Rows) for value in values):
    return None
  if int(axis) % rank != values[0].axis:
    return _same_rows(values)
  copies = sum(value.copies for value in values)
  value = _same_rows([value._replace(copies=copies) for value in values])
  return None if value is None or value.is_part else value


def _same_rows(values) -> Optional[Rows]:
  """Returns the rows that all values are, or None."""
  if not all(isinstance(value, Rows) for value in values):
    return None
  plain = {value._replace(are_equal=False) for value in values}
  return plain.pop() if len(plain) == 1 else None


def split(operands: Operands) -> List[Value]:
  """Of Split, whose axis is the first input, and SplitV, whose axis is the last."""
  index, axis_index = (1, 0) if operands.op.type == 'Split' else (0, 2)
  axis = get_constant_array(operands.op.inputs[axis_index])
  return _cut(operands, index, axis, keeps=True)


def unpack(operands: Operands) -> List[Value]:
  """Along an axis: the sizes of a shape, one example after the other, or parts of each."""
  axis = np.array(operands.op.get_attr('axis'))
  return _cut(operands, 0, axis, keeps=False)


def _cut(operands, index, axis, *, keeps):
  value, rank, op = operands.values[index], operands.rank(index), operands.op
  count = len(op.outputs)
  if isinstance(value, Shape) and not value.is_part and not keeps:
    return [Free(1, _count(value)) if number == value.axis else Free() for number in range(count)]
  if not isinstance(value, Rows) or rank is None or axis is None:
    return [None] * count
  axis = int(axis) % rank
  if axis != value.axis:
    return [value if keeps else value.drop([axis])] * count
  places = [Place(Fraction(value.copies * number, count)) for number in range(count + 1)]
  if not keeps:
    places = [Place(offset=number) for number in range(count + 1)]
  elif op.type == 'SplitV':
    sizes = get_constant_array(op.inputs[1])
    if sizes is None or sizes.min() < 0:
      return [None] * count
    places = [Place(offset=int(number)) for number in np.cumsum([0, *sizes])]
  return [take_rows(operands, value, begin, end, tensor=op.inputs[index], keeps_axis=keeps)
          for begin, end in zip(places, places[1:])]


def gather(operands: Operands) -> Value:
  """Rows of a table by indices of the examples, or elements of rows."""
  data, indices = operands.values[:2]
  axis: Optional[np.ndarray] = np.array(0)
  if operands.op.type == 'GatherV2':
    axis = get_constant_array(operands.op.inputs[2])
    if operands.op.get_attr('batch_dims'):
      return None
  if axis is None or operands.rank(1) is None:
    return None
  if isinstance(data, Total):
    # What an example takes of a total of all examples.
    return data if indices == Free() else Mixed(data.op)
  if data == Free() and isinstance(indices, Rows):
    return indices._replace(axis=int(axis) + indices.axis, are_equal=False)
  if isinstance(data, Rows) and indices == Free() and 0 <= int(axis) != data.axis:
    return data._replace(axis=data.axis + (operands.rank(1) - 1) * (int(axis) < data.axis))
  if isinstance(data, Rows) and indices == Free() and axis == data.axis:
    return _take_places(operands, data)
  return choose(operands) if axis == 0 and operands.rank(1) == 1 else None


def _take_places(operands, data):
  """Returns the rows of neighbouring indices."""
  rows = get_constant_array(operands.op.inputs[1])
  rank = operands.rank(1)
  if rows is None or rank > 1 or not rows.size or (np.diff(rows.reshape([-1])) != 1).any():
    return None
  first, last = (int(row) for row in rows.reshape([-1])[[0, -1]])
  return take_rows(operands, data, place_of(first, data), place_of(last + 1, data),
                   tensor=operands.op.inputs[0], keeps_axis=rank == 1)


def choose(operands: Operands) -> Value:
  """Some of the rows, by a condition on each, by their indices or by the number of their part."""
  rows = operands.values[0]
  is_part = operands.op.type in ('Where', 'DynamicPartition') or (
      isinstance(operands.values[1], Rows) and operands.values[1].is_part)
  if not isinstance(rows, Rows) or rows.axis or not is_part:
    return None
  return rows._replace(are_equal=False, fold=None, is_part=True, copies=1)


def one_hot(operands: Operands) -> Value:
  """The rule of a new last axis."""
  indices, *others = operands.values
  if not isinstance(indices, Rows) or any(other != Free() for other in others):
    return None
  return indices if operands.op.get_attr('axis') == -1 else None


def pad(operands: Operands) -> Value:
  """Along axes other than that of the examples."""
  rows, sizes = operands.values[0], get_constant_array(operands.op.inputs[1])
  if not isinstance(rows, Rows) or sizes is None or sizes[rows.axis].any():
    return None
  return rows._replace(are_equal=False)


def tile(operands: Operands) -> Value:
  """Along the axis of the examples, which then has several copies of them, or another."""
  rows, times = operands.values[0], get_constant_array(operands.op.inputs[1])
  if not isinstance(rows, Rows) or times is None or times[rows.axis] < 1:
    return None
  return rows._replace(copies=rows.copies * int(times[rows.axis]))


def switch(operands: Operands) -> Value:
  """Both branches of a `cond` get the value."""
  return operands.values[0] if operands.values[1] == Free() else None


def merge(operands: Operands) -> List[Value]:
  """The rule of the end of a `cond`, which has one of its inputs; nothing is known of loops."""
  plain = {value._replace(are_equal=False) if isinstance(value, Rows) else value
           for value in operands.values}
  return [plain.pop() if len(plain) == 1 else None, Free()]
