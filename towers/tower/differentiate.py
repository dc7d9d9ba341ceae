"""Gradients of a tower: of its share of the loss and, for the first tower, of the penalties."""

from typing import Callable, List, Optional, Tuple

from tensorflow_v1 import Gradient, Operation, Tensor, tf
from towers.graph.ordered_sum import add_all, keep_order
from towers.input.batch import Batch
from towers.tower.batch_norm_layer import gradients_of_training
from towers.tower.precision import LARGEST_HALF_SCALE
from towers.tower.tower import Tower


def differentiate(tower: Tower, batch: Batch, *, place: Callable[[Operation], str], is_first: bool,
                  loss_scale: Optional[Tensor]) -> Tuple[Tower, List[Optional[Gradient]]]:
  """Returns the tower with all its gradients, and the gradients of its loss alone.

  Penalties belong to the variables, which exist once: the first tower differentiates them, whole.
  Their gradients are kept apart from those of the loss, which alone may be cloned, and are zero
  where a batch is empty. `place` is a device function that gives ops the tower's device.
  """
  variables = tower.variables
  graph = tf.get_default_graph()
  num_ops = len(graph.get_operations())
  with tf.device(place), tf.name_scope(tower.scope):
    scale = 1.0 if loss_scale is None else loss_scale
    if tower.num_micro_batches > 1:
      scale /= tower.num_micro_batches
    # Differentiate the sum and pass the share as its output gradient: saves the ops of a division.
    weight = scale / tower.divisor
    total = tower.sums['loss']
    weights = [tf.convert_to_tensor(weight, total.dtype)]
    with gradients_of_training():
      own = batch.zero_if_empty(tf.gradients(total, variables, weights))

    made = graph.get_operations()[num_ops:]
    keep_order(made)
    _keep_on_tower(made)
    if not (is_first and tower.penalties):
      return tower._replace(gradients=own), own

    if 'loss' in tower.weights:
      # The sum of weights divides all other gradients, once those of a whole step are summed.
      penalties = _differentiate_penalties(tower, 1.0 if loss_scale is None else loss_scale)
      return _keep_apart(tower, own, penalties), own
    penalties = _differentiate_penalties(tower, scale)
    gradients = [gradient if penalty is None else
                 add_all([part for part in (gradient, penalty) if part is not None])
                 for gradient, penalty in zip(own, penalties)]
  return tower._replace(gradients=gradients), own


def _keep_apart(tower, own, penalties):
  """Returns the tower with dense gradients for all variables that have a penalty, and these."""
  penalties = [None if penalty is None else tf.convert_to_tensor(penalty) for penalty in penalties]
  gradients = []
  for gradient, penalty, variable in zip(own, penalties, tower.variables):
    if penalty is not None and gradient is None:
      gradient = tf.zeros(variable.shape, variable.dtype.base_dtype)
    gradients.append(gradient if penalty is None else tf.convert_to_tensor(gradient))
  return tower._replace(gradients=gradients, penalty_gradients=penalties)


def _keep_on_tower(ops):
  """Places the stacks that a loop's gradients need, and shapes of rows that are read, on the tower.

  TensorFlow colocates each with the op whose value it holds: for a shared variable that is read, on
  the variable's device.
  """
  for op in ops:
    if (op.type == 'StackV2' and any(b'ReadVariableOp' in group for group in op.colocation_groups())
        or op.type == 'Shape' and op.inputs[0].op.type == 'ResourceGather'):
      own = tf.AttrValue.ListValue(s=[f'loc:@{op.name}'.encode()])
      op._set_attr('_class', tf.AttrValue(list=own))


def _differentiate_penalties(tower, scale):
  """Returns the gradients of the tower's penalties times `scale`."""
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
