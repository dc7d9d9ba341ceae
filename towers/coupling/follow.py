"""Follow: the batch through a graph, op by op, without a run.

  batch [8, 3] ──► matmul ──► cross entropy [8] ──► mean ──► loss
      Rows           Rows           Rows            Total

Several towers equal one whatever is computed of an example alone, and of means over the batch. They
differ where a value is mixed: a tower has only its own examples to mix.
"""

from typing import Collection, Dict, List, Optional, Sequence, Set

from tensorflow_v1 import Operation, Tensor
from towers.coupling.gradients import follow_gradient, seeded
from towers.coupling.lengths import follow_length
from towers.coupling.rules import RULES
from towers.coupling.values import Free, Length, Mixed, Operands, Rows, Source, Total, Value
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
  if not targets:
    return []
  values: Dict[Tensor, Value] = {tensor: Rows(0) for tensor in batch}
  values.update((tensor, Free()) for tensor in free)
  dependents = _find_dependents(batch)
  needed = find_needed([tensor.op for tensor in targets], within=dependents)
  needed |= find_needed([op._original_op for op in needed if op._original_op], within=dependents)

  def find(tensor):
    return values.get(tensor, None if tensor.op in dependents else Free())

  # In the order in which they were made, since a gradient may not read the op that it is of.
  for op in sort_by_inputs(dict.fromkeys(sorted(needed, key=lambda op: op._id))):
    source = op._original_op
    operands = Operands(op, [find(tensor) for tensor in op.inputs], num_rows, source and Source(
        source, [find(tensor) for tensor in source.inputs],
        find(source.outputs[0]) if source.outputs else None))
    for tensor, value in zip(op.outputs, _find_outputs(operands)):
      values.setdefault(tensor, value)
  return [values.get(tensor, Free()) for tensor in targets]


def _find_dependents(batch) -> Set[Operation]:
  """Returns what depends on the batch, with the gradients of it. Of a static number of rows some
  of these are constants."""
  dependents = find_dependents([tensor.op for tensor in batch], by_control=False)
  while batch:
    # A walk from all at once: one from each would be as slow as the graph is deep.
    found = [op for op in batch[0].graph.get_operations()
             if op._original_op in dependents and op not in dependents]
    if not found:
      break
    dependents |= find_dependents(found, by_control=False)
  return dependents


def _find_outputs(operands: Operands) -> List[Value]:
  """Returns the value of each output."""
  operands = seeded(operands)
  op, inputs = operands.op, operands.values
  known = follow_gradient(operands)
  if known is not None:
    return [known] * len(op.outputs)
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
  lengths = follow_length(operands)
  if lengths:
    return lengths
  rule = RULES.get(op.type)
  if op.type in _SHAPED_BY_THE_SECOND:
    inputs = [inputs[0], Free()]  # The output's static shape tells as much.
  if rule is None or None in inputs or Length() in inputs:
    return [None] * len(op.outputs)
  result = rule(operands._replace(values=inputs))
  return result if isinstance(result, list) else [result] * len(op.outputs)
