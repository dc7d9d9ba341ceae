"""Rewiring: ops of a graph that take another tensor, or wait for another op."""

from typing import Optional, Set

from towers.tensorflow_v1.types import Operation, Tensor


def replace_tensor(tensor: Tensor, other: Tensor, ops: Optional[Set[Operation]] = None) -> None:
  """Gives `other` to all ops that take a tensor, or to those of them in `ops`."""
  for op in tensor.consumers() if ops is None else ops.intersection(tensor.consumers()):
    for index, taken in enumerate(op.inputs):
      if taken is tensor:
        op._update_input(index, other)


def stop_waiting(op: Operation, source: Operation, *others: Operation) -> None:
  """Lets an op wait no longer for `source`, but for `others` in its place."""
  sources = [each for each in op.control_inputs if each is not source]
  op._remove_all_control_inputs()
  op._add_control_inputs([*sources, *others])
