"""The learning rate as a function of the examples seen: equal at an epoch for any batch and towers.

  rate   ╱‾‾‾‾╲___     warm-up rises in a straight line from 0;
        ╱         ‾    the schedule multiplies it from the first example on
"""

import math
from typing import Any, Union

from towers.input.plan import Plan
from towers.placement.counters import get_scalar
from towers.placement.host import HOST
from towers.tensorflow_v1 import tf


def build_learning_rate(config: Any, plan: Plan, examples_seen: Any) -> Union[float, Any]:
  """Returns the rate of the next update: a float if it never changes, else a float32 scalar.

  The tensor is on the host. `get_rate_factor` multiplies it in runs that roll back.
  """
  schedule, warmup_epochs, can_fall = (
      config.schedule, config.warmup_epochs, config.on_nan == 'rollback')
  peak, minimum = config.peak_learning_rate(), config.min_rate
  if schedule == 'constant' and not warmup_epochs and not can_fall:
    return peak
  with tf.device(HOST), tf.name_scope('learning_rate'):
    # float64 counts examples exactly where float32 ends at 16,777,216.
    seen = tf.cast(examples_seen.read_value(), tf.float64)
    epochs = seen / plan.examples_per_epoch

    if schedule == 'cosine':
      total_examples = plan.examples_before(config.count_steps(plan))
      factor = 0.5 * (1.0 + tf.cos(math.pi * tf.minimum(seen / total_examples, 1.0)))
      rate = minimum + (peak - minimum) * factor
    else:
      falls = tf.zeros([], tf.float64)
      if schedule == 'piecewise':
        reached = epochs >= tf.constant(config.decay_epochs, tf.float64)
        falls = tf.reduce_sum(tf.cast(reached, tf.float64))
      elif schedule == 'exponential':
        falls = epochs / config.decay_epochs[0]
      factor = tf.pow(tf.constant(config.decay_rate, tf.float64), falls)
      rate = tf.maximum(peak * factor, minimum)
    if warmup_epochs:
      rate *= tf.minimum(epochs / warmup_epochs, 1.0)
    if can_fall:
      rate *= tf.cast(get_rate_factor().read_value(), tf.float64)
    return tf.cast(rate, tf.float32)


def get_rate_factor() -> Any:
  """Returns the variable that lowers the rate after rollbacks, a float32 scalar.

  It is local: checkpoints leave it out, and the history of the run restores it.
  """
  return get_scalar('rate_factor', 1.0, tf.float32, tf.GraphKeys.LOCAL_VARIABLES)
