"""AdamW: Adam whose weight decay is apart from the gradient."""

from typing import Any

from towers.tensorflow_v1 import tf


class AdamWOptimizer(tf.train.AdamOptimizer):
  """Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101).

  Before Adam's step, `weight -= learning_rate * weight_decay * weight`, for variables of two or
  more dimensions. All rows of a sparse gradient's variable decay.
  """

  def __init__(self, learning_rate: Any = 0.001, weight_decay: float = 0.01, beta1: float = 0.9,
               beta2: float = 0.999, epsilon: float = 1e-8, name: str = 'AdamW'):
    """Prepares.

    Args:
      learning_rate: a float or a scalar tensor.
      weight_decay: of a step with a learning rate of 1.
    """
    super().__init__(learning_rate, beta1, beta2, epsilon, name=name)
    self._weight_decay = weight_decay

  def _resource_apply_dense(self, grad, var):
    with tf.control_dependencies(self._decay(var)):
      return super()._resource_apply_dense(grad, var)

  def _resource_apply_sparse(self, grad, var, indices):
    with tf.control_dependencies(self._decay(var)):
      return super()._resource_apply_sparse(grad, var, indices)

  def _decay(self, var):
    if not self._weight_decay or var.shape.ndims < 2:
      return []
    rate = tf.cast(self._lr_t, var.dtype.base_dtype) * self._weight_decay
    return [var.assign_sub(rate * var.read_value(), read_value=False)]
