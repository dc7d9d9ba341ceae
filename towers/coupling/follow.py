"""Follow: the batch through a graph, op by op, without a run.

  batch [8, 3] ──► matmul ──► cross entropy [8] ──► mean ──► loss
      Rows           Rows           Rows            Total

Several towers equal one whatever is computed of an example alone, and of means over the batch. They
differ where a value is mixed: a tower has only its own examples to mix.
"""

from typing import Collection, Dict, List, Optional, Sequence, Set

from tensorflow_v1 import Operation, Tensor
from towers.coupling.gradients import follow_gradient, seeded
from towers.coupling.groups import follow_grouped
from towers.coupling.lengths import follow_length
from towers.coupling.longest import Longest
from towers.coupling.picks import follow_picked
from towers.coupling.rules import RULES
from towers.coupling.values import (
  Free,
  Grouped,
  Length,
  Mixed,
  Operands,
  Picked,
  Rows,
  Source,
  Total,
  Value,
)
from towers.graph.walk import find_dependents, find_needed, sort_by_inputs

_DIVISIONS = ('RealDiv', 'Div', 'DivNoNan')
_SHAPED_BY_THE_SECOND = ('Reshape', 'TopKV2')
_UNKNOWN = (Length, type(None))


def follow(batch: Sequence[Tensor], targets: Sequence[Tensor], *, num_rows: Optional[int] = None,
           most_rows: Optional[int] = None, free: Collection[Tensor] = ()) -> List[Value]:
  """Returns the value of each target.

  Args:
    batch: each `[n, ...]`.
    targets: to follow.
    num_rows: n, if it is static.
    most_rows: the largest n; None for a batch that is not divided: then rows may be taken by their
      place, and divided by the length of the longest.
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

  longest = Longest(needed)
  # In the order in which they were made, since a gradient may not read the op that it is of.
  for op in sort_by_inputs(dict.fromkeys(sorted(needed, key=lambda op: op._id))):
    source = op._original_op
    operands = Operands(op, [find(tensor) for tensor in op.inputs], num_rows, source and Source(
        source, [find(tensor) for tensor in source.inputs],
        find(source.outputs[0]) if source.outputs else None), most_rows, needed)
    outputs = _find_outputs(operands)
    if most_rows is not None and longest.is_divisor(op) and Mixed not in map(type, outputs):
      outputs = [Mixed(op)]
    for tensor, value in zip(op.outputs, outputs):
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
  kinds = set(map(type, inputs))
  if Mixed in kinds:
    return _spread(op, _find_mixed(operands))
  if op.type in _DIVISIONS and isinstance(inputs[1], Total):
    # Whatever is divided: only one batch as a whole has this divisor.
    return [Mixed(inputs[1].op)]
  if op.type in _SHAPED_BY_THE_SECOND:
    # The output's static shape tells as much.
    inputs, operands = [inputs[0], Free()], operands._replace(values=[inputs[0], Free()])
    kinds = set(map(type, inputs))
  if Grouped in kinds:
    return _spread(op, follow_grouped(operands))
  if Picked in kinds:
    return _spread(op, follow_picked(operands))
  if Length in kinds and kinds <= {Free, Length} or op.type == 'Shape' and None in inputs:
    return follow_length(operands)
  rule = RULES.get(op.type)
  if op.type == 'StridedSlice' and Rows in kinds:
    kinds = {Rows}  # Where each example is cut need not be known.
  if rule is None or not kinds.isdisjoint(_UNKNOWN):
    return [None] * len(op.outputs)
  result = rule(operands)
  return result if isinstance(result, list) else [result] * len(op.outputs)


def _find_mixed(operands):
  """Returns the first mixed input if one of them is no integer, else None."""
  [first, *_] = [value for value in operands.values if isinstance(value, Mixed)]
  is_known = any(isinstance(value, Mixed) and not tensor.dtype.is_integer
                 for tensor, value in zip(operands.op.inputs, operands.values))
  return first if is_known else None


def _spread(op, value):
  """Mixed integers, such as the largest length of a batch, mostly choose a shape."""
  return [None if isinstance(value, Mixed) and tensor.dtype.is_integer else value
          for tensor in op.outputs]
