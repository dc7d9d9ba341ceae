"""Broadcast: the chief sends its variables to all workers."""

from typing import NamedTuple

from tensorflow_v1 import Operation, tf
from towers.placement.collectives import (
  FUSION_BYTES,
  broadcast_value,
  fuse,
  plan_fusion,
  sizes_of,
  split_fused,
)
from towers.placement.host import HOST
from towers.placement.workers import Workers


class Broadcast(NamedTuple):
  """Ops that set variables to the chief's; all workers must run one at once.

  Attributes:
    all_op: sets all global variables.
    untrained_op: sets those that are not trained, such as moving averages, which each worker moves
      by its own batches.
  """
  all_op: Operation
  untrained_op: Operation


def build_broadcast(workers: Workers) -> Broadcast:
  """Builds the broadcast ops, once the train op is built."""
  variables = tf.global_variables()
  trained = {variable.op.name for variable in tf.trainable_variables()}
  untrained = [variable for variable in variables
               if variable.op.name not in trained and variable.dtype.base_dtype.is_floating]
  with tf.device(HOST), tf.name_scope('broadcast'):
    return Broadcast(_broadcast(variables, workers), _broadcast(untrained, workers))


def _broadcast(variables, workers):
  """Returns the op by which the chief sends, and all others receive, the variables' values."""
  values = [variable.read_value() for variable in variables]
  # 1.14 broadcasts no bools.
  values = [tf.cast(value, tf.int32) if value.dtype.is_bool else value for value in values]
  is_source = workers.rank == 0
  ops = []
  for indices in plan_fusion(sizes_of(values), FUSION_BYTES):
    fused = fuse([values[index] for index in indices])
    received = broadcast_value(fused, num_workers=workers.num_workers, is_source=is_source)
    if is_source:
      ops.append(received.op)
      continue
    parts = split_fused(received, [values[index].shape for index in indices])
    for index, part in zip(indices, parts):
      variable = variables[index]
      ops.append(variable.assign(tf.cast(part, variable.dtype.base_dtype), read_value=False))
  return tf.group(*ops)
