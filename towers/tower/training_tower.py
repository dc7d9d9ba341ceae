"""A tower that trains: the forward pass that the model builds, and its gradients."""

import contextlib
import dataclasses
from typing import Sequence, Union

from towers.base.usage_error import UsageError
from towers.placement import variables
from towers.placement.set_values import keep_set_values
from towers.tensorflow_v1 import tf
from towers.tower.apart import check_apart
from towers.tower.differentiate import differentiate, differentiate_penalties
from towers.tower.forward_pass import build_forward
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
  if index in store.replicas:
    variables.redirect_reads(store.made, store.replicas[index],
                             forward.find_needed().intersection(recording.list_ops()))

  trainable = store.list_trainable(index)
  num_forward = len(recording.list_ops())
  gradients = differentiate(forward, trainable, recording, call.precision)
  recomputed = copy_activations(recompute, forward, gradients, recording=recording,
                                num_forward=num_forward, warns=index == 0)
  check_apart(dict(gradients=gradients), recording.list_ops(),
              index=index, others=store.scopes, batch=forward.batch)
  penalty_gradients = [] if index else differentiate_penalties(forward, trainable, call.precision)
  return dataclasses.replace(forward, variables=trainable, gradients=gradients,
                             penalty_gradients=penalty_gradients, recomputed=recomputed)


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
