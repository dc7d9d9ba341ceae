"""Gradients: the towers' shares summed on each variable's device, which makes them the mean over the global batch.

Every tower divided by the number of examples in the global batch already (see `tower`), so there is nothing left to
divide here, and nothing to weight.
"""

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Union

from tensorflow_v1 import tf
from towers.inputs import HOST
from towers.sums import add_all
from towers.tower import Tower


class Averaged(NamedTuple):
  """What the towers found together.

  Attributes:
    towers: that it came from.
    num_examples: that the means are over, an int or an integer scalar.
    loss: the mean loss over the global batch, a scalar.
    gradients: (gradient, variable) of all variables that the loss depends on.
    without_gradient: the trainable variables that it does not depend on, in any tower.
    partly_without_gradient: those that it does not depend on in some towers, which count as zero there; models that
      are the same in every tower have none.
    add_op: with accumulation, what all runs of a step but the last one run.
    clear: with accumulation, builds the op that ends a step.
  """
  towers: Sequence[Tower]
  num_examples: Union[int, Any]
  loss: Any
  gradients: List[Any]
  without_gradient: List[Any]
  partly_without_gradient: List[Any]
  add_op: Any = None
  clear: Optional[Callable[[], Any]] = None


def average_gradients(towers: Sequence[Tower]) -> Averaged:
  """Sums the towers' losses and gradients; sparse gradients stay sparse."""
  with tf.name_scope('average'):
    gradients: List[Any] = []
    without_gradient, partly_without_gradient = [], []
    for variable, shares in zip(tf.trainable_variables(), zip(*[tower.gradients for tower in towers])):
      # A tower whose loss does not depend on a variable has a gradient of zero.
      found = [share for share in shares if share is not None]
      if not found:
        without_gradient.append(variable)
        continue
      if len(found) < len(shares):
        partly_without_gradient.append(variable)
      with tf.device(variable.device):
        gradients.append((_sum_shares(found), variable))
    with tf.device(HOST):
      loss = add_all([tower.loss for tower in towers])
  return Averaged(towers, towers[0].num_global_examples, loss, gradients, without_gradient, partly_without_gradient)


def clip_gradients(averaged: Averaged, max_norm: float) -> Averaged:
  """Scales all gradients down so that their global norm, after averaging, is at most `max_norm`."""
  with tf.name_scope('clip'):
    gradients = _merge_all_rows(averaged)
    with tf.device(HOST):
      scale = tf.minimum(max_norm / tf.maximum(tf.global_norm(gradients), 1e-30), 1.0)
    clipped = []
    for gradient, (_, variable) in zip(gradients, averaged.gradients):
      with tf.device(variable.device):
        clipped.append((_scale(gradient, scale), variable))
  return averaged._replace(gradients=clipped)


def build_gradient_norm(averaged: Averaged) -> Any:
  """Returns the global norm of the averaged gradients, a scalar on the host; costs nothing in runs without it."""
  with tf.name_scope('gradient_norm'):
    gradients = _merge_all_rows(averaged)
    with tf.device(HOST):
      return tf.global_norm(gradients)


def _merge_all_rows(averaged):
  gradients = []
  for gradient, variable in averaged.gradients:
    with tf.device(variable.device):
      gradients.append(_merge_rows(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient)
  return gradients


def _merge_rows(slices):
  """Adds up rows with the same index: apart, their squares would not add up to the norm of the dense gradient."""
  indices, positions = tf.unique(slices.indices)
  values = tf.unsorted_segment_sum(slices.values, positions, tf.size(indices))
  return tf.IndexedSlices(values, indices, slices.dense_shape)


def _scale(gradient, scale):
  if isinstance(gradient, tf.IndexedSlices):
    return tf.IndexedSlices(gradient.values * scale, gradient.indices, gradient.dense_shape)
  return gradient * scale


def _sum_shares(shares):
  if len(shares) > 1 and all(isinstance(share, tf.IndexedSlices) for share in shares):
    # The optimizer adds up rows with the same index; adding tensors here would make the gradient dense.
    return tf.IndexedSlices(tf.concat([share.values for share in shares], 0),
                            tf.concat([share.indices for share in shares], 0), shares[0].dense_shape)
  return add_all(shares)
