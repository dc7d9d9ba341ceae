"""The optimizers that a flag can name."""

from typing import Any, Dict, Optional, Union

from tensorflow_v1 import tf

# Those that take the weight decay themselves. For all others it is added to the gradient.
DECAYING = ('adamw', 'lars', 'lamb')


def build_optimizer(name: str, learning_rate: Union[float, Any], *, momentum: float = 0.9,
                    beta1: float = 0.9, beta2: float = 0.999, epsilon: Optional[float] = None,
                    rms_decay: float = 0.9, weight_decay: float = 0.0) -> Any:
  """Returns a `tf.train.Optimizer`, whose slots live beside their variables.

  Args:
    name: 'sgd', 'momentum', 'nesterov', 'rmsprop', 'adam', 'adamw', 'lars' or 'lamb'.
    learning_rate: a float or a scalar float32 tensor.
    momentum: for momentum, nesterov, rmsprop and lars.
    beta1, beta2: for adam, adamw and lamb.
    epsilon: for these and rmsprop; None for 1e-8 of adam and adamw, 1e-6 of lamb, and 1.0 of
      rmsprop, with which NASNet was trained (arXiv:1707.07012).
    rms_decay: the share of the mean square that a step keeps, for rmsprop.
    weight_decay: for those in `DECAYING`.
  """
  if name in ('adam', 'adamw', 'lamb'):
    moments: Dict[str, Any] = dict(beta1=beta1, beta2=beta2,
                                   epsilon=epsilon or (1e-6 if name == 'lamb' else 1e-8))
    if name == 'adam':
      return tf.train.AdamOptimizer(learning_rate, **moments)
    if name == 'adamw':
      from towers.optimizers.adamw import AdamWOptimizer
      return AdamWOptimizer(learning_rate, weight_decay=weight_decay, **moments)
    from towers.optimizers.lamb import LAMBOptimizer
    return LAMBOptimizer(learning_rate, weight_decay=weight_decay, **moments)
  if name == 'lars':
    from towers.optimizers.lars import LARSOptimizer
    return LARSOptimizer(learning_rate, momentum, weight_decay=weight_decay)
  if name == 'rmsprop':
    return tf.train.RMSPropOptimizer(learning_rate, decay=rms_decay, momentum=momentum,
                                     epsilon=epsilon or 1.0)
  if name in ('momentum', 'nesterov'):
    return tf.train.MomentumOptimizer(learning_rate, momentum, use_nesterov=name == 'nesterov')
  return tf.train.GradientDescentOptimizer(learning_rate)
