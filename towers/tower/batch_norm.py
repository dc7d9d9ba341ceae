"""Batch normalisation over towers: the batch whose moments it uses.

  first   every tower normalises by its own batch; tower 0's moments move the averages
  mean    every tower normalises by its own batch; the mean of their moments moves the averages
  sync    every tower normalises by the global batch, whose moments move the averages:
          N towers are one tower

With `sync` the layers' sums over their batches are added up over all towers in the forward pass,
and the gradients of these sums in the backward pass. The towers are built before they are joined:
every layer has left an identity op in the graph (see `towers.tower.batch_norm_layer`), whose input
is replaced here by the sum over all towers.

With several workers, `mean` and `sync` span the towers of all workers. `first` is each worker's own
first tower; before each validation the chief broadcasts its averages (see `workers`).
"""

from typing import Any, Dict, List, Sequence, Union

from tensorflow_v1 import Operation, Tensor, Variable, tf
from towers.base.usage_error import UsageError
from towers.graph.ordered_sum import add_all
from towers.graph.walk import find_needed
from towers.graph.writes import find_step_writes
from towers.placement.host import HOST
from towers.placement.workers import ALONE, Workers, sum_over_workers
from towers.tower.batch_norm_layer import BATCH_MOMENTS, BATCH_SUM_GRADIENTS, BATCH_SUMS

BATCH_NORMS = ('first', 'mean', 'sync')
# Ops that take one of several values.
_CHOICES = ('Switch', 'If', 'StatelessIf', 'Select', 'SelectV2')


def check_kind(kind: str) -> None:
  """Raises UsageError for a kind that is not one of `BATCH_NORMS`."""
  if kind not in BATCH_NORMS:
    raise UsageError(f"batch_norm is {kind!r}: choose one of {', '.join(BATCH_NORMS)}.")


def check_batch_norms(kind: str, *, update_ops: Sequence[Any], variables: Sequence[Variable],
                      scope: str, loss: Tensor) -> None:
  """Refuses batch normalisation that would silently have no effect.

  Args:
    kind: one of `BATCH_NORMS`.
    update_ops: what tower 0 added to UPDATE_OPS.
    variables: of tower 0.
    scope: the name scope of tower 0.
    loss: of tower 0; it waits for averages that are updated in place.

  Raises:
    UsageError: an unknown kind, moving averages that nothing updates, or batch normalisation over
      towers with layers that do not take part.
  """
  check_kind(kind)
  moving = list(filter(is_moving_average, variables))
  frozen = _find_frozen(moving, loss) if moving and not update_ops else []
  averages = [variable.op.name for variable in moving if variable not in frozen]
  if averages and not update_ops and not find_step_writes([loss]).early:
    raise UsageError(f'Nothing updates {averages[0]} and {len(averages) - 1} more moving averages, '
                     'so that validation would use their initial values: add their updates to '
                     'tf.GraphKeys.UPDATE_OPS in the model (for a Keras layer its `updates`), or '
                     'use towers.tower.batch_norm_layer.')
  if kind != 'first' and (update_ops or averages) and not _match(BATCH_MOMENTS, [scope]):
    raise UsageError(f'batch_norm={kind} needs layers that share their sums between towers, as '
                     'towers.tower.batch_norm_layer does; the model\'s own, which update '
                     f'{averages[0] if averages else update_ops[0].name}, do not: use '
                     'batch_norm=first, or towers.tower.batch_norm_layer.')


def is_moving_average(variable: Union[Variable, Operation]) -> bool:
  """Returns whether a variable is a moment that batch normalisation keeps, by its name."""
  return 'moving_' in getattr(variable, 'op', variable).name.split('/')[-1]


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


def joins_moments(kind: str, may_be_empty: bool) -> bool:
  """Returns whether the moments of later towers, not only of the first, may move the averages.

  With `first` they do where the first tower has no examples; then the next tower with examples
  stands in.

  Args:
    kind: one of `BATCH_NORMS`.
    may_be_empty: as for `join_batch_norms`.
  """
  return kind == 'mean' or kind == 'first' and may_be_empty


def join_batch_norms(kind: str, *, scopes: Sequence[str], devices: Sequence[str],
                     counts: Sequence[Union[int, Tensor]], may_be_empty: bool,
                     workers: Workers = ALONE) -> None:
  """Joins the batch normalisation of all towers, once they and their gradients are built.

  Args:
    kind: one of `BATCH_NORMS`.
    scopes: the towers' name scopes, each with a slash at its end.
    devices: the towers' devices.
    counts: the towers' numbers of examples, ints or scalar int32 tensors. A tower with 0 has a row
      that only fills its batch, and takes no part.
    may_be_empty: whether the number of any tower can be 0.
    workers: whose towers are joined; these towers are one worker's.
  """
  if len(scopes) * workers.num_workers == 1:
    return
  if kind == 'sync':
    _join_sums(scopes, devices, counts, workers)
  elif joins_moments(kind, may_be_empty):
    _join_moments(kind, scopes, devices, counts, workers)


def _join_sums(scopes, devices, counts, workers):
  """Replaces the sums of each layer, and their gradients, by those over all towers."""
  # The gradient of no examples may be NaN, so it is left out like the sums.
  with tf.device(HOST):
    weights = [tf.minimum(count, 1) for count in counts]
  weights = _compare(weights, devices[0])
  # Gradients are of a worker's mean loss; only the all-reduce weights them by its examples.
  is_even = workers.num_workers == 1 or all(isinstance(count, int) for count in counts)
  examples = None
  if not is_even:
    examples = tf.cast(tf.maximum(tf.reduce_sum(tf.stack(counts)), 1), tf.float32)
  for collection, scale in ((BATCH_SUMS, None), (BATCH_SUM_GRADIENTS, examples)):
    for identities in _match(collection, scopes):
      total = _add_up(identities, weights, devices[0], workers, scale)
      for identity in identities:
        identity.op._update_input(0, total)


def _join_moments(kind, scopes, devices, counts, workers):
  """Replaces the first tower's moments by the mean over all, or by the first that has examples."""
  with tf.device(devices[0]), tf.name_scope('weigh_towers'):
    examples = tf.cast(tf.stack(counts), tf.float32)
    if kind == 'mean':
      weights = examples / tf.maximum(sum_over_workers(tf.reduce_sum(examples), workers), 1.0)
    else:
      weights, workers = tf.one_hot(tf.argmax(tf.minimum(examples, 1.0)), len(counts)), ALONE
    weights = tf.unstack(weights)
  weights = _compare(weights, devices[0])
  for identities in _match(BATCH_MOMENTS, scopes):
    identities[0].op._update_input(0, _add_up(identities, weights, devices[0], workers))


def _match(collection, scopes) -> List[List[Any]]:
  """Returns the identities of all towers, layer by layer."""
  by_layer: Dict[str, List[Any]] = {}
  for identity in tf.get_collection(collection):
    for scope in scopes:
      if identity.op.name.startswith(scope):
        by_layer.setdefault(identity.op.name[len(scope):], []).append(identity)
  return list(by_layer.values())


def _compare(weights, device):
  """Returns each tower's weight as a float, and whether it takes part: once for all layers."""
  with tf.device(device), tf.name_scope('weigh_towers'):
    return [(tf.cast(weight, tf.float32), weight > 0) for weight in weights]


def _add_up(identities, weights, device, workers, scale=None):
  """Returns the weighted sum of the identities' inputs over all workers.

  An input of weight 0 is left out, even if it is NaN. With a `scale` each worker multiplies its
  part by its own scale, and divides the sum by it.
  """
  with tf.device(device), tf.name_scope('join_batch_norm'):
    parts = [identity.op.inputs[0] for identity in identities]
    zeros = tf.zeros_like(parts[0])
    # 0 times NaN is NaN.
    parts = [tf.cast(weight, part.dtype) * tf.where(takes_part, part, zeros)
             for part, (weight, takes_part) in zip(parts, weights)]
    if scale is None:
      return sum_over_workers(add_all(parts), workers)
    return sum_over_workers(add_all(parts) * scale, workers) / scale
