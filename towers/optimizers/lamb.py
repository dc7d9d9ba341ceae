"""LAMB: Adam with a learning rate for each layer, for very large batches."""

from typing import Any

from towers.tensorflow_v1 import tf


class LAMBOptimizer(tf.train.AdamOptimizer):
  """Layer-wise adaptive moments (You et al. 2020, arXiv:1904.00962).

    m, v      = Adam's moments of the gradient, corrected for their start
    change    = m / (sqrt(v) + epsilon) + weight_decay * weight
    weight   -= learning_rate * |weight| / |change| * change

  A variable of fewer than two dimensions has no decay and a ratio of norms of 1. So is the ratio of
  one whose weight or change is 0. A sparse gradient is made dense.
  """

  def __init__(self, learning_rate: Any = 0.001, weight_decay: float = 0.01, beta1: float = 0.9,
               beta2: float = 0.999, epsilon: float = 1e-6, name: str = 'LAMB'):
    """Prepares.

    Args:
      learning_rate: a float or a scalar tensor.
      weight_decay: the share of the weight in its change.
      beta1, beta2: the shares of the moments that a step keeps.
      epsilon: added to the square root of the second moment.
    """
    super().__init__(learning_rate, beta1, beta2, epsilon, name=name)
    self._weight_decay = weight_decay

  def _prepare(self):
    super()._prepare()
    # Read here, since the update of a variable stands on its device.
    self._powers = [power.read_value() for power in self._get_beta_accumulators()]

  def _resource_apply_dense(self, grad, var):
    dtype = var.dtype.base_dtype
    m, v = self.get_slot(var, 'm'), self.get_slot(var, 'v')
    beta1, beta2 = [tf.cast(beta, dtype) for beta in (self._beta1_t, self._beta2_t)]
    powers = [tf.cast(power, dtype) for power in self._powers]
    new_m = beta1 * m.read_value() + (1 - beta1) * grad
    new_v = beta2 * v.read_value() + (1 - beta2) * tf.square(grad)
    change = (new_m / (1 - powers[0])) / (
        tf.sqrt(new_v / (1 - powers[1])) + tf.cast(self._epsilon_t, dtype))
    rate = tf.cast(self._lr_t, dtype)
    if var.shape.ndims >= 2:
      weight = var.read_value()
      change += self._weight_decay * weight
      weight_norm, change_norm = tf.norm(weight), tf.norm(change)
      ratio = weight_norm / tf.maximum(change_norm, 1e-30)
      has_both = tf.logical_and(weight_norm > 0, change_norm > 0)
      rate *= tf.where(has_both, ratio, tf.ones_like(ratio))
    return tf.group(m.assign(new_m, read_value=False), v.assign(new_v, read_value=False),
                    var.assign_sub(rate * change, read_value=False))

  def _resource_apply_sparse_duplicate_indices(self, grad, var, indices):
    dense = tf.unsorted_segment_sum(grad, indices, var.shape[0])
    return self._resource_apply_dense(dense, var)
