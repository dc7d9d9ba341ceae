"""Gradients: the sum of the towers' shares.

  variables that all towers share   the shares meet on the variable's device, and are added up there
  replicas on every tower           the shares stay there; `average` adds them up for every tower

Every tower has divided by the number of examples in the global batch already (`differentiate`), so
that nothing is left to divide or weight here. What losses with weights still need is in `weights`.
"""

import dataclasses
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

from towers.base.short_repr import short_repr
from towers.graph.ordered_sum import add_all
from towers.placement.collectives import AllReduce
from towers.placement.host import HOST
from towers.placement.packing import pack, plan_alike, unpack
from towers.placement.replicas import rounding_alike
from towers.reduce.rows import RowSlots, merge_rows
from towers.staging import run_beside
from towers.tensorflow_v1 import Gradient, Operation, Tensor, Variable, tf
from towers.tower.precision import LossScale
from towers.tower.tower import Tower


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ReducedGradients:
  """The loss and gradients of a step: at first what the towers of a worker sum to, in the end the
  mean over the global batch of all workers.

  Attributes:
    towers, num_examples: that they are over, the latter an int or an integer scalar.
    loss: the mean loss over the examples, a scalar. A run that needs it, as the update does, also
      puts the next training batch of every tower. Until `divide_by_weights`, losses with weights
      and their gradients are means of weight times loss.
    gradients: (gradient, variable) of all variables that the loss depends on.
    partly_without_gradient: the variables that the loss of some towers does not depend on, where
      the gradient is 0.
    metrics: a float32 vector on the host, to fetch with the loss: what the towers have summed over
      the examples of the step: the loss first, then as `Tower.sums` of the other metrics and
      `Tower.weights`, and last the number of examples, unless that is an int; None where the model
      returns a loss alone.
    begins_with_loss: whether `metrics` begins with `loss`, so that one fetch brings both.
    mean_weight: the mean over the examples of their weights, a float32 scalar; None without.
    replicas: for each later tower the same gradients on its device, with its replicas, and with the
      variable itself where that has none.
    add_op: with accumulation, the op for every micro-batch of a step but the last.
    clear: with accumulation, builds the op that ends a step.
    all_reduce: of the gradients of all replicas and workers, or None.
    row_slots: in which several workers share the rows of each sparse gradient.
    votes: of several workers, see `average`; or None.
    loss_scale: that the gradients have been divided by, or None.
  """
  towers: Sequence[Tower]
  num_examples: Union[int, Tensor]
  loss: Tensor
  gradients: List[Tuple[Gradient, Variable]]
  partly_without_gradient: Sequence[Variable] = ()
  metrics: Optional[Tensor] = None
  begins_with_loss: bool = False
  mean_weight: Optional[Tensor] = None
  replicas: Sequence[List[Tuple[Gradient, Variable]]] = ()
  add_op: Optional[Operation] = None
  clear: Optional[Callable[[], Operation]] = None
  all_reduce: Optional[AllReduce] = None
  row_slots: Sequence[RowSlots] = ()
  votes: Any = None
  loss_scale: Optional[LossScale] = None

  __repr__ = short_repr

  def list_pairs(self, indices: Sequence[int]) -> List[Tuple[Gradient, Variable]]:
    """Returns (gradient, variable) of those at the indices, each variable and replica once.

    One that was made before the program has no replicas, and is among those of every tower.
    """
    firsts = [self.gradients[index] for index in indices]
    return firsts + [
        replica[index] for replica in self.replicas for index, (_, first) in zip(indices, firsts)
        if replica[index][1] is not first]

  def map_gradients(self, change: Callable[[Gradient, Variable], Gradient]) -> 'ReducedGradients':
    """Returns the same with `change(gradient, variable)`, on the variable's device, of each."""
    def change_all(gradients):
      changed = []
      for gradient, variable in gradients:
        with tf.device(variable.device):
          changed.append((change(gradient, variable), variable))
      return changed

    # What an all-reduce has summed is on several devices, and must stay the same to the bit.
    with rounding_alike(self.all_reduce is not None):
      return dataclasses.replace(self, gradients=change_all(self.gradients),
                                 replicas=[change_all(replica) for replica in self.replicas])


def sum_towers(towers: Sequence[Tower]) -> ReducedGradients:
  """Sums the losses and gradients of this worker's towers; sparse gradients stay sparse.

  Dense gradients of replicas are left for `average`.
  """
  variables, global_batch = towers[0].variables, towers[0].global_batch
  shares = [_add_penalties(tower) for tower in towers]
  by_variable = list(zip(*shares))
  # Of what the loss of any tower depends on.
  known = [index for index, shares in enumerate(by_variable)
           if any(share is not None for share in shares)]
  partly = [index for index in known if any(share is None for share in by_variable[index])]

  with tf.name_scope('average'):
    if towers[-1].variables == variables:
      sums = [_sum_shared([by_variable[index] for index in known],
                          [variables[index] for index in known], towers)]
    else:
      sums = _find_shares(towers, shares, known)
    gradients, *replicas = [
        [(total, tower.variables[index]) for index, total in zip(known, of_tower)]
        for tower, of_tower in zip(towers, sums)]

    losses = []
    for tower in towers:
      with tf.device(tower.device):
        put_op, joined = tower.batch.put_op, _join_metrics(tower)
        # XLA compiles no merge: metrics that wait for one would be a program of their own.
        own = tower.loss if len(towers) == 1 else joined
        own = own if put_op is None else run_beside(own, put_op)
        losses.append(joined if joined.shape.rank and len(towers) == 1 else own)
    with tf.device(HOST):
      loss, metrics = add_all(losses), None
      if loss.shape.rank:
        # That of the only tower stays on its device, for the guard there. Of several, one op,
        # where an index takes four.
        loss, metrics = own if len(towers) == 1 else tf.unstack(loss)[0], loss
      mean_weight = None
      if 'loss' in towers[0].weights:
        mean_weight = add_all([tower.weights['loss'] for tower in towers]) / global_batch.divisor

  return ReducedGradients(towers, global_batch.num_examples, loss, gradients,
                         partly_without_gradient=[variables[index] for index in partly],
                         metrics=metrics, begins_with_loss=metrics is not None,
                         mean_weight=mean_weight, replicas=replicas)


def _add_penalties(tower):
  """Returns a tower's gradients, with those of its penalties.

  Where the loss has weights, they are left for `divide_by_weights`, and a dense zero is in their
  place.
  """
  if not tower.penalty_gradients:
    return tower.gradients
  with tf.device(tower.device), tf.name_scope(tower.scope):
    if 'loss' in tower.weights:
      return [gradient if penalty is None else tf.convert_to_tensor(
          tf.zeros_like(tf.convert_to_tensor(penalty)) if gradient is None else gradient)
              for gradient, penalty in zip(tower.gradients, tower.penalty_gradients)]
    return [gradient if penalty is None else
            add_all([part for part in (gradient, penalty) if part is not None])
            for gradient, penalty in zip(tower.gradients, tower.penalty_gradients)]


def _join_metrics(tower):
  """Returns the tower's loss, in one vector with what it has summed for metrics, if it has any."""
  if list(tower.sums) == ['loss'] and not tower.weights:
    return tower.loss
  values = [tower.loss, *[tower.sums[name] for name in tower.sums if name != 'loss'],
            *tower.weights.values()]
  if not isinstance(tower.num_examples, int):
    values.append(tf.cast(tower.num_examples, tf.float32))
  return tf.stack(values)


def unscale_gradients(reduced: ReducedGradients, loss_scale: LossScale) -> ReducedGradients:
  """Divides the averaged gradients by the factor of the towers' losses."""
  with tf.name_scope('unscale'):
    unscaled = reduced.map_gradients(
        lambda gradient, _: scale_gradient(gradient, loss_scale.inverse))
    return dataclasses.replace(unscaled, loss_scale=loss_scale)


def scale_gradient(gradient: Gradient, scale: Tensor) -> Gradient:
  """Returns a gradient times a scalar; sparse ones stay sparse."""
  if isinstance(gradient, tf.IndexedSlices):
    return tf.IndexedSlices(gradient.values * scale, gradient.indices, gradient.dense_shape)
  return gradient * scale


def _sum_shared(by_variable, variables, towers):
  """Returns for each variable the sum of the towers' shares of its gradient, on its device."""
  sums: List[Any] = [None] * len(variables)
  dense: List[Any] = [shares[0] if all(isinstance(share, tf.Tensor) for share in shares) else None
           for shares in by_variable]
  devices = [variable.device for variable in variables]
  for indices in plan_alike(dense, devices) if len(towers) > 1 else ():
    packs = []
    for tower, shares in zip(towers, zip(*[by_variable[index] for index in indices])):
      with tf.device(tower.device):
        packs.append(pack(shares))
    with tf.device(devices[indices[0]]):
      totals = unpack(add_all(packs), [dense[index].shape for index in indices])
    for index, total in zip(indices, totals):
      sums[index] = total
  for index, (shares, variable) in enumerate(zip(by_variable, variables)):
    if sums[index] is None:
      with tf.device(variable.device):
        # A tower whose loss does not depend on a variable has a gradient of zero.
        sums[index] = _sum_shares([share for share in shares if share is not None])
  return sums


def _find_shares(towers, gradients, known):
  """Returns each tower's shares of its gradients at the indices `known`, dense ones not yet summed.

  The rows of sparse gradients are few: the first tower gathers all, adds up those with the same
  index and sends them on, so that every tower gets the same bits.
  """
  shares: List[List[Gradient]] = [[] for _ in towers]
  for index in known:
    found = [of_tower[index] for of_tower in gradients if of_tower[index] is not None]
    if all(isinstance(share, tf.IndexedSlices) for share in found):
      with tf.device(towers[0].device):
        rows = merge_rows(_sum_shares(found))
      for of_tower in shares:
        of_tower.append(rows)
    else:
      for tower, own, of_tower in zip(towers, gradients, shares):
        with tf.device(tower.device):
          of_tower.append(make_dense(own[index], tower.variables[index]))
  return shares


def make_dense(gradient: Optional[Gradient], variable: Variable) -> Tensor:
  """Returns a gradient as a tensor of the variable's shape, zeros for None."""
  if gradient is None:
    return tf.zeros(variable.shape, variable.dtype.base_dtype)
  gradient = tf.convert_to_tensor(gradient)
  gradient.set_shape(variable.shape)
  return gradient


def _sum_shares(shares):
  if len(shares) > 1 and all(isinstance(share, tf.IndexedSlices) for share in shares):
    # The optimizer adds up rows with the same index. A sum here would be dense.
    return tf.IndexedSlices(tf.concat([share.values for share in shares], 0),
                            tf.concat([share.indices for share in shares], 0),
                            shares[0].dense_shape)
  return add_all(shares)
