"""Arithmetic: what becomes of rows, totals and free values in ops that compute.

A rule gets an op's `Operands`, none of which is None or Mixed, and returns the value of all its
outputs, or a list with one for each: None where the graph does not tell.
"""

import math
from fractions import Fraction
from typing import Any, Callable, List, Optional

import numpy as np

from tensorflow_v1 import Tensor, get_constant_array
from towers.coupling.values import Free, Length, Mixed, Operands, Rows, Shape, Total, Value

Rule = Callable[[Operands], Any]
# A constant up to this is there to keep clear of 0.
_EPSILON = 1e-3
# The power of n in a function of rows times n: the degree to which it is homogeneous.
_DEGREES = {
    'Square': 2, 'SquaredDifference': 2, 'Sqrt': 0.5, 'Rsqrt': -0.5, 'Reciprocal': -1, 'Inv': -1,
    **dict.fromkeys(('Abs', 'Relu', 'LeakyRelu', 'Maximum', 'Minimum', 'Select', 'SelectV2', 'Max',
                     'Min'), 1),
    **dict.fromkeys(('Sign', 'Greater', 'GreaterEqual', 'Less', 'LessEqual', 'Equal', 'NotEqual',
                     'ArgMax', 'ArgMin', 'IsFinite', 'IsNan', 'IsInf'), 0)}
_SCALINGS = ('Mul', 'RealDiv', 'Div', 'FloorDiv')
REDUCTIONS = ('Sum', 'Mean', 'Prod', 'Max', 'Min', 'All', 'Any')


def elementwise(combine: str) -> Rule:
  """Returns the rule of an op on elements.

  Args:
    combine: how powers of n combine: 'add', 'multiply', 'divide', 'gradient' where it multiplies
      by the gradient that it reads, or 'other'.
  """

  def rule(operands: Operands) -> Value:
    values = operands.values
    if any(isinstance(value, Shape) for value in values):
      return None
    rows = [value for value in values if isinstance(value, Rows)]
    totals = [value for value in values if isinstance(value, Total)]
    if rows and totals:
      return Mixed(totals[0].op)
    power = _join_powers(operands, combine)
    if rows and math.isnan(power) and _depends_on_size(values):
      return Mixed(operands.op)
    if combine in ('multiply', 'divide') and _may_count_rows(operands):
      power = math.nan
    if rows:
      return _join_rows(operands, rows, power)
    if totals:
      return _join_totals(values, totals, combine, power)
    return Free(power, _multiply_size(operands))

  return rule


def _join_rows(operands, rows, power) -> Value:
  """Returns rows of rows and free values, broadcast from the right."""
  ranks = [operands.rank(index) for index in range(len(operands.values))]
  if None in ranks:
    return None
  from_right = {rank - value.axis for rank, value in zip(ranks, operands.values)
                if isinstance(value, Rows)}
  if len(from_right) > 1:
    return Mixed(operands.op)  # A value for each pair of examples.
  return _join(rows, axis=max(ranks) - from_right.pop(), power=power,
               are_equal=all(value.are_equal for value in rows))


def _join(rows, **changed) -> Optional[Rows]:
  """Returns rows computed from several, with these changes."""
  if len({value.copies for value in rows}) > 1:
    return None
  folds = {value.fold for value in rows}
  return rows[0]._replace(fold=folds.pop() if len(folds) == 1 else None,
                          is_part=any(value.is_part for value in rows), **changed)


def _multiply_size(operands: Operands) -> Optional[Fraction]:
  """Returns by what n is multiplied where an op multiplies or divides it by a constant."""
  kind, times = operands.op.type, [getattr(value, 'times', None) for value in operands.values]
  sizes = [index for index, size in enumerate(times) if size is not None]
  if len(times) != 2 or len(sizes) != 1 or kind not in _SCALINGS:
    return None
  constant = get_constant_array(operands.op.inputs[1 - sizes[0]])
  size: Any = times[sizes[0]]
  # Half of n may be rounded, so twice as much is another matter.
  if constant is None or constant.size != 1 or size.denominator > 1 or not 0 < constant < math.inf:
    return None
  factor = Fraction(float(constant.reshape([])))
  if kind == 'Mul':
    return size * factor
  return size / factor if sizes == [0] else None


def _join_totals(values, totals, combine, power) -> Value:
  """Returns what becomes of totals and free values: linear functions keep a total one."""
  if combine == 'add' and all(value == Free() for value in values if value not in totals):
    powers = [total.power for total in totals]
    if any(map(math.isnan, powers)):
      return totals[0]._replace(power=math.nan)
    return max(totals, key=lambda total: abs(total.power + 1))  # The one that is no mean.
  if len(totals) == 1 and (combine == 'multiply' or combine == 'divide' and totals == values[:1]):
    return totals[0]._replace(power=power)
  return Mixed(totals[-1].op)


def _join_powers(operands: Operands, combine: str) -> float:
  """Returns the power of n of an op's result, NaN where it has none."""
  powers = [value.power for value in operands.values]
  if combine in ('multiply', 'gradient'):
    return sum(powers)
  if combine == 'divide':
    return powers[0] - sum(powers[1:])
  if not any(powers):
    return 0
  kind = operands.op.type
  degree = 1.0 if combine == 'add' else _DEGREES.get(kind, math.nan)
  chosen = [value for index, value in enumerate(operands.values)
            if not (index == 0 and kind.startswith('Select')) and not _is_epsilon(operands, index)]
  if kind == 'Pow' and len(chosen) == 2 and chosen[1] == Free():
    exponent = get_constant_array(operands.op.inputs[1])
    degree = math.nan if exponent is None or exponent.size != 1 else float(exponent.reshape([]))
    chosen = chosen[:1]
  same = {value.power for value in chosen}
  return degree * same.pop() if len(same) == 1 else math.nan


def _is_epsilon(operands, index):
  """Returns whether an input is 0, or a constant that only keeps clear of 0."""
  value, tensor = operands.values[index], operands.op.inputs[index]
  if isinstance(value, Rows) and value.are_equal:
    if tensor.op.type == 'ZerosLike':
      return True
    tensor = tensor.op.inputs[1] if tensor.op.type == 'Fill' else tensor
  elif value != Free():
    return False
  constant = get_constant_array(tensor)
  return constant is not None and np.issubdtype(constant.dtype, np.number) and bool(
      np.all(np.abs(constant) <= _EPSILON))


def _depends_on_size(values) -> bool:
  """Returns whether rows that are not all equal have a known power of n, which they then lose."""
  return not any(math.isnan(value.power) for value in values) and not any(
      value.are_equal for value in values if isinstance(value, Rows))


def _may_count_rows(operands: Operands) -> bool:
  """Returns whether a factor or divisor may stand for the number of rows, where that is static."""
  if operands.num_rows is None:
    return False
  totals = [value for value in operands.values if isinstance(value, Total)]
  sizes = [operands.num_rows] + [
      int(np.prod(total.op.inputs[0].shape.as_list())) for total in totals
      if total.op.inputs[0].shape.is_fully_defined()]
  for tensor, value in zip(operands.op.inputs, operands.values):
    if value == Free():
      constant = get_constant_array(tensor)
      if constant is None:
        return True
      if constant.size == 1:
        number = float(constant.reshape([]))
        if any(np.isclose(number, size) or np.isclose(number * size, 1) for size in sizes):
          return True
  return False


def linear(operands: Operands) -> Value:
  """The rule of ops that pass their first input through, or negate it."""
  value = operands.values[0]
  return value._replace(times=None) if operands.op.type == 'Neg' and isinstance(
      value, Free) else value


def bias_add(operands: Operands) -> Value:
  """The rule of a sum with one value for each channel."""
  rows, bias = operands.values
  if not isinstance(rows, Rows) or bias != Free():
    return None
  return Mixed(operands.op) if rows.power and not math.isnan(rows.power) else rows


def to_rows(operands: Operands) -> Value:
  """The rule of ops that treat the first axis as that of examples, with free parameters."""
  data, *parameters = operands.values
  is_row_wise = isinstance(data, Rows) and data.axis == 0 and all(
      parameter == Free() for parameter in parameters)
  return data if is_row_wise else None


def batch_norm(operands: Operands) -> List[Value]:
  """The kernel of batch normalisation, whose moments are a matter of `batch_norm`."""
  return [to_rows(operands)] + [None] * (len(operands.op.outputs) - 1)


def back_to_rows(operands: Operands) -> Value:
  """The rule of the gradient of a layer with respect to its rows."""
  rows = _list_rows(operands)
  if not rows or any(value.axis for value in rows):
    return None
  return rows[0]._replace(power=sum(value.power for value in rows), are_equal=False)


def back_to_weights(operands: Operands) -> Value:
  """The rule of the gradient of a layer with respect to its weights: a sum over the examples."""
  rows = _list_rows(operands)
  power = sum(value.power for value in rows)
  if not rows:
    return None
  if all(value.are_equal for value in rows):
    return Free(power + 1)
  return Total(power, operands.op)


def _list_rows(operands):
  """Returns the inputs that are rows, if all others are free."""
  rows = [value for value in operands.values if isinstance(value, Rows)]
  return rows if len(rows) + operands.values.count(Free()) == len(operands.values) else []


def both_rows(operands: Operands) -> Value:
  """The rule of losses whose inputs and outputs all have a row for each example."""
  rows = _list_rows(operands)
  if not rows or any(value.axis for value in rows):
    return None
  power = _join_powers(operands, 'other')
  if math.isnan(power) and _depends_on_size(operands.values):
    return Mixed(operands.op)
  return rows[0]._replace(power=power, are_equal=False)


def along_axis(input_index: Optional[int] = None) -> Rule:
  """Returns the rule of ops that join elements along axes and keep the shape.

  Args:
    input_index: of the axes; None for the last axis.
  """

  def rule(operands: Operands) -> Value:
    rows, rank = operands.values[0], operands.rank(0)
    if isinstance(rows, Total) and input_index is None:
      return Mixed(rows.op)
    if not isinstance(rows, Rows) or rank is None:
      return None
    axes = find_axes(operands.op.inputs[input_index], rank) if input_index else [rank - 1]
    if axes is None:
      return None
    if rows.axis in axes:
      return Mixed(operands.op)
    if rows.power and 'Softmax' in operands.op.type:
      return rows._replace(power=math.nan) if math.isnan(rows.power) else Mixed(operands.op)
    return rows._replace(are_equal=False)

  return rule


def reduction(kind: str) -> Rule:
  """Returns the rule of a reduction; `kind` is 'sum', 'mean' or 'other'."""

  def rule(operands: Operands) -> Value:
    op, value, rank = operands.op, operands.values[0], operands.rank(0)
    if isinstance(value, Total):
      return value if kind != 'other' else Mixed(value.op)
    axes = None if rank is None else find_axes(op.inputs[1], rank)
    if not isinstance(value, Rows) or axes is None:
      return None
    if value.axis not in axes:
      if kind == 'other':
        value = value._replace(power=_join_powers(operands._replace(values=[value]), 'other'))
      keeps = op.type in REDUCTIONS and op.get_attr('keep_dims')
      return value if keeps else value.drop(axes)
    if kind == 'other':
      if op.inputs[0].dtype.is_integer:
        return Length() if op.type in ('Max', 'Min') else None
      return Mixed(op) if op.inputs[0].dtype.is_floating else None
    if kind == 'mean' and value.is_part:
      return Mixed(op)  # How many there are is another number in each part of a batch.
    power = value.power - (kind == 'mean')
    return Free(power + 1) if value.are_equal else Total(power, op)

  return rule


def l2_loss(operands: Operands) -> Value:
  """The rule of half a sum of squares."""
  value = operands.values[0]
  if isinstance(value, Rows):
    return Total(2 * value.power, operands.op)
  return Mixed(value.op) if isinstance(value, Total) else None


def by_class(operands: Operands) -> Value:
  """The rule of sums of the examples of each class, or of each place in a table."""
  op = operands.op
  places, size = (0, 2) if op.type == 'ScatterNd' else (1, 2)
  others = operands.values[:2]
  constant = get_constant_array(op.inputs[size])
  if others[places] != Rows(0) or operands.values[size] != Free() or constant is None or not all(
      value == Free() or isinstance(value, Rows) and not value.axis for value in others):
    return None
  if operands.num_rows and constant.flat[0] % operands.num_rows == 0:
    return None  # The places may be the examples.
  if not op.type.endswith(('Sum', 'Nd')):
    return Mixed(op)
  return Total(sum(value.power for value in others), op)


def bincount(operands: Operands) -> Value:
  """The rule of how many examples each class has."""
  labels, _, weights = operands.values
  is_one = labels == Rows(0) and operands.rank(0) == 1
  return Total(0, operands.op) if is_one and weights in (Free(), Rows(0)) else None


def matrices(operands: Operands) -> Value:
  """The rule of functions of matrices, of which there may be one for each example."""
  totals = [value for value in operands.values if isinstance(value, Total)]
  if totals:
    return Mixed(totals[0].op)
  rows = _list_rows(operands)
  if len(rows) != 1 or rows[0].axis or (operands.rank(0) or 0) < 3:
    return None
  return rows[0]._replace(power=math.nan if rows[0].power else 0, are_equal=False)


def matmul(operands: Operands) -> Value:
  """Products over the last two axes; those before are a batch of products."""
  op, (left, right) = operands.op, operands.values
  totals = [value for value in (left, right) if isinstance(value, Total)]
  if totals:
    return totals[0] if Free() in (left, right) else Mixed(totals[0].op)
  ranks = [operands.rank(index) for index in (0, 1)]
  if None in ranks or not all(isinstance(value, (Rows, Free)) for value in (left, right)):
    return None
  names = ('transpose_a', 'transpose_b') if op.type == 'MatMul' else ('adj_x', 'adj_y')
  places = [_from_right(value, rank, op.get_attr(name))
            for value, rank, name in zip((left, right), ranks, names)]
  power = left.power + right.power
  are_summed = [places[0] == 1, places[1] == 2]
  if all(are_summed):
    return Total(power, op)
  examples = {place for place in places if place}
  if any(are_summed) or len(examples) > 1:
    return Mixed(op)  # Each example times a weight of its position, or pairs of examples.
  rows = [value for value in (left, right) if isinstance(value, Rows)]
  return _join(rows, axis=max(ranks) - examples.pop(), power=power, are_equal=False)


def _from_right(value: Value, rank: int, is_transposed: bool) -> int:
  """Returns how far from the right the examples are in a matrix as it is multiplied; 0 for none."""
  if not isinstance(value, Rows):
    return 0
  place = rank - value.axis
  return 3 - place if is_transposed and place < 3 else place


def einsum(operands: Operands) -> Value:
  """Products over named axes, of rows that share the examples' name, and free values."""
  op, values = operands.op, operands.values
  equation = op.get_attr('equation').decode()
  if '.' in equation or not all(isinstance(value, (Rows, Free)) for value in values):
    return None
  names, output = equation.split('->')[0].split(','), equation.split('->')[1]
  examples = {name[value.axis] for name, value in zip(names, values) if isinstance(value, Rows)}
  if len(examples) > 1:
    return Mixed(op)
  power = sum(value.power for value in values)
  name = examples.pop()
  if name in output:
    rows = [value for value in values if isinstance(value, Rows)]
    return _join(rows, axis=output.index(name), power=power, are_equal=False)
  shared = [value for letters, value in zip(names, values) if name in letters]
  return Total(power, op) if all(isinstance(value, Rows) for value in shared) else Mixed(op)


def select(operands: Operands) -> Value:
  """Of Select, whose condition may have one element for each row of the others."""
  if operands.op.type == 'SelectV2' or operands.rank(0) != 1 or operands.rank(1) == 1:
    return elementwise('other')(operands)
  rows = [value for value in operands.values if isinstance(value, Rows)]
  if len(rows) + operands.values.count(Free()) < len(operands.values):
    return None
  plain = [value._replace(are_equal=False) for value in rows]
  return plain[0] if plain and set(plain) == {Rows(0)} else None


def find_axes(tensor: Tensor, rank: int) -> Optional[List[int]]:
  """Returns the axes that a reduction takes, from 0, or None if they are not constant."""
  axes = get_constant_array(tensor)
  return None if axes is None else [int(axis) % rank for axis in axes.reshape([-1])]
