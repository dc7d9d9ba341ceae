"""Gradients of a tower: of its share of the loss and, for the first tower, of the penalties."""

from typing import List, Optional, Sequence

from towers.graph.ordered_sum import keep_order
from towers.tensorflow_v1 import Gradient, Variable, control_flow_v1, dense_where_mixed, tf
from towers.tower.all_towers import SUM_GRADIENTS
from towers.tower.batch_norm.layer import gradients_of_training
from towers.tower.precision import LARGEST_HALF_SCALE, Precision
from towers.tower.recording import Recording
from towers.tower.tower import Tower


def differentiate(forward: Tower, variables: Sequence[Variable], recording: Recording,
                  precision: Optional[Precision]) -> List[Optional[Gradient]]:
  """Returns the gradients of a tower's loss, zero where its batch is empty."""
  num_ops = len(recording.list_ops())
  global_batch = forward.global_batch
  with tf.device(recording.place), tf.name_scope(forward.scope):
    # Differentiate the sum and pass the share as its output gradient: saves the ops of a division.
    weight = _find_scale(precision, global_batch.num_micro_batches) / global_batch.divisor
    total = forward.sums['loss']
    with gradients_of_training(), control_flow_v1(), dense_where_mixed():
      gradients = forward.batch.zero_if_empty(tf.gradients(
          total, list(variables), [tf.convert_to_tensor(weight, total.dtype)]))
  keep_order(recording.list_ops()[num_ops:])
  recording.take_values(num_ops)
  return gradients


def differentiate_penalties(forward: Tower, variables: Sequence[Variable],
                            precision: Optional[Precision]) -> List[Optional[Gradient]]:
  """Returns the gradients of the first tower's penalties, whole, for all towers; [] without any.

  Penalties belong to the variables, which exist once.
  """
  penalties = forward.penalties
  if not penalties:
    return []
  # The sum of weights divides all other gradients, once those of a whole step are summed.
  scale = _find_scale(
      precision, 1 if 'loss' in forward.weights else forward.global_batch.num_micro_batches)
  sum_gradients = tf.get_collection_ref(SUM_GRADIENTS)
  num_sums = len(sum_gradients)
  with tf.device(forward.device), tf.name_scope(forward.scope):
    # A penalty on weights in half precision is itself of half precision, and so is the start of its
    # gradient. The rest of a large scale follows where the gradient is of float32.
    is_half = any(penalty.dtype == tf.float16 for penalty in penalties)
    first = tf.minimum(scale, LARGEST_HALF_SCALE) if is_half else scale
    gradients = tf.gradients(penalties, list(variables), [
        tf.cast(first, penalty.dtype) * tf.ones_like(penalty) for penalty in penalties])
    del sum_gradients[num_sums:]  # No other tower has these.
    if is_half:
      gradients = [None if gradient is None else tf.convert_to_tensor(gradient) * (scale / first)
                   for gradient in gradients]
  return gradients


def _find_scale(precision, num_micro_batches):
  """Returns what gradients are multiplied by, of one of several micro-batches."""
  scale = 1.0 if precision is None else precision.loss_scale.value
  return scale / num_micro_batches if num_micro_batches > 1 else scale
