"""Accumulation: a global batch larger than the towers' memory, taken in several runs of the
session.

  run 1      towers ──► gradients ──► add        sums hold the gradients times the
  run 2      towers ──► gradients ──► add        examples they are the mean of
  run 3      towers ──► gradients ──► add ──► divide by all examples ──► apply ──► clear

The step, its counters, its schedule, clipping and decay are those of one big batch. Sums stand with
their variables, and are no part of checkpoints, which fall between two steps.
"""

from typing import Any, List, NamedTuple

from tensorflow_v1 import tf
from towers.placement.host import HOST
from towers.placement.randomness import get_micro_batch_in_step
from towers.reduce.gradients import ReducedGradients
from towers.tower.batch_norm_layer import BATCH_MOMENTS


class _Sum(NamedTuple):
  """A running sum: the op that adds to it, its value once that is done, and how to clear it."""
  add_op: Any
  value: Any
  variable: Any


def accumulate_gradients(reduced: ReducedGradients) -> ReducedGradients:
  """Returns the mean over all runs of a step.

  Its `add_op` is to be run for every run of a step but the last one, which runs the train op.

  Args:
    reduced: the mean over one run, not clipped yet.
  """
  count = tf.cast(reduced.num_examples, tf.float32)
  # Towers divide their gradients by the number of micro-batches too, see `Tower`.
  gradient_weight = count * reduced.towers[0].num_micro_batches
  sums: List[_Sum] = []

  def add(value, device, name, weight=count):
    """Adds a run's mean, times its examples."""
    with tf.device(device):
      total = _make_sum(value.shape, value.dtype, name)
      added = total.assign_add(value * tf.cast(weight, value.dtype), read_value=False)
      with tf.control_dependencies([added]):
        sums.append(_Sum(added, total.read_value(), total))
    return sums[-1].value

  with tf.name_scope('accumulate'):
    seen = add(tf.ones([]), HOST, 'num_examples')
    num_examples = tf.maximum(seen, 1.0)  # All of them may have been damaged and left out.
    loss = add(reduced.loss, HOST, 'loss') / num_examples

    def accumulate(gradient, variable):
      if isinstance(gradient, tf.IndexedSlices):
        return _add_rows(gradient, variable, gradient_weight, sums, num_examples)
      total = add(gradient, variable.device, variable.op.name, gradient_weight)
      return total / tf.cast(num_examples, gradient.dtype)

    accumulated = reduced.map_gradients(accumulate)
    for number, moments in enumerate(tf.get_collection(BATCH_MOMENTS)):
      if moments.op.name.startswith(reduced.towers[0].scope):
        mean = add(moments.op.inputs[0], reduced.towers[0].device,
                   f'moments_{number}') / num_examples
        moments.op._update_input(0, mean)
    with tf.device(HOST):
      run = get_micro_batch_in_step()
      add_op = tf.group(*[total.add_op for total in sums])
      with tf.control_dependencies([add_op]):
        add_op = run.assign_add(1, read_value=False)

  def clear():
    clears = [run.assign(0, read_value=False)]
    for total in sums:
      # A step that is not done does not ask for every sum: what nothing waits for might still be
      # added afterwards.
      with tf.control_dependencies([total.add_op]), tf.device(total.variable.device):
        clears.append(
            total.variable.assign(tf.zeros(total.variable.shape, total.variable.dtype.base_dtype),
                                  read_value=False))
    return tf.group(*clears, name='clear')

  return accumulated._replace(loss=loss, num_examples=tf.cast(seen, tf.int64), add_op=add_op,
                              clear=clear)


def _add_rows(slices, variable, weight, sums, num_examples):
  """Adds up sparse gradients; returns their mean, sparse, of the rows that any run touched."""
  with tf.device(variable.device):
    total = _make_sum(variable.shape, slices.values.dtype, variable.op.name)
    touched = _make_sum(variable.shape[:1], tf.int32, variable.op.name + '_touched')
    added = tf.group(
        total.scatter_add(
            tf.IndexedSlices(slices.values * tf.cast(weight, slices.values.dtype), slices.indices)),
        touched.scatter_update(
            tf.IndexedSlices(tf.ones_like(slices.indices, tf.int32), slices.indices)))
    with tf.control_dependencies([added]):
      indices = tf.reshape(tf.where(tf.greater(touched.read_value(), 0)), [-1])
      values = total.sparse_read(indices) / tf.cast(num_examples, slices.values.dtype)
  sums += [_Sum(added, None, total), _Sum(added, None, touched)]
  return tf.IndexedSlices(values, indices, slices.dense_shape)


def _make_sum(shape, dtype, name):
  with tf.name_scope(None):
    return tf.Variable(tf.zeros(shape,
                                dtype.base_dtype), name='accumulated/' + name, trainable=False,
                       use_resource=True, collections=[tf.GraphKeys.LOCAL_VARIABLES])
