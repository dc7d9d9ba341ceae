"""Groups: what becomes of examples that a reshape puts into groups whose members stand apart.

  x [n, d] ──► reshape [4, -1, d] ──┬──────────► subtract ──► Mixed
                                    └──► mean over 0 ──┘

A net that compares the images of a batch does so, as by their standard deviation. The members of a
group are n / 4 examples apart, so a tower's groups have other members. A mean over them alone does
no harm, since it may be part of a mean over all; beside the members themselves it does.
"""

from towers.coupling.arithmetic import find_axes
from towers.coupling.rules import ARITHMETIC
from towers.coupling.values import Free, Grouped, Mixed, Operands, Value

_SUMS = ('Sum', 'Mean')
_ELEMENTWISE = ('Identity', 'Cast', 'Neg', 'StopGradient', 'Add', 'AddV2', 'Sub', 'Mul', 'RealDiv',
                'BiasAdd', 'Square', 'Sqrt', 'Rsqrt', 'Abs', 'Exp', 'Log', 'Tanh', 'Sigmoid',
                'Relu', 'LeakyRelu')


def follow_grouped(operands: Operands) -> Value:
  """Returns what becomes of groups in an op that reads them."""
  op, values = operands.op, operands.values
  groups = [value for value in values if isinstance(value, Grouped)]
  if op.type in _SUMS:
    return _sum(operands, groups[0])
  if op.type not in ARITHMETIC or not all(value in groups or value == Free() for value in values):
    return None
  if len({group.is_summed for group in groups}) == 2:
    return Mixed(groups[0].op)
  return groups[0] if op.type in _ELEMENTWISE and not groups[0].is_summed else None


def _sum(operands, group):
  """Returns the sums over the members of each group, or groups whose other axes are fewer."""
  rank = operands.rank(0)
  axes = None if rank is None else find_axes(operands.op.inputs[1], rank)
  if axes is None or group.is_summed:
    return None
  return None if 1 in axes else group._replace(is_summed=0 in axes)
