"""Follow: the batch through a graph, op by op, without a run.

  batch [8, 3] ──► matmul ──► cross entropy [8] ──► mean ──► loss
      Rows           Rows           Rows            Total

Several towers equal one whatever is computed of an example alone, and of means over the batch. They
differ where a value is mixed: a tower has only its own examples to mix.
"""

from typing import Collection, Dict, List, Optional, Sequence

from tensorflow_v1 import Operation, Tensor
from towers.coupling.rules import RULES
from towers.coupling.values import Free, Mixed, Operands, Rows, Total, Value
from towers.graph.walk import find_dependents, find_needed, sort_by_inputs

_DIVISIONS = ('RealDiv', 'Div', 'DivNoNan')
_SHAPED_BY_THE_SECOND = ('Reshape', 'TopKV2')


def follow(batch: Sequence[Tensor], targets: Sequence[Tensor], *, num_rows: Optional[int] = None,
           free: Collection[Tensor] = ()) -> List[Value]:
  """Returns the value of each target.

  Args:
    batch: each `[n, ...]`.
    targets: to follow.
    num_rows: n, if it is static.
    free: to take as free, such as moments that all towers share.
  """
  values: Dict[Tensor, Value] = {tensor: Rows(0) for tensor in batch}
  values.update((tensor, Free()) for tensor in free)
  dependents = find_dependents([tensor.op for tensor in batch], by_control=False)
  needed = find_needed([tensor.op for tensor in targets], within=dependents)
  for op in sort_by_inputs(needed):
    inputs = [values.get(tensor, None if tensor.op in dependents else Free())
              for tensor in op.inputs]
    for tensor, value in zip(op.outputs, _find_outputs(op, inputs, num_rows)):
      values.setdefault(tensor, value)
  return [values.get(tensor, Free()) for tensor in targets]


def _find_outputs(op: Operation, inputs: List[Value], num_rows: Optional[int]) -> List[Value]:
  """Returns the value of each output."""
  if all(value == Free() for value in inputs):
    return [Free()] * len(op.outputs)
  mixed = [value for value in inputs if isinstance(value, Mixed)]
  if mixed:
    # Mixed integers, such as the largest length of a batch, mostly choose a shape.
    is_known = any(isinstance(value, Mixed) and not tensor.dtype.is_integer
                   for tensor, value in zip(op.inputs, inputs))
    return [mixed[0] if is_known and not tensor.dtype.is_integer else None
            for tensor in op.outputs]
  if op.type in _DIVISIONS and isinstance(inputs[1], Total):
    # Whatever is divided: only one batch as a whole has this divisor.
    return [Mixed(inputs[1].op)]
  rule = RULES.get(op.type)
  if op.type in _SHAPED_BY_THE_SECOND:
    inputs = [inputs[0], Free()]  # The output's static shape tells as much.
  if rule is None or None in inputs:
    return [None] * len(op.outputs)
  result = rule(Operands(op, inputs, num_rows))
  return result if isinstance(result, list) else [result] * len(op.outputs)
