"""LARS: momentum with a learning rate for each layer, for very large batches."""

from typing import Any

from towers.tensorflow_v1 import tf


class LARSOptimizer(tf.train.Optimizer):
  """Layer-wise adaptive rates (You, Gitman & Ginsburg 2017, arXiv:1708.03888).

    trust     = trust_factor * |weight| / (|gradient| + weight_decay * |weight|)
    velocity  = momentum * velocity + learning_rate * trust * (gradient + weight_decay * weight)
    weight   -= velocity

  A variable of fewer than two dimensions has no decay and a trust of 1. So is the trust of one
  whose weight or gradient is 0. A sparse gradient is made dense.
  """

  def __init__(self, learning_rate: Any, momentum: float = 0.9, weight_decay: float = 0.0,
               trust_factor: float = 0.001, name: str = 'LARS'):
    """Prepares.

    Args:
      learning_rate: a float or a scalar tensor.
      momentum: the share of the velocity that a step keeps.
      weight_decay: times the weight is added to the gradient.
      trust_factor: of the rate of each layer.
    """
    super().__init__(False, name)
    self._learning_rate = learning_rate
    self._momentum = momentum
    self._weight_decay = weight_decay
    self._trust_factor = trust_factor

  def _create_slots(self, var_list):
    for var in var_list:
      self._zeros_slot(var, 'velocity', self._name)

  def _prepare(self):
    self._rate = tf.convert_to_tensor(self._learning_rate, name='learning_rate')

  def _resource_apply_dense(self, grad, var):
    velocity = self.get_slot(var, 'velocity')
    rate = tf.cast(self._rate, var.dtype.base_dtype)
    if var.shape.ndims >= 2:
      weight = var.read_value()
      weight_norm, gradient_norm = tf.norm(weight), tf.norm(grad)
      trust = self._trust_factor * weight_norm / (
          gradient_norm + self._weight_decay * weight_norm + 1e-30)
      has_both = tf.logical_and(weight_norm > 0, gradient_norm > 0)
      rate *= tf.where(has_both, trust, tf.ones_like(trust))
      grad += self._weight_decay * weight
    moved = self._momentum * velocity.read_value() + rate * grad
    return tf.group(velocity.assign(moved, read_value=False),
                    var.assign_sub(moved, read_value=False))

  def _resource_apply_sparse_duplicate_indices(self, grad, var, indices):
    dense = tf.unsorted_segment_sum(grad, indices, var.shape[0])
    return self._resource_apply_dense(dense, var)
