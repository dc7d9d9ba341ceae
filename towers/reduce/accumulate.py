"""Accumulation: a global batch larger than the towers' memory, as several micro-batches.

  micro-batch 1   towers ──► gradients ──► add     the sums are of gradients times
  micro-batch 2   towers ──► gradients ──► add     their numbers of examples
  micro-batch 3   towers ──► gradients ──► add ──► divide by all examples ──► apply ──► clear

The step, its counters, its schedule, clipping and decay are those of one big batch. Accumulators
live beside their variables and are not checkpointed: checkpoints fall between steps.
"""

import dataclasses
from typing import List, Tuple

from towers.placement.counters import get_micro_batch_in_step
from towers.placement.host import HOST
from towers.reduce.gradients import ReducedGradients
from towers.tensorflow_v1 import Operation, Variable, tf
from towers.tower.batch_norm.layer import BATCH_MOMENTS


def accumulate_gradients(summed: ReducedGradients) -> ReducedGradients:
  """Returns the mean over all micro-batches of a step, of the mean over one, not clipped yet.

  Every micro-batch but the last runs `add_op`; the last one runs the train op.
  """
  first = summed.towers[0]
  count = tf.cast(summed.num_examples, tf.float32)
  # Towers divide their gradients by the number of micro-batches too, see `Tower`.
  gradient_weight = count * first.global_batch.num_micro_batches
  sums = _Accumulators()

  with tf.name_scope('accumulate'):
    seen = sums.add(tf.ones([]), count, device=HOST, name='num_examples')
    num_examples = tf.maximum(seen, 1.0)  # All examples may be damaged and left out.
    loss = sums.add(summed.loss, count, device=HOST, name='loss') / num_examples
    metrics = summed.metrics
    if metrics is not None:
      # Nothing else in the step waits for it, so that clearing must.
      metrics = sums.add(metrics, 1.0, device=HOST, name='metrics', is_fetched=True)
    mean_weight = summed.mean_weight
    if mean_weight is not None:
      mean_weight = sums.add(mean_weight, count, device=HOST, name='weights') / num_examples

    def accumulate(gradient, variable):
      if isinstance(gradient, tf.IndexedSlices):
        return sums.add_rows(gradient, variable, gradient_weight, num_examples)
      gradient.set_shape(variable.shape)  # Of kernels in a branch 1.14 does not know it.
      total = sums.add(gradient, gradient_weight, device=variable.device, name=variable.op.name)
      return total / tf.cast(num_examples, gradient.dtype)

    accumulated = summed.map_gradients(accumulate)
    for index, moments in enumerate(tf.get_collection(BATCH_MOMENTS)):
      if moments.op.name.startswith(first.scope):
        total = sums.add(moments.op.inputs[0], count, device=first.device, name=f'moments_{index}')
        moments.op._update_input(0, total / num_examples)
    add_op = sums.build_add()
  return dataclasses.replace(
      accumulated, loss=loss, metrics=metrics, begins_with_loss=False, mean_weight=mean_weight,
      num_examples=tf.cast(seen, tf.int64), add_op=add_op, clear=sums.build_clear)


class _Accumulators:
  """The sums over a step's micro-batches, each as the op that adds to it, and its variable."""

  def __init__(self):
    self._sums: List[Tuple[Operation, Variable]] = []

  def add(self, value, weight, *, device, name, is_fetched=False):
    """Adds up a micro-batch's mean times its weight; returns the sum."""
    with tf.device(device):
      total = _make_sum(value.shape, value.dtype, name)
      added = total.assign_add(value * tf.cast(weight, value.dtype), read_value=False)
      with tf.control_dependencies([added]):
        summed = total.read_value()
    self._sums.append((summed.op if is_fetched else added, total))
    return summed

  def add_rows(self, slices, variable, weight, num_examples):
    """Adds up sparse gradients; returns their mean, of the rows that any micro-batch touched."""
    dtype = slices.values.dtype
    with tf.device(variable.device):
      total = _make_sum(variable.shape, dtype, variable.op.name)
      touched = _make_sum(variable.shape[:1], tf.int32, variable.op.name + '_touched')
      rows = tf.IndexedSlices(slices.values * tf.cast(weight, dtype), slices.indices)
      marks = tf.IndexedSlices(tf.ones_like(slices.indices, tf.int32), slices.indices)
      added = tf.group(total.scatter_add(rows), touched.scatter_update(marks))
      with tf.control_dependencies([added]):
        indices = tf.reshape(tf.where(tf.greater(touched.read_value(), 0)), [-1])
        values = total.sparse_read(indices) / tf.cast(num_examples, dtype)
    self._sums += [(added, total), (added, touched)]
    return tf.IndexedSlices(values, indices, slices.dense_shape)

  def build_add(self):
    """Returns the op that adds a micro-batch to all sums and counts it."""
    with tf.device(HOST):
      added = tf.group(*[add_op for add_op, _ in self._sums])
      with tf.control_dependencies([added]):
        return get_micro_batch_in_step().assign_add(1, read_value=False)

  def build_clear(self):
    """Returns the op that sets all sums and the count to zero."""
    clears = [get_micro_batch_in_step().assign(0, read_value=False)]
    for add_op, variable in self._sums:
      # A step that the guard leaves out may not need every sum: without the dependency one might be
      # added to after it is cleared.
      with tf.control_dependencies([add_op]), tf.device(variable.device):
        zeros = tf.zeros(variable.shape, variable.dtype.base_dtype)
        clears.append(variable.assign(zeros, read_value=False))
    return tf.group(*clears, name='clear')


def _make_sum(shape, dtype, name):
  with tf.name_scope(None):
    return tf.Variable(tf.zeros(shape, dtype.base_dtype), name='accumulated/' + name,
                       trainable=False, use_resource=True,
                       collections=[tf.GraphKeys.LOCAL_VARIABLES])
