"""Optimizers that a flag can name, and those of them that TensorFlow 1 lacks: AdamW, LARS and LAMB.

These three are for weights of two or more dimensions. Biases and the scales of normalisation, of
one dimension, neither decay nor have a trust ratio.
"""

from typing import Any, Dict, Union

from towers.tensorflow_v1 import tf

# Those that take the weight decay themselves. For all others it is added to the gradient.
DECAYING = ('adamw', 'lars', 'lamb')


def build_optimizer(config: Any, learning_rate: Union[float, Any]) -> Any:
  """Returns the `tf.train.Optimizer` of a `Config`, whose slots live beside their variables.

  Without an `epsilon`, that of rmsprop is 1.0, with which NASNet was trained (arXiv:1707.07012).
  """
  name, epsilon, decay = config.optimizer, config.epsilon, config.weight_decay
  if name in ('adam', 'adamw', 'lamb'):
    moments: Dict[str, Any] = dict(beta1=config.beta1, beta2=config.beta2,
                                   epsilon=epsilon or (1e-6 if name == 'lamb' else 1e-8))
    if name == 'adam':
      return tf.train.AdamOptimizer(learning_rate, **moments)
    build = AdamWOptimizer if name == 'adamw' else LAMBOptimizer
    return build(learning_rate, weight_decay=decay, **moments)
  if name == 'lars':
    return LARSOptimizer(learning_rate, config.momentum, weight_decay=decay)
  if name == 'rmsprop':
    return tf.train.RMSPropOptimizer(learning_rate, decay=config.rms_decay,
                                     momentum=config.momentum, epsilon=epsilon or 1.0)
  if name in ('momentum', 'nesterov'):
    return tf.train.MomentumOptimizer(learning_rate, config.momentum,
                                      use_nesterov=name == 'nesterov')
  return tf.train.GradientDescentOptimizer(learning_rate)


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
