"""The optimizers that a flag can name."""

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
    if name == 'adamw':
      from towers.optimizers.adamw import AdamWOptimizer
      return AdamWOptimizer(learning_rate, weight_decay=decay, **moments)
    from towers.optimizers.lamb import LAMBOptimizer
    return LAMBOptimizer(learning_rate, weight_decay=decay, **moments)
  if name == 'lars':
    from towers.optimizers.lars import LARSOptimizer
    return LARSOptimizer(learning_rate, config.momentum, weight_decay=decay)
  if name == 'rmsprop':
    return tf.train.RMSPropOptimizer(learning_rate, decay=config.rms_decay,
                                     momentum=config.momentum, epsilon=epsilon or 1.0)
  if name in ('momentum', 'nesterov'):
    return tf.train.MomentumOptimizer(learning_rate, config.momentum,
                                      use_nesterov=name == 'nesterov')
  return tf.train.GradientDescentOptimizer(learning_rate)
