"""Walks over a graph: the ops that an op needs, and those that need it."""

from typing import Container, Iterable, Optional, Set

from tensorflow_v1 import Operation


def find_needed(roots: Iterable[Operation],
                within: Optional[Container[Operation]] = None,
                without: Container[Operation] = ()) -> Set[Operation]:
  """Returns the roots and all ops that they need, by inputs and control inputs.

  Args:
    roots: where to begin.
    within: the only ops to walk through, or None for all. To ask whether a root needs an op, the
      op's dependents are enough, and spare a walk through the rest of a deep net.
    without: ops that are left out, with all that is needed through them alone.
  """
  needed: Set[Operation] = set()
  pending = list(roots)
  while pending:
    op = pending.pop()
    if op not in needed and op not in without and (within is None or op in within):
      needed.add(op)
      pending.extend(tensor.op for tensor in op.inputs)
      pending.extend(op.control_inputs)
  return needed


def find_dependents(ops: Iterable[Operation], by_control: bool = True,
                    without: Container[Operation] = ()) -> Set[Operation]:
  """Returns `ops` and all ops that need any of them.

  Args:
    ops: where to begin.
    by_control: whether to follow control inputs too, not inputs alone.
    without: ops that are left out, with all that needs `ops` through them alone.
  """
  dependents: Set[Operation] = set()
  pending = list(ops)
  while pending:
    op = pending.pop()
    if op not in dependents and op not in without:
      dependents.add(op)
      for tensor in op.outputs:
        pending.extend(tensor.consumers())
      if by_control:
        pending.extend(op._control_outputs)
  return dependents
