"""Broadcast: the chief's variables become those of all workers."""

from typing import Any, NamedTuple

from tensorflow_v1 import tf
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
  """How the chief's state becomes that of all workers.

  Attributes:
    all_op: sets all global variables to the chief's; to be run by all workers at once, as is the
      other.
    untrained_op: those that are not trained, such as moving averages, which each worker moves by
      its own batches.
  """
  all_op: Any
  untrained_op: Any


def build_broadcast(workers: Workers) -> Broadcast:
  """Builds what makes the chief's state that of all, once the train op is built."""
  variables = tf.global_variables()
  trained = {variable.op.name for variable in tf.trainable_variables()}
  untrained = [variable for variable in variables
               if variable.op.name not in trained and variable.dtype.base_dtype.is_floating]
  with tf.device(HOST), tf.name_scope('broadcast'):
    return Broadcast(_broadcast(variables, workers), _broadcast(untrained, workers))


def _broadcast(variables, workers):
  """Returns the op with which the chief hands out, and all others take, the variables' values."""
  values = [variable.read_value() for variable in variables]
  # 1.14 hands out no bools.
  values = [tf.cast(value, tf.int32) if value.dtype.is_bool else value for value in values]
  is_source = workers.rank == 0
  ops = []
  for numbers in plan_fusion(sizes_of(values), FUSION_BYTES):
    fused = fuse([values[number] for number in numbers])
    received = broadcast_value(fused, num_workers=workers.num_workers, is_source=is_source)
    if is_source:
      ops.append(received.op)
      continue
    for number, part in zip(numbers,
                            split_fused(received, [values[number].shape for number in numbers])):
      variable = variables[number]
      ops.append(variable.assign(tf.cast(part, variable.dtype.base_dtype), read_value=False))
  return tf.group(*ops)
