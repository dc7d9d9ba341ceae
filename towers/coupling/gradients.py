"""Gradients: what `tf.gradients` inside of a model computes of rows.

  rows ──────► mean ──────► total
    ▲                         │          Where the mean of n rows is differentiated, each row gets
    └── divide by n ◄── tile ◄┘          1 / n, so it depends on the size of its tower's batch.

TensorFlow keeps with each op of a gradient its source, the op that is differentiated. The rules
here are those in which the source tells what the op alone does not: where the axis of the examples
goes, what is summed over it, and by what a mean divides. Of a batch with a static number of rows
that all is in constants.
"""

from typing import Dict

from towers.coupling.arithmetic import Rule
from towers.coupling.values import Free, Operands, Rows, Total, Value

# Inputs that only give sizes, by the type of op.
_SIZES = {'AvgPoolGrad': 0, 'Bincount': 1, 'Conv2DBackpropFilter': 1, 'Conv2DBackpropInput': 0,
          'DenseBincount': 1, 'DepthwiseConv2dNativeBackpropFilter': 1,
          'DepthwiseConv2dNativeBackpropInput': 0}


def seeded(operands: Operands) -> Operands:
  """Returns the operands without sizes, and with the ones that a gradient starts from as rows."""
  op, source, values = operands.op, operands.source, list(operands.values)
  if op.type in _SIZES:
    values[_SIZES[op.type]] = Free()
  if source and isinstance(source.output, Rows):
    output = source.op.outputs[0]
    for index, tensor in enumerate(op.inputs):
      if (values[index] == Free() and tensor.op.type == 'Fill' and output.shape.ndims
          and tensor.shape.is_fully_defined() and tensor.shape == output.shape):
        values[index] = source.output._replace(power=0, are_equal=True, is_part=False)
  return operands._replace(values=values)


def follow_gradient(operands: Operands) -> Value:
  """Returns the value of an op of a gradient, or None where its own rule tells it."""
  source = operands.source
  rule = _RULES.get(source.op.type, {}).get(operands.op.type) if source else None
  return rule(operands) if rule else None


def _like_input(operands):
  """Rows with the axis that the input of the source has."""
  data, rows = operands.values[-1 if operands.op.type == 'StridedSliceGrad' else 0], (
      operands.source.inputs[0])
  if not isinstance(data, Rows) or not isinstance(rows, Rows):
    return None
  return rows._replace(power=data.power, are_equal=data.are_equal)


def _spread(operands):
  """The gradient of a reduction: the same for all elements that it has joined."""
  data, rows = operands.values[0], operands.source.inputs[0]
  if not isinstance(rows, Rows) or not isinstance(data, (Free, Rows)):
    return None
  return rows._replace(power=data.power, are_equal=not isinstance(data, Rows) or data.are_equal)


def _divide(operands):
  """The gradient of a mean over elements, or over examples."""
  (rows, *_), output, data = operands.source.inputs, operands.source.output, operands.values[0]
  if not isinstance(data, Rows) or not isinstance(rows, Rows) or isinstance(output, Rows):
    return data
  return data._replace(power=data.power - 1)


def _sum_broadcast(operands):
  """What was broadcast gets the sum of its gradients: a weight that of all examples."""
  axes, data = operands.op.inputs[1], operands.values[0]
  if axes.op.type != 'BroadcastGradientArgs' or not isinstance(data, Rows):
    return None
  given = operands.source.inputs[axes.value_index]
  if isinstance(given, Rows):
    return given._replace(power=data.power, are_equal=data.are_equal)
  shape, rank = operands.source.op.inputs[axes.value_index].shape, operands.rank(0)
  if given != Free() or None in (shape.ndims, rank):
    return None
  place = shape.ndims - (rank - data.axis)
  size = shape.as_list()[place] if place >= 0 else 1
  if size is None:
    return None
  if size > 1:
    return data._replace(axis=place)  # A constant of a static number of rows.
  return Free(data.power + 1) if data.are_equal else Total(data.power, operands.op)


def _reshape_broadcast(operands):
  """The shape of what was broadcast, which its sum has already."""
  summed = operands.op.inputs[0].op
  if summed.type != 'Sum' or summed.inputs[1].op.type != 'BroadcastGradientArgs':
    return None
  return operands.values[0]


def _keep(operands):
  """The gradient of what was joined with others, along the axis of the examples too."""
  data, rows = operands.values[0], operands.source.inputs[0]
  if not isinstance(data, Rows) or not isinstance(rows, Rows):
    return None
  is_along = data.copies != rows.copies
  return data._replace(copies=rows.copies) if not is_along or len(
      set(operands.source.inputs[:-1])) == 1 else None


_REDUCTION: Dict[str, Rule] = {'Reshape': _like_input, 'Tile': _spread, 'BroadcastTo': _spread}
_BROADCAST: Dict[str, Rule] = {'Sum': _sum_broadcast, 'Reshape': _reshape_broadcast}
# The rules of ops of a gradient, by the type of their source.
_RULES: Dict[str, Dict[str, Rule]] = {
    **dict.fromkeys(('Sum', 'Max', 'Min'), _REDUCTION),
    'Mean': {**_REDUCTION, 'RealDiv': _divide},
    **dict.fromkeys(('Add', 'AddV2', 'Sub', 'Mul', 'RealDiv', 'Div', 'DivNoNan', 'Maximum',
                     'Minimum', 'Pow', 'SquaredDifference', 'SelectV2'), _BROADCAST),
    **dict.fromkeys(('Reshape', 'ExpandDims', 'Squeeze'), {'Reshape': _like_input}),
    'Transpose': {'Transpose': _like_input},
    'StridedSlice': {'StridedSliceGrad': _like_input},
    'Slice': {'Pad': _like_input},
    'ConcatV2': {'Slice': _keep},
}
