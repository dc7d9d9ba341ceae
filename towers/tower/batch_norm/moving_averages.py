"""Batch normalisation over towers: the batch whose moments it uses.

  first   every tower normalises by its own batch; tower 0's moments move the averages
  mean    every tower normalises by its own batch; the mean of their moments moves the averages
  sync    every tower normalises by the global batch, whose moments move the averages:
          N towers are one tower, joined by `all_towers.join_sums`

With `sync` the layers' sums over their batches are added up over all towers, as any model's can be
(see `towers.tower.all_towers`). With `mean` the towers are built before their moments are joined:
an identity op of every layer (see `towers.tower.batch_norm.layer`) gets another input here.

With several workers, `mean` and `sync` span the towers of all workers. `first` is each worker's own
first tower; before each validation the chief broadcasts its averages (see `workers`).
"""

from typing import Dict, Iterable, List, Sequence, Set, Union

from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed
from towers.graph.writes import Write, find_step_writes
from towers.placement.workers import ALONE, Workers, sum_over_workers
from towers.tensorflow_v1 import Operation, Tensor, Variable, tf
from towers.tower.all_towers import add_up, match_towers
from towers.tower.batch_norm.layer import BATCH_MOMENTS
from towers.tower.global_batch import GlobalBatch
from towers.tower.tower import Tower

BATCH_NORMS = ('first', 'mean', 'sync')
# Ops that take one of several values.
_CHOICES = ('Switch', 'If', 'StatelessIf', 'Select', 'SelectV2')


def needs_all_moments(kind: str, global_batch: GlobalBatch) -> bool:
  """Returns whether later towers have a part in the moments that move the averages.

  With `first`, where the first tower has no examples, the next with examples stands in.
  """
  may_be_empty = any(batch.may_be_empty for batch in global_batch.batches)
  return global_batch.num_towers > 1 and (kind == 'mean' or kind == 'first' and may_be_empty)


def join_moments(kind: str, towers: Sequence[Tower], workers: Workers) -> None:
  """Replaces the first tower's moments by the mean over all, or by the first that has examples.

  Call it once the towers and their gradients are built.

  Raises:
    UsageError: moving averages that nothing updates, or batch normalisation over towers with
      layers that do not take part.
  """
  _check(kind, towers[0])
  if not needs_all_moments(kind, towers[0].global_batch):
    return
  device = towers[0].device
  with tf.device(device), tf.name_scope('weigh_towers'):
    examples = tf.cast(tf.stack([tower.num_examples for tower in towers]), tf.float32)
    if kind == 'mean':
      weights = examples / tf.maximum(sum_over_workers(tf.reduce_sum(examples), workers), 1.0)
    else:
      weights, workers = tf.one_hot(tf.argmax(tf.minimum(examples, 1.0)), len(towers)), ALONE
    weights = [(weight, weight > 0) for weight in tf.unstack(weights)]
  for identities in match_towers(BATCH_MOMENTS, towers):
    identities[0].op._update_input(0, add_up(identities, weights, device, workers))


def _check(kind, tower):
  """Refuses batch normalisation of the first tower that would silently have no effect."""
  moving = list(filter(is_moving_average, tf.global_variables()))
  frozen = _find_frozen(moving, tower.loss) if moving and not tower.update_ops else []
  averages = [variable.op.name for variable in moving if variable not in frozen]
  if averages and not tower.update_ops and not find_step_writes([tower.loss]).early:
    raise UsageError(f'Nothing updates {averages[0]} and {len(averages) - 1} more moving averages, '
                     'so that validation would use their initial values: add their updates to '
                     'tf.GraphKeys.UPDATE_OPS in the model (of Keras those that '
                     'layer.get_updates_for(inputs) lists), or use '
                     'towers.tower.batch_norm.layer.batch_norm.')
  if kind == 'mean' and averages and not tf.get_collection(BATCH_MOMENTS, tower.scope):
    raise UsageError('batch_norm=mean needs layers that share their moments between towers, as '
                     f'towers.tower.batch_norm.layer.batch_norm does; the model\'s own, with '
                     f'{averages[0]}, do not: use batch_norm=sync or first, or '
                     'towers.tower.batch_norm.layer.batch_norm.')


def is_moving_average(variable: Union[Variable, Operation]) -> bool:
  """Returns whether a variable is a moment that batch normalisation keeps, by its name."""
  return 'moving_' in getattr(variable, 'op', variable).name.split('/')[-1]


def find_moments(writes: Iterable[Write], of_batch: Set[Operation], of_loss: Set[Operation]
                 ) -> List[Tensor]:
  """Returns the moments that both the loss and writes of moving averages take from the batch, but
  for those of fused kernels; `of_batch` depends on it, and the loss on `of_loss`."""
  found: Dict[Tensor, None] = {}
  # From an update back to what the loss takes too it is not far.
  apart, shared = of_batch - of_loss, of_batch & of_loss
  for write in writes:
    averages = list(filter(is_moving_average, write.variables[:1]))
    sizes = [tf.TensorShape(variable.get_attr('shape')).num_elements() for variable in averages]
    updating = find_needed([write.op], within=apart) if averages else ()
    found.update((tensor, None) for op in updating for tensor in op.inputs
                 if tensor.op in shared and tensor.shape.num_elements() in sizes
                 and not tensor.op.type.startswith('FusedBatchNorm')
                 and not shared.isdisjoint(tensor.consumers()))
  return list(found)


def _find_frozen(averages, loss) -> List[Variable]:
  """Returns the moving averages that a layer always normalises by, as with `is_training=False`.

  The loss reads them in no branch, and does not choose between them and the batch's moments.
  """
  needed = find_needed([loss.op])

  def is_plain(op):
    return (op in needed and op.type == 'ReadVariableOp' and op._get_control_flow_context() is None
            and not any(reader.type in _CHOICES for reader in op.outputs[0].consumers()))

  return [variable for variable in averages
          if any(map(is_plain, variable.op.outputs[0].consumers()))]
