"""A tower: one copy of the model on a device, as what it computes."""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from towers.input.batch import Batch
from towers.tensorflow_v1 import Gradient, Tensor, Variable
from towers.tower.global_batch import GlobalBatch
from towers.whole import Whole


class Tower(NamedTuple):
  """One copy of the model.

  Attributes:
    device: where it stands.
    scope: its name scope, with a slash at the end.
    loss: its share of the global batch's mean loss, a scalar: the towers' losses sum to it. With
      weights, of the mean of weight times loss over the examples.
    sums: scalars, each summed over the tower's examples: 'loss' and every metric.
    batch: that it computes on.
    update_ops: what its model added to UPDATE_OPS.
    penalties: what its model added to REGULARIZATION_LOSSES.
    whole: the batch of all towers of this worker. With several micro-batches in a step, gradients
      are divided by their number as well, so that with a loss scale they are no larger than those
      of the whole step's batch.
    gradients: for each trainable variable the gradient of the tower's loss: a tensor,
      `tf.IndexedSlices` or None. Empty for a tower that only validates.
    penalty_gradients: for each trainable variable that of the penalties, a tensor or None, where
      `gradients` do not hold it: of a first tower whose loss has weights, which do not divide
      penalties. Else empty.
    variables: trainable, of these gradients: the tower's own replicas, or those of all towers.
    weights: for those of `sums` that have weights the sum of these, a scalar.
    losses: the names of several losses, whose means add up to the loss; empty for one loss.
    wholes: metrics of the whole split, by name, with the tower's rows.
    recomputed: the activations that the backward pass computes again, `Recomputed`, or None.
    call_beside: returns its model called in another graph, on a batch of any number of rows, or of
      `rows` and `other` sizes: a `Beside`, which is kept until `call_beside.cache_clear()`.
  """
  device: str
  scope: str
  loss: Tensor
  sums: Dict[str, Tensor]
  batch: Batch
  update_ops: List[Any]
  penalties: List[Tensor]
  whole: GlobalBatch
  gradients: List[Optional[Gradient]] = []
  penalty_gradients: List[Optional[Tensor]] = []
  variables: List[Variable] = []
  weights: Dict[str, Tensor] = {}
  losses: Sequence[str] = ()
  wholes: Mapping[str, Whole] = {}
  recomputed: Any = None
  call_beside: Any = None

  @property
  def num_examples(self) -> Union[int, Tensor]:
    """Its examples, an int or a scalar int32 tensor."""
    return self.batch.num_examples
