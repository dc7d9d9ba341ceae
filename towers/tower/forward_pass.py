"""The forward pass of a tower: its losses and metrics, summed over its examples."""

import functools
from typing import Any, Dict, Optional

from towers.base.usage_error import UsageError
from towers.graph.ordered_sum import keep_order
from towers.input.batch import Batch
from towers.tensorflow_v1 import Variable, tf
from towers.tower.all_towers import joining
from towers.tower.apart import check_apart, check_penalties
from towers.tower.batch_norm.sync_other_layers import check_joined
from towers.tower.drawing.draws import tie_draws, warn_of_draws, warn_of_left
from towers.tower.losses import sum_returned
from towers.tower.model_call import ModelCall
from towers.tower.recording import Recording, record_tower
from towers.tower.scratch_graph import call_in_scratch
from towers.tower.tower import Tower


def build_forward(call: ModelCall, batch: Batch, recording: Recording, *, index: int,
                  instead: Optional[Dict[str, Variable]] = None) -> Tower:
  """Builds the forward pass of a tower, whose recording has begun.

  Its model reads the variables `instead` of the store's, see `ModelCall.compute`.
  """
  store = call.store
  with tf.device(recording.place), tf.name_scope(f'tower_{index}') as scope, joining(
      batch, num_towers=call.global_batch.num_towers,
      joins_norms=call.global_batch.joins_norms, scope=scope):
    sums = sum_returned(
        call.compute(batch.tensors, index=index, scope=scope, instead=instead), batch)
    loss = sums.values['loss'] / call.global_batch.divisor
  update_ops, penalties = [
      tf.get_collection(key)[recording.sizes.get(key, 0):]
      for key in (tf.GraphKeys.UPDATE_OPS, tf.GraphKeys.REGULARIZATION_LOSSES)]
  tower = Tower(
      recording.device, scope, batch, call.global_batch, loss, sums.values, sums.weights,
      sums.losses, sums.wholes, update_ops, penalties,
      functools.partial(call_in_scratch, call, batch, scope))

  ops = [op for op in recording.list_ops() if op not in store.initial_ops]
  keep_order(ops)
  # A branch puts the switch of a variable's value beside the op that reads it, often on the host,
  # from which the value goes on to the tower. A clone gets the value itself, and would send it back
  # to be switched.
  for op in ops:
    if op.type == 'Switch' and op.inputs[0].op.type == 'ReadVariableOp':
      recording.take(op)
  recording.take_stacks()
  _check(tower, ops, index, store)
  if call.global_batch.joins_norms and index == 0:
    check_joined(tower)
  left = tie_draws(ops, call.draws, tower=store.first_tower + index, scope=scope, batch=batch,
                   call_in_scratch=tower.call_in_scratch)
  warn_of_draws(call.draws, tower.find_needed)
  if index == 0:
    warn_of_left(left)
  return tower


def build_outputs(call: ModelCall, batch: Batch, device: str, *, index: int) -> Any:
  """Returns what a function that is no model returns in a tower, its draws tied as a model's."""
  recording = record_tower(device)
  with tf.device(recording.place), tf.name_scope(f'tower_{index}') as scope:
    returned = call.compute(batch.tensors, index=index, scope=scope)
  recording.take_stacks()
  ops = [op for op in recording.list_ops() if op not in call.store.initial_ops]
  tie_draws(ops, call.draws, tower=index, scope=scope, batch=batch,
            call_in_scratch=functools.partial(call_in_scratch, call, batch, scope))
  return returned


def _check(tower, ops, index, store):
  accumulate = tower.global_batch.num_micro_batches
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
