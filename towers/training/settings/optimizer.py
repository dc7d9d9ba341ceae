"""The optimizer that a config names."""

from typing import Any, Union

from tensorflow_v1 import tf
from towers.training.settings.config import Config


def build_optimizer(config: Config, learning_rate: Union[float, Any]) -> Any:
  """Returns a `tf.train.Optimizer`; its slots stand with their variables, wherever those are
  placed.
  """
  if config.optimizer == 'adam':
    return tf.train.AdamOptimizer(learning_rate)
  if config.optimizer == 'momentum':
    return tf.train.MomentumOptimizer(learning_rate, config.momentum)
  return tf.train.GradientDescentOptimizer(learning_rate)
