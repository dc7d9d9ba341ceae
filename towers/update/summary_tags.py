"""Tags: what models and optimizers make by `tf.summary`, which a run fetches with the step."""

from typing import Any, Sequence

from towers.graph.walk import find_needed, list_ops
from towers.graph.writes import READERS
from towers.tensorflow_v1 import Tensor


def read_after(step: Sequence[Any], tags: Sequence[Tensor]) -> None:
  """Lets what only tags read of variables, as histograms of weights do, be read after a step.

  Some would else be read before the update, and others after it. The last of the step's results is
  that of its update.
  """
  ends = list_ops(step)
  for op in find_needed([tag.op for tag in tags]) - find_needed(ends):
    context = op._get_control_flow_context()
    if op.type in READERS and (context is None or context.GetWhileContext() is None):
      op._add_control_input(ends[-1])
