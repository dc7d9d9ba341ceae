"""The forward pass of a tower: its losses and metrics, summed over its examples."""

import functools
from typing import Callable, Dict, Optional

from tensorflow_v1 import Operation, Variable, tf
from towers.base.usage_error import UsageError
from towers.graph.ordered_sum import keep_order
from towers.input.batch import Batch
from towers.placement.randomness import is_random
from towers.tower.all_towers import joining
from towers.tower.apart import check_apart, check_penalties
from towers.tower.drawing.draws import tie_draws, warn_of_left
from towers.tower.drawing.folds import find_folds
from towers.tower.losses import sum_returned
from towers.tower.model_call import ModelCall, call_beside
from towers.tower.tower import Tower


def build_forward(call: ModelCall, batch: Batch, *, index: int, device: str,
                  place: Optional[Callable[[Operation], str]] = None,
                  instead: Optional[Dict[str, Variable]] = None) -> Tower:
  """Builds a tower without gradients.

  Args:
    call, batch, index: of the tower's model.
    device: where the tower stands.
    place: a device function that gives its ops this device, or None.
    instead: as of `ModelCall.compute`.
  """
  graph, store = tf.get_default_graph(), call.store
  num_ops = len(graph.get_operations())
  collections = [tf.GraphKeys.UPDATE_OPS, tf.GraphKeys.REGULARIZATION_LOSSES]
  sizes = [len(tf.get_collection(key)) for key in collections]

  with tf.device(place or device), tf.name_scope(f'tower_{index}') as scope, joining(
      batch, num_towers=call.whole.num_towers, joins_norms=call.joins_norms):
    sums, weights, losses, wholes = sum_returned(
        call.compute(batch.tensors, index=index, scope=scope, instead=instead), batch)
    share = sums['loss'] / call.whole.divisor
  update_ops, penalties = [tf.get_collection(key)[size:] for key, size in zip(collections, sizes)]
  beside = functools.lru_cache(2)(functools.partial(call_beside, call, batch, scope=scope))
  tower = Tower(device, scope, share, sums, batch, update_ops, penalties, call.whole,
                weights=weights, losses=losses, wholes=wholes, call_beside=beside)

  ops = [op for op in graph.get_operations()[num_ops:] if op not in store.initial_ops]
  keep_order(ops)
  _move_switches(ops, place or (lambda op: device))
  _check(tower, ops, index, store)
  if index == 0 and batch.place is not None:
    call.draws.folds.update(find_folds(
        filter(is_random, ops), batch, scope=scope, call_beside=beside))
  left = tie_draws(ops, call.draws, tower=store.first_tower + index, scope=scope, batch=batch)
  if index == 0:
    warn_of_left(left)
  return tower


def _check(tower, ops, index, store):
  """Refuses what other towers or micro-batches would have a part in."""
  accumulate = tower.whole.num_micro_batches
  if accumulate > 1 and set(tower.losses) & set(tower.weights):
    raise UsageError(f'accumulate={accumulate} takes a step in micro-batches, and the '
                     f'losses {", ".join(tower.losses)} have weights whose sums only the whole '
                     'step knows: return one towers.Weighted, or use accumulate=1.')
  named = {'loss' if name == 'loss' else f'metric {name}':
           [value] + ([tower.weights[name]] if name in tower.weights else [])
           for name, value in tower.sums.items()}
  named.update((f'metric {name}', list(whole.rows)) for name, whole in tower.wholes.items())
  check_apart(named, ops, index=index, others=store.scopes, batch=tower.batch)
  check_penalties(tower.sums['loss'], tower.penalties, ops)


def _move_switches(ops, place):
  """Places the switches of variables' values on the tower's device.

  A branch puts each beside the op that reads the variable, often on the host, from which the value
  goes on to the tower. A clone gets the value itself, and would send it back to be switched.
  """
  for op in ops:
    if op.type == 'Switch' and op.inputs[0].op.type == 'ReadVariableOp':
      op._clear_attr('_class')
      op._set_device('')
      op._set_device(place(op))
