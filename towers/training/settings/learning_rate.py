"""The learning rate, as a function of the examples seen: the same at an epoch for any batch and
number of towers.

  rate   ╱‾‾‾‾╲___     warm-up rises in a straight line from 0;
        ╱         ‾    the schedule multiplies it from the first example on
"""

import math
from typing import Any, Union

from tensorflow_v1 import tf
from towers.placement.host import HOST
from towers.training.settings.config import Config


def build_learning_rate(config: Config, *, examples_seen: Any, examples_per_epoch: int,
                        total_examples: int) -> Union[float, Any]:
  """Returns the rate of the next update: a float where it never changes, else a scalar float32
  tensor on the host.

  Args:
    config: schedule, warmup_epochs, decay_epochs, decay_rate and the peak.
    examples_seen: the int64 counter.
    examples_per_epoch: that a training epoch takes.
    total_examples: of the whole run, at which cosine reaches 0.
  """
  peak = config.peak_learning_rate()
  can_fall = config.on_nan == 'rollback'
  if config.schedule == 'constant' and not config.warmup_epochs and not can_fall:
    return peak
  with tf.device(HOST), tf.name_scope('learning_rate'):
    # float64 counts examples exactly where float32 ends at 16,777,216.
    seen = tf.cast(examples_seen.read_value(), tf.float64)
    epochs = seen / examples_per_epoch
    rate = peak * _decay(config, seen, epochs, total_examples)
    if config.warmup_epochs:
      rate *= tf.minimum(epochs / config.warmup_epochs, 1.0)
    if can_fall:
      rate *= tf.cast(get_rate_factor().read_value(), tf.float64)
    return tf.cast(rate, tf.float32)


def get_rate_factor() -> Any:
  """Returns the float32 factor of a run that went back, a variable; the history holds it, no
  checkpoint does.
  """
  for variable in tf.local_variables():
    if variable.op.name == 'rate_factor':
      return variable
  with tf.device(HOST), tf.name_scope(None), tf.init_scope():
    return tf.Variable(1.0, name='rate_factor', trainable=False, use_resource=True,
                       collections=[tf.GraphKeys.LOCAL_VARIABLES])


def _decay(config, seen, epochs, total_examples):
  """Returns the schedule's factor, a float64 tensor from 1 down."""
  if config.schedule == 'piecewise':
    falls = tf.reduce_sum(
        tf.cast(epochs >= tf.constant(config.decay_epochs, tf.float64), tf.float64))
    return tf.pow(tf.constant(config.decay_rate, tf.float64), falls)
  if config.schedule == 'exponential':
    return tf.pow(tf.constant(config.decay_rate, tf.float64), epochs / config.decay_epochs[0])
  if config.schedule == 'cosine':
    return 0.5 * (1.0 + tf.cos(math.pi * tf.minimum(seen / total_examples, 1.0)))
  return tf.ones([], tf.float64)
