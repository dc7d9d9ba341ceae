"""Picks: what becomes of examples that a program takes by their place in the batch.

  x ──┬──► x[:n // 2] ──► Picked ──┐
      └──► x[n // 2:] ──► Picked ──┴──► subtract ──► Mixed

Another example stands at each place of a tower's batch. That alone does no harm: a program may
take its batch apart, compute the same of each part, and join them again or add up their sums. But
where an example meets one of another place, or all of them, values depend on the batch as a whole.
"""

from fractions import Fraction

from tensorflow_v1 import get_constant_array
from towers.coupling.places import Place
from towers.coupling.rules import ARITHMETIC, RULES
from towers.coupling.values import Free, Length, Mixed, Operands, Picked, Rows, Shape, Value

_SUMS = ('Add', 'AddV2', 'Sub', 'AddN')
_DIVISIONS = ('RealDiv', 'Div')
# Of one input, if it is a sum over several places; the others are free.
_LINEAR = ('Identity', 'Neg', 'Cast', 'StopGradient', 'Mul', 'RealDiv', 'Div', 'BiasAdd', 'MatMul',
           'BatchMatMul', 'BatchMatMulV2', 'Conv2D', 'Conv3D', 'DepthwiseConv2dNative', 'AvgPool',
           'Sum', 'Mean')
# These put a part among zeros or give its shape.
_PLACING = ('Pad', 'PadV2', 'StridedSliceGrad', 'Shape', 'ShapeN', 'Size', 'OnesLike', 'ZerosLike')


def follow_picked(operands: Operands) -> Value:
  """Returns what becomes of what was picked, in an op that reads it."""
  op, values = operands.op, operands.values
  picked = [value for value in values if isinstance(value, Picked)]
  rows = [value for value in values if isinstance(value, Rows)]
  is_known = len(picked) + len(rows) == sum(
      not isinstance(value, (Free, Length, Shape)) for value in values)
  # A branch taken by one example may hold for all: a batch of one task, say.
  is_branch = op.type == 'Switch' and values[1] in picked
  if op.type == 'Range' and not rows:
    return Free()  # As for the lengths of a batch.
  if not is_known or is_branch or op.type in _PLACING:
    return None
  if op.type == 'ConcatV2' and len({value.places for value in picked}) + len(rows) > 1:
    return _join(operands, picked, rows)
  return _beside_all(operands, picked[0], rows) if rows else _beside_others(operands, picked)


def _join(operands, picked, rows):
  """Returns all rows where parts are joined in their order, and Mixed in another order."""
  axis, rank = get_constant_array(operands.op.inputs[-1]), operands.rank(0)
  wholes = {value.rows for value in picked} | set(rows)
  if axis is None or rank is None or len(wholes) != 1 or None in wholes:
    return None
  [whole] = wholes
  if int(axis) % rank != whole.axis:
    return Mixed(picked[0].op)
  parts = [place for value in picked for place in value.places]
  is_whole = _follow_each_other(sorted(parts), operands)
  if rows or not is_whole:
    return None
  return whole if _follow_each_other(parts, operands) else Mixed(picked[0].op)


def _follow_each_other(parts, operands):
  """Returns whether each part begins where the one before it ends, and all make a batch."""
  begins, ends = zip(*parts)
  last = Place(offset=operands.num_rows) if operands.num_rows else Place(Fraction(1))
  return begins == (Place(),) + ends[:-1] and ends[-1] == last


def _beside_all(operands, picked, rows):
  """Returns what becomes of picked examples beside those of the whole batch."""
  op = operands.op
  is_batch = all(value.fold == 1 and value.copies == 1 and not value.are_equal
                 and not value.is_part for value in rows)
  # An integer beside other numbers is a size, or an index.
  is_size = any(isinstance(value, Picked) and tensor.dtype.is_integer
                for value, tensor in zip(operands.values, op.inputs)) and not all(
                    tensor.dtype.is_integer for tensor in op.inputs)
  if not is_batch or is_size or op.type not in ARITHMETIC or op.type == 'AddN':
    return None
  # A sum over a part may be added to losses, and those over the other parts after it.
  is_scalar = any(isinstance(value, Picked) and not operands.rank(index)
                  for index, value in enumerate(operands.values))
  return None if is_scalar and op.type in _SUMS else Mixed(picked.op)


def _beside_others(operands, picked):
  """Returns what becomes of examples picked from one place or several."""
  op, places = operands.op, {value.places for value in picked}
  joined = picked[0]._replace(places=frozenset.union(*places), rows=None)
  if len(joined.places) == 1 or op.type in _SUMS:
    return joined
  if len(picked) > 1:
    # What an example adds to a sum may be chosen by itself.
    is_choice = op.type in ('Select', 'SelectV2')
    return Mixed(joined.op) if op.type in ARITHMETIC and not is_choice else None
  if op.type in _LINEAR and (op.type not in _DIVISIONS or operands.values[0] in picked):
    return joined
  if op.type not in ARITHMETIC:
    return joined if op.type in RULES else None
  # A loss that adds up those of all parts may be looked at, to see whether it is finite.
  return Mixed(joined.op) if operands.rank(operands.values.index(picked[0])) else None
