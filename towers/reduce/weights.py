"""Weights: losses that count by weights, divided by the sum of the weights of the global batch.

  mean over the examples of weight times loss     sum(weights * losses)
  ─────────────────────────────────────────── =   ─────────────────────
  mean over the examples of the weights                sum(weights)

The numerator and its gradients come from towers and micro-batches as those of any loss do, the
denominator beside them, and one division for each gradient makes the mean of a step. Workers share
the denominator first: weights mostly follow from the batch alone, so that it is there before them.
"""

import dataclasses

from towers.placement.host import HOST
from towers.placement.replicas import rounding_alike
from towers.placement.workers import Workers, sum_over_workers
from towers.reduce.gradients import ReducedGradients, scale_gradient
from towers.tensorflow_v1 import tf


def divide_by_weights(summed: ReducedGradients, workers: Workers) -> ReducedGradients:
  """Returns the weighted means: loss and gradients divided by the mean weight of all workers.

  Penalties, which have no weight, are added whole. If all weights are 0, the loss and its gradients
  stay 0. `summed` is of this worker's whole step alone.
  """
  if summed.mean_weight is None:
    return summed
  first = summed.towers[0]
  penalties = {variable.op.name: penalty
               for variable, penalty in zip(first.variables, first.penalty_gradients)
               if penalty is not None}

  with tf.name_scope('weigh'):
    with tf.device(HOST):
      mean_weight = summed.mean_weight
      if workers.num_workers > 1:
        count = tf.cast(summed.num_examples, tf.float32)
        total, examples = tf.unstack(sum_over_workers(
            tf.stack([mean_weight * count, count]), workers))
        mean_weight = total / tf.maximum(examples, 1.0)
      inverse = 1.0 / tf.where(mean_weight > 0, mean_weight, tf.ones_like(mean_weight))
      loss = summed.loss * inverse

    def divide(gradient, variable):
      divided = scale_gradient(gradient, tf.cast(inverse, gradient.dtype))
      penalty = penalties.get(variable.op.name)
      return divided if penalty is None else divided + tf.convert_to_tensor(penalty)

    # Every replica divides the same rows of a sparse gradient.
    with rounding_alike(bool(summed.replicas)):
      divided = summed.map_gradients(divide)
    return dataclasses.replace(divided, loss=loss, begins_with_loss=False, mean_weight=mean_weight)
