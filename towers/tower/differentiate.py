"""Gradients of a tower: of its share of the loss and, for the first tower, of the penalties."""

from typing import Optional

from towers.graph.ordered_sum import add_all, keep_order
from towers.tensorflow_v1 import control_flow_v1, tf
from towers.tower.batch_norm_layer import gradients_of_training
from towers.tower.precision import LARGEST_HALF_SCALE, Precision
from towers.tower.recording import Recording
from towers.tower.tower import Tower


def differentiate(tower: Tower, recording: Recording, precision: Optional[Precision]) -> Tower:
  """Returns the tower with the gradients of its loss, zero where its batch is empty."""
  num_ops = len(recording.list_ops())
  with tf.device(recording.place), tf.name_scope(tower.scope):
    # Differentiate the sum and pass the share as its output gradient: saves the ops of a division.
    weight = _find_scale(precision, tower.whole.num_micro_batches) / tower.whole.divisor
    total = tower.sums['loss']
    with gradients_of_training(), control_flow_v1():
      gradients = tower.batch.zero_if_empty(tf.gradients(
          total, tower.variables, [tf.convert_to_tensor(weight, total.dtype)]))
  made = recording.list_ops()[num_ops:]
  keep_order(made)
  for op in made:
    # TensorFlow colocates the stacks that a loop's gradients need, and shapes of rows that are
    # read, with the op whose value each holds: for a shared variable, on the variable's device.
    if (op.type == 'StackV2' and any(b'ReadVariableOp' in group for group in op.colocation_groups())
        or op.type == 'Shape' and op.inputs[0].op.type == 'ResourceGather'):
      recording.take(op)
  return tower._replace(gradients=gradients)


def add_penalties(tower: Tower, precision: Optional[Precision]) -> Tower:
  """Returns the first tower with the gradients of its penalties, whole, for all towers.

  Penalties belong to the variables, which exist once. They are added when all clones are made.
  """
  if not tower.penalties:
    return tower
  # The sum of weights divides all other gradients, once those of a whole step are summed.
  is_apart = 'loss' in tower.weights
  with tf.device(tower.device), tf.name_scope(tower.scope):
    penalties = _differentiate_penalties(
        tower, _find_scale(precision, 1 if is_apart else tower.whole.num_micro_batches))
    if not is_apart:
      return tower._replace(gradients=[
          gradient if penalty is None else
          add_all([part for part in (gradient, penalty) if part is not None])
          for gradient, penalty in zip(tower.gradients, penalties)])
    penalties = [None if penalty is None else tf.convert_to_tensor(penalty)
                 for penalty in penalties]
    gradients = [gradient if penalty is None else tf.convert_to_tensor(
        tf.zeros_like(penalty) if gradient is None else gradient)
                 for gradient, penalty in zip(tower.gradients, penalties)]
  return tower._replace(gradients=gradients, penalty_gradients=penalties)


def _find_scale(precision, num_micro_batches):
  """Returns what gradients are multiplied by, of one of several micro-batches."""
  scale = 1.0 if precision is None else precision.loss_scale.value
  return scale / num_micro_batches if num_micro_batches > 1 else scale


def _differentiate_penalties(tower, scale):
  # A penalty on weights in half precision is itself of half precision, and so is the start of its
  # gradient. The rest of a large scale follows where the gradient is of float32.
  is_half = any(penalty.dtype == tf.float16 for penalty in tower.penalties)
  first = tf.minimum(scale, LARGEST_HALF_SCALE) if is_half else scale
  gradients = tf.gradients(tower.penalties, tower.variables,
                           [tf.cast(first, penalty.dtype) * tf.ones_like(penalty)
                            for penalty in tower.penalties])
  if not is_half:
    return gradients
  return [None if gradient is None else tf.convert_to_tensor(gradient) * (scale / first)
          for gradient in gradients]
