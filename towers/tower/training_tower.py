"""A tower that trains: the forward pass that the model builds, and its gradients."""

import contextlib
from typing import Sequence, Union

from tensorflow_v1 import tf
from towers.base.usage_error import UsageError
from towers.placement.set_values import keep_set_values
from towers.placement.variables import (
    check_reads,
    check_shared,
    freeze_variables,
    seed_made_before,
)
from towers.tower.apart import check_apart
from towers.tower.cloning.recording import Recording
from towers.tower.differentiate import differentiate
from towers.tower.forward_pass import build_forward
from towers.tower.model_call import ModelCall
from towers.tower.recomputing.recompute import recompute
from towers.tower.tower import Tower


def build_tower(call: ModelCall, index: int, recording: Recording, *, frozen: Sequence[str],
                recomputed: Union[str, int]) -> Tower:
  """Returns a tower that the model builds, with the gradients of its loss without penalties.

  Its recording has begun; `frozen` and `recomputed` are as `build_towers` takes them.
  """
  store, graph = call.store, tf.get_default_graph()
  before = tf.global_variables()

  # All towers start from the values that the first tower's model assigns.
  with contextlib.nullcontext() if index else keep_set_values():
    tower = build_forward(call, call.whole.batches[index], index=index, device=recording.device,
                          place=recording.place)
  if index == 0:
    _check_trained(call)
    seed_made_before(store, tf.trainable_variables())
    freeze_variables(frozen)
  else:
    check_shared(before, tf.global_variables(), tower=index)
  check_reads(store, store.replicas.get(index, {}), scope=tower.scope,
              fix='use variables=host, first or balanced, or tower_build=clone')

  tower = tower._replace(variables=store.list_trainable(index))
  num_forward = len(graph.get_operations())
  tower = differentiate(tower, place=recording.place, precision=call.precision)
  tower = tower._replace(recomputed=recompute(
      recomputed, tower, recording=recording, first_backward=num_forward, warns=index == 0))
  check_apart(dict(gradients=tower.gradients), graph.get_operations()[recording.num_ops:],
              index=index, others=store.scopes, batch=tower.batch)
  return tower


def _check_trained(call):
  """Refuses a model without weights, or with weights in half precision: these lose small updates.
  """
  variables = tf.trainable_variables()
  if not variables:
    raise UsageError('The model made no trainable variable: make them with tf.get_variable in '
                     'the model function.')
  if call.precision is None:
    return
  dtype = call.precision.dtype
  halves = [variable.op.name for variable in variables if variable.dtype.base_dtype == dtype]
  if halves:
    raise UsageError(f'precision=mixed, but {halves[0]} and {len(halves) - 1} more weights are of '
                     f'{dtype.name} themselves, in which small updates are lost: make them with '
                     'tf.get_variable, or use precision=float32.')
