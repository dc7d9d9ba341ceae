"""Draws: the random numbers of a tower, taken without moving the state of any generator."""

import re
from typing import List, Sequence

from tensorflow_v1 import Operation, Tensor
from towers.placement.randomness import find_unseedable

_STATELESS = re.compile(r'Stateless(Random(?!Get)|Truncated|Parameterized|Multinomial|Shuffle)')


def find_draws(ops: Sequence[Operation]) -> List[Operation]:
  """Returns the ops that draw random numbers which other ops use.

  No op uses those of an op whose stateless twin has taken its place.
  """
  return [op for op in ops if (_STATELESS.match(op.type) or has_state(op))
          and any(output.consumers() for output in op.outputs)]


def has_state(op: Operation) -> bool:
  """Returns whether an op draws by a state of its own, which it moves."""
  names = op.op_def.attr if op.op_def.is_stateful else ()
  return {'seed', 'seed2'} <= {attribute.name for attribute in names}


def find_numbers(op: Operation) -> List[Tensor]:
  """Returns what an op draws; of a stateless one, cut to the rows of its tower."""
  if has_state(op):
    return list(op.outputs)
  [tensor] = op.outputs
  while len(tensor.consumers()) == 1 and tensor.consumers()[0].type in ('Slice', 'StridedSlice',
                                                                       'Reshape'):
    tensor = tensor.consumers()[0].outputs[0]
  return [tensor]


def find_unfed(ops: Sequence[Operation], moves_state: bool) -> str:
  """Describes a draw of which no run can be given the numbers, in a loop or a function; or ''.

  Args:
    ops: in order.
    moves_state: whether the state of a random op may move.
  """
  for op in ops:
    context = op._get_control_flow_context()
    in_loop = context is not None and context.GetWhileContext() is not None
    if find_draws([op]) and (in_loop or has_state(op) and not moves_state):
      return f'{op.name} draws {"in a loop" if in_loop else "by a state of its own"}'
    if find_unseedable(op):
      return f'{op.name} draws in a function'
  return ''
