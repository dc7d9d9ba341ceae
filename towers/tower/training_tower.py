"""A tower that trains: the forward pass that the model builds, and its gradients."""

import contextlib
import dataclasses
from typing import Sequence, Union

from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed, list_ops
from towers.placement import variables
from towers.placement.set_values import keep_set_values
from towers.tensorflow_v1 import control_flow_v1, tf
from towers.tower.all_towers import joining
from towers.tower.apart import check_apart
from towers.tower.differentiate import differentiate, differentiate_penalties
from towers.tower.drawing.draws import tie_draws, warn_of_draws, warn_of_left
from towers.tower.forward_pass import build_forward
from towers.tower.losses import sum_returned
from towers.tower.model_call import ModelCall
from towers.tower.recomputing.recompute import copy_activations
from towers.tower.recording import Recording
from towers.tower.tower import Tower


def build_tower(call: ModelCall, index: int, recording: Recording, *, frozen: Sequence[str],
                recompute: Union[str, int]) -> Tower:
  """Returns a tower that the model builds.

  Its recording has begun; `frozen` and `recompute` are as `build_towers` takes them.
  """
  store = call.store
  before = tf.global_variables()

  # All towers start from the values that the first tower's model assigns.
  with contextlib.nullcontext() if index else keep_set_values():
    forward = build_forward(call, call.global_batch.batches[index], recording, index=index)
  if index == 0:
    _check_trained(call)
    variables.adopt_made_before(store, tf.trainable_variables())
    variables.freeze_variables(frozen)
  else:
    variables.check_shared(before, tf.global_variables(), tower=f'Tower {index}')

  trainable = store.list_trainable(index)
  num_forward = len(recording.list_ops())
  gradients = differentiate(forward, trainable, recording, call.precision)
  # The gradient of a function may read variables again.
  variables.redirect_reads(store.made, store.replicas.get(index, {}),
                           recording.list_ops()[num_forward:])
  _tie_gradients(call, forward, gradients, recording, num_forward, index)
  recomputed = copy_activations(recompute, forward, gradients, recording=recording,
                                num_forward=num_forward, warns=index == 0)
  check_apart(dict(gradients=gradients), recording.list_ops(),
              index=index, others=store.scopes, batch=forward.batch)
  penalty_gradients = [] if index else differentiate_penalties(forward, trainable, call.precision)
  return dataclasses.replace(forward, variables=trainable, gradients=gradients,
                             penalty_gradients=penalty_gradients, recomputed=recomputed)


def _tie_gradients(call, forward, gradients, recording, num_forward, index):
  """Ties what gradients draw by themselves, as those of `tf.custom_gradient` may."""
  def differentiate_in_scratch(*args, **named):
    scratch = forward.call_in_scratch(*args, **named)
    [made] = scratch.calls
    with scratch.graph.as_default(), tf.name_scope(made.scope), joining(
        made.batch, num_towers=2), control_flow_v1():
      tf.gradients(sum_returned(made.returned, made.batch).values['loss'],
                   tf.trainable_variables())
    return scratch

  ops = recording.list_ops()
  left = tie_draws(ops[num_forward:], call.draws, tower=call.store.first_tower + index,
                   scope=forward.scope, batch=forward.batch,
                   call_in_scratch=differentiate_in_scratch, before=ops[:num_forward])
  warn_of_draws(call.draws, lambda: find_needed(list_ops(gradients)))
  if index == 0:
    warn_of_left(left)


def _check_trained(call):
  """Refuses a model without weights, or with weights of 16 bits: these lose small updates."""
  trainable = tf.trainable_variables()
  if not trainable:
    raise UsageError('The model made no trainable variable: make them with tf.get_variable in '
                     'the model function.')
  if call.precision is None:
    return
  dtype = call.precision.dtype
  halves = [variable.op.name for variable in trainable if variable.dtype.base_dtype == dtype]
  if halves:
    raise UsageError(f'precision=mixed, but {halves[0]} and {len(halves) - 1} more weights are of '
                     f'{dtype.name} themselves, in which small updates are lost: make them with '
                     'tf.get_variable, or use precision=float32.')
