"""Batch normalisation over towers: which batch its moments are those of.

  first   every tower normalises by its own batch; tower 0's moments move the averages
  mean    every tower normalises by its own batch; the mean of their moments moves the averages
  sync    every tower normalises by the global batch, whose moments move the averages:
          N towers are one tower

For `sync`, what the layers of all towers sum over their batches is added up in the forward pass,
and so are the gradients of these sums in the backward pass. The towers stand already when they are
joined: every layer left an identity op in its graph (see `towers.tower.batch_norm_layer`), and here
its input becomes the sum over all towers.

With several workers, `mean` and `sync` are over the towers of all. `first` is each worker's own
first tower; before anything is measured the chief's averages become those of all (see `workers`).
"""

from typing import Any, Dict, List, Sequence

from tensorflow_v1 import tf
from towers.base.usage_error import UsageError
from towers.graph.ordered_sum import add_all
from towers.graph.writes import find_step_writes
from towers.placement.workers import ALONE, Workers, sum_over_workers
from towers.tower.batch_norm_layer import BATCH_MOMENTS, BATCH_SUM_GRADIENTS, BATCH_SUMS

BATCH_NORMS = ('first', 'mean', 'sync')


def check_kind(kind: str) -> None:
  """Raises UsageError for a kind that is none of `BATCH_NORMS`."""
  if kind not in BATCH_NORMS:
    raise UsageError(f"batch_norm is {kind!r}: choose one of {', '.join(BATCH_NORMS)}.")


def check_batch_norms(kind: str, *, update_ops: Sequence[Any], variables: Sequence[Any], scope: str,
                      loss: Any) -> None:
  """Refuses batch normalisation that would silently not do what it should.

  Args:
    kind: one of `BATCH_NORMS`.
    update_ops: what tower 0 added to UPDATE_OPS.
    variables: that it made.
    scope: its name scope.
    loss: its loss, which averages that are updated in place wait for.

  Raises:
    UsageError: an unknown kind; moving averages that nothing updates; or batch normalisation over
      towers asked for layers that do not take part.
  """
  check_kind(kind)
  averages = [variable.op.name for variable in variables if 'moving_' in variable.op.name.split(
      '/')[-1]]
  if averages and not update_ops and not find_step_writes([loss]).early:
    raise UsageError(f'Nothing updates {averages[0]} and {len(averages) - 1} more moving averages, '
                     'so that validation would measure with what they started from: add their '
                     'updates to tf.GraphKeys.UPDATE_OPS in the model (for a Keras layer its '
                     '`updates`), or use towers.tower.batch_norm_layer.')
  if kind != 'first' and (update_ops or averages) and not _match(BATCH_MOMENTS, [scope]):
    raise UsageError(f'batch_norm={kind} needs layers that exchange what they sum, as '
                     'towers.tower.batch_norm_layer does; the model\'s own, which update '
                     f'{averages[0] if averages else update_ops[0].name}, do not: use '
                     'batch_norm=first, or towers.tower.batch_norm_layer.')


def joins_moments(kind: str, counts: Sequence[Any]) -> bool:
  """Returns whether the moments of later towers may move the averages, and not those of the first
  alone.

  Only where sizes are uneven may the first tower be without examples; then the next one that has
  some stands in.

  Args:
    kind: one of `BATCH_NORMS`.
    counts: as for `join_batch_norms`.
  """
  return kind == 'mean' or kind == 'first' and not all(isinstance(count, int) for count in counts)


def join_batch_norms(kind: str, *, scopes: Sequence[str], devices: Sequence[str],
                     counts: Sequence[Any], workers: Workers = ALONE) -> None:
  """Joins the batch normalisation of all towers, once they and their gradients are built.

  Args:
    kind: one of `BATCH_NORMS`.
    scopes: the towers' name scopes, each with a slash at its end.
    devices: the towers' devices.
    counts: the towers' numbers of examples, ints or scalar int32 tensors. A tower of none holds a
      row that only fills its batch, and has no part.
    workers: whose towers are joined, these being one's.
  """
  if len(scopes) * workers.num_workers == 1:
    return
  if kind == 'sync':
    # A gradient of no examples may be anything, so it is left out as well.
    weights = [tf.minimum(count, 1) for count in counts]
    # Gradients are those of a worker's mean loss, and are weighted by its examples only in the end.
    is_even = workers.num_workers == 1 or all(isinstance(count, int) for count in counts)
    examples = None if is_even else tf.cast(tf.maximum(tf.reduce_sum(tf.stack(counts)), 1),
                                            tf.float32)
    for collection, scale in ((BATCH_SUMS, None), (BATCH_SUM_GRADIENTS, examples)):
      for identities in _match(collection, scopes):
        total = _add_up(identities, weights, devices[0], workers, scale)
        for identity in identities:
          identity.op._update_input(0, total)
  elif joins_moments(kind, counts):
    with tf.device(devices[0]), tf.name_scope('weigh_towers'):
      examples = tf.cast(tf.stack(counts), tf.float32)
      if kind == 'mean':
        weights = examples / tf.maximum(sum_over_workers(tf.reduce_sum(examples), workers), 1.0)
      else:
        weights, workers = tf.one_hot(tf.argmax(tf.minimum(examples, 1.0)), len(counts)), ALONE
      weights = tf.unstack(weights)
    for identities in _match(BATCH_MOMENTS, scopes):
      identities[0].op._update_input(0, _add_up(identities, weights, devices[0], workers))


def _match(collection, scopes) -> List[List[Any]]:
  """Returns, layer by layer, the identities of all towers."""
  by_layer: Dict[str, List[Any]] = {}
  for identity in tf.get_collection(collection):
    for scope in scopes:
      if identity.op.name.startswith(scope):
        by_layer.setdefault(identity.op.name[len(scope):], []).append(identity)
  return list(by_layer.values())


def _add_up(identities, weights, device, workers, scale=None):
  """Returns the weighted sum of what goes into identities, those of all workers, without those
  whose weight is 0.

  With a `scale` each worker's part is multiplied by its own, and the sum divided by that.
  """
  with tf.device(device), tf.name_scope('join_batch_norm'):
    parts = []
    for identity, weight in zip(identities, weights):
      part = identity.op.inputs[0]
      weight = tf.cast(weight, part.dtype)
      # 0 times a number that is none is none.
      parts.append(weight * tf.where(weight > 0, part, tf.zeros_like(part)))
    if scale is None:
      return sum_over_workers(add_all(parts), workers)
    return sum_over_workers(add_all(parts) * scale, workers) / scale
