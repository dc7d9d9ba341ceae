"""Clipping: the global norm of the averaged gradients, and gradients scaled down to one."""

from towers.placement.host import HOST
from towers.placement.replicas import rounding_alike
from towers.reduce.gradients import ReducedGradients, scale_gradient
from towers.reduce.rows import merge_rows
from towers.tensorflow_v1 import Tensor, tf


def clip_gradients(reduced: ReducedGradients, max_norm: float) -> ReducedGradients:
  """Scales all gradients down so that their global norm, after averaging, is at most `max_norm`."""
  with tf.name_scope('clip'):
    merged = reduced.map_gradients(lambda gradient, _: merge_rows(gradient))
    with tf.device(HOST), rounding_alike(reduced.all_reduce is not None):
      norm = tf.global_norm([gradient for gradient, _ in merged.gradients])
      scale = tf.minimum(max_norm / tf.maximum(norm, 1e-30), 1.0)
    return merged.map_gradients(lambda gradient, _: scale_gradient(gradient, scale))


def build_gradient_norm(reduced: ReducedGradients) -> Tensor:
  """Returns the global norm of the averaged gradients, a scalar on the host, to fetch or not."""
  with tf.name_scope('gradient_norm'), tf.device(HOST):
    merged = reduced.map_gradients(lambda gradient, _: merge_rows(gradient))
    return tf.global_norm([gradient for gradient, _ in merged.gradients])
