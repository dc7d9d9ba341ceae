"""Batch normalisation over towers: the batch whose moments it uses.

  first   every tower normalises by its own batch; tower 0's moments move the averages
  mean    every tower normalises by its own batch; the mean of their moments moves the averages
  sync    every tower normalises by the global batch, whose moments move the averages:
          N towers are one tower

With `sync` the layers' sums over their batches are added up over all towers, as any model's can be
(see `towers.tower.all_towers`). With `mean` the towers are built before their moments are joined:
every layer has left an identity op in the graph (see `towers.tower.batch_norm_layer`), whose input
is replaced here.

With several workers, `mean` and `sync` span the towers of all workers. `first` is each worker's own
first tower; before each validation the chief broadcasts its averages (see `workers`).
"""

from typing import Any, List, Sequence, Union

from tensorflow_v1 import Operation, Tensor, Variable, tf
from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed
from towers.graph.writes import find_step_writes
from towers.placement.workers import ALONE, Workers, sum_over_workers
from towers.tower.all_towers import add_up, compare_weights, match_towers
from towers.tower.batch_norm_layer import BATCH_MOMENTS

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
  if kind != 'first' and (update_ops or averages) and not match_towers(BATCH_MOMENTS, [scope]):
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
  if joins_moments(kind, may_be_empty):
    _join_moments(kind, scopes, devices, counts, workers)


def _join_moments(kind, scopes, devices, counts, workers):
  """Replaces the first tower's moments by the mean over all, or by the first that has examples."""
  with tf.device(devices[0]), tf.name_scope('weigh_towers'):
    examples = tf.cast(tf.stack(counts), tf.float32)
    if kind == 'mean':
      weights = examples / tf.maximum(sum_over_workers(tf.reduce_sum(examples), workers), 1.0)
    else:
      weights, workers = tf.one_hot(tf.argmax(tf.minimum(examples, 1.0)), len(counts)), ALONE
    weights = tf.unstack(weights)
  weights = compare_weights(weights, devices[0])
  for identities in match_towers(BATCH_MOMENTS, scopes):
    identities[0].op._update_input(0, add_up(identities, weights, devices[0], workers))
