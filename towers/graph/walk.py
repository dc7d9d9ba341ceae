"""Ancestors: the ops that others need, and those that need them, by inputs and control inputs."""

from typing import Any, Container, Iterable, Optional, Set

from tensorflow_v1 import tf


def find_needed(roots: Iterable[tf.Operation], within: Optional[Container[Any]] = None) -> Set[Any]:
  """Returns the ops that must run before the roots have run, these included.

  Args:
    roots: ops.
    within: the only ops to go through, or None for all. Between an op and those that depend on it
      stand no others than such, so that to ask whether a root needs the op takes no walk through
      the rest of a deep net.
  """
  needed: Set[Any] = set()
  pending = list(roots)
  while pending:
    op = pending.pop()
    if op not in needed and (within is None or op in within):
      needed.add(op)
      pending.extend(tensor.op for tensor in op.inputs)
      pending.extend(op.control_inputs)
  return needed


def find_dependents(ops: Iterable[tf.Operation], by_control: bool = True) -> Set[Any]:
  """Returns the ops that wait for any of `ops`, or only those that compute with them; these
  included.
  """
  dependents: Set[Any] = set()
  pending = list(ops)
  while pending:
    op = pending.pop()
    if op not in dependents:
      dependents.add(op)
      for tensor in op.outputs:
        pending.extend(tensor.consumers())
      if by_control:
        pending.extend(op._control_outputs)
  return dependents
