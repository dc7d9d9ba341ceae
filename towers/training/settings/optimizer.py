"""The optimizers that a flag can name."""

from typing import Any, Union

from tensorflow_v1 import tf


def build_optimizer(name: str, learning_rate: Union[float, Any], *, momentum: float = 0.9) -> Any:
  """Returns a `tf.train.Optimizer`, whose slots live beside their variables.

  Args:
    name: 'sgd', 'momentum' or 'adam'.
    learning_rate: a float or a scalar float32 tensor.
    momentum: for 'momentum' alone.
  """
  if name == 'adam':
    return tf.train.AdamOptimizer(learning_rate)
  if name == 'momentum':
    return tf.train.MomentumOptimizer(learning_rate, momentum)
  return tf.train.GradientDescentOptimizer(learning_rate)
