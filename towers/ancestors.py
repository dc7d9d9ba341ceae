"""Ancestors: the ops that others need, by inputs and control inputs."""

from typing import Any, Iterable, Set

from tensorflow_v1 import tf


def find_needed(roots: Iterable[tf.Operation]) -> Set[Any]:
  """Returns the ops that must run before the roots have run, these included."""
  needed: Set[Any] = set()
  pending = list(roots)
  while pending:
    op = pending.pop()
    if op not in needed:
      needed.add(op)
      pending.extend(tensor.op for tensor in op.inputs)
      pending.extend(op.control_inputs)
  return needed
