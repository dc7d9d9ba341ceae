"""A tower: one copy of the model on a device, as what it computes."""

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Union

from towers.base.short_repr import short_repr
from towers.graph.walk import find_needed, list_ops
from towers.input.batch import Batch
from towers.tensorflow_v1 import Gradient, Operation, Tensor, Variable
from towers.tower.global_batch import GlobalBatch
from towers.whole import Whole


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Tower:
  """A tower: its forward pass and, if it trains, the gradients of its loss.

  Attributes:
    device: where it stands.
    scope: its name scope, with a slash at the end.
    batch: that it computes on.
    global_batch: that of all towers of this worker. With several micro-batches in a step, gradients
      are divided by their number as well, so that with a loss scale they are no larger than those
      of the whole step's batch.
    loss: its share of the global batch's mean loss, a scalar: the towers' losses sum to it. With
      weights, of the mean of weight times loss over the examples.
    sums: scalars, each summed over the tower's examples: 'loss' and every metric.
    weights: for those of `sums` that have weights the sum of these, a scalar.
    losses: the names of several losses, whose means add up to the loss; empty for one loss.
    wholes: metrics of the whole split, by name, with the tower's rows.
    update_ops: what its model added to UPDATE_OPS.
    penalties: what its model added to REGULARIZATION_LOSSES.
    call_in_scratch: calls its model in a graph of its own, see `scratch_graph.call_in_scratch`.
    variables: trainable: the tower's own replicas, or those of all towers.
    gradients: for each of them the gradient of the tower's loss: a tensor, `tf.IndexedSlices` or
      None.
    penalty_gradients: of a first tower with penalties, for each variable their gradient, a tensor
      or None, which is added once for all towers; else empty.
    recomputed: the activations that the backward pass computes again, `Recomputed`, or None.
  """
  device: str
  scope: str
  batch: Batch
  global_batch: GlobalBatch
  loss: Tensor
  sums: Dict[str, Tensor]
  weights: Dict[str, Tensor]
  losses: Sequence[str]
  wholes: Mapping[str, Whole]
  update_ops: List[Any]
  penalties: List[Tensor]
  call_in_scratch: Callable[..., Any]
  variables: Sequence[Variable] = ()
  gradients: Sequence[Optional[Gradient]] = ()
  penalty_gradients: Sequence[Optional[Gradient]] = ()
  recomputed: Any = None

  __repr__ = short_repr

  def find_needed(self) -> Set[Operation]:
    """Returns the ops of what it computes; a model may make others, as of a `tf.train.Saver`."""
    rows = [row for whole in self.wholes.values() for row in whole.rows]
    return find_needed([*list_ops([self.loss, *self.sums.values(), *rows, *self.update_ops]),
                        *(penalty.op for penalty in self.penalties)])

  @property
  def num_examples(self) -> Union[int, Tensor]:
    """Its examples, an int or a scalar int32 tensor."""
    return self.batch.num_examples
