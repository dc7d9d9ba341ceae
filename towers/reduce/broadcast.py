"""Broadcast: the chief sends its variables to all workers."""

from typing import List, NamedTuple, Optional, Sequence

from towers.graph.writes import find_step_writes
from towers.placement.collectives import FUSION_BYTES, broadcast_value
from towers.placement.host import HOST
from towers.placement.packing import pack, plan_packs, size_of, unpack
from towers.placement.workers import Workers
from towers.tensorflow_v1 import Operation, Tensor, tf
from towers.tower.tower import Tower


class Broadcast(NamedTuple):
  """Ops that set all global variables to the chief's; all workers must run one at once.

  `moved_op` sets those that each worker moves by its own batches, such as moving averages, and is
  None if there are none. Weights, slots and averages of weights move by what all workers share;
  `sizes` are sums of absolute values that show it, of those `weights`: this worker's and the
  chief's, `[2, n]`.
  """
  all_op: Operation
  moved_op: Optional[Operation]
  weights: List[str]
  sizes: Tensor


def build_broadcast(workers: Workers, towers: Sequence[Tower]) -> Broadcast:
  """Builds the broadcast ops of a worker, once its train op is built."""
  of_towers = [value for tower in towers for value in [tower.loss, *tower.gradients]]
  writes = find_step_writes(of_towers, towers[0].update_ops)
  written = {op.name for write in writes.early + writes.late for op in write.variables}
  variables = tf.global_variables()
  moved = [variable for variable in variables
           if variable.op.name in written and variable.dtype.base_dtype.is_floating]
  weights, sizes = tf.trainable_variables(), []
  with tf.device(HOST), tf.name_scope('broadcast'):
    for weight in weights:
      with tf.device(weight.device):
        sizes.append(tf.reduce_sum(tf.cast(tf.abs(weight.read_value()), tf.float32)))
    own = tf.stack(sizes)
    chiefs = broadcast_value(own, num_workers=workers.num_workers, is_source=workers.rank == 0)
    return Broadcast(_broadcast(variables, workers), _broadcast(moved, workers) if moved else None,
                     [weight.op.name for weight in weights], tf.stack([own, chiefs]))


def _broadcast(variables, workers):
  """Returns the op by which the chief sends, and all others receive, the variables' values."""
  values = [variable.read_value() for variable in variables]
  # 1.14 broadcasts no bools.
  values = [tf.cast(value, tf.int32) if value.dtype.is_bool else value for value in values]
  is_source = workers.rank == 0
  ops = []
  sizes = [(value.dtype, size_of(value)) for value in values]
  for indices in plan_packs(sizes, FUSION_BYTES):
    received = broadcast_value(pack([values[index] for index in indices]),
                               num_workers=workers.num_workers, is_source=is_source)
    if is_source:
      ops.append(received.op)
      continue
    parts = unpack(received, [values[index].shape for index in indices])
    for index, part in zip(indices, parts):
      variable = variables[index]
      ops.append(variable.assign(tf.cast(part, variable.dtype.base_dtype), read_value=False))
  return tf.group(*ops)
