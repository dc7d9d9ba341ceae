"""The learning rate as a function of the examples seen: equal at an epoch for any batch and towers.

  rate   ╱‾‾‾‾╲___     warm-up rises in a straight line from 0;
        ╱         ‾    the schedule multiplies it from the first example on
"""

import math
from typing import Any, Sequence, Union

from tensorflow_v1 import tf
from towers.placement.host import HOST


def build_learning_rate(peak: float, *, schedule: str, examples_seen: Any, examples_per_epoch: int,
                        total_examples: int, warmup_epochs: float = 0.0,
                        decay_epochs: Sequence[float] = (), decay_rate: float = 0.1,
                        minimum: float = 0.0, can_fall: bool = False) -> Union[float, Any]:
  """Returns the rate of the next update: a float if it never changes, else a scalar tensor.

  The tensor is float32, on the host.

  Args:
    peak: the rate after warm-up and before any decay.
    schedule: 'constant', 'piecewise', 'exponential' or 'cosine'.
    examples_seen: the int64 counter.
    examples_per_epoch: the examples that a training epoch takes.
    total_examples: of the whole run, at which cosine reaches `minimum`.
    warmup_epochs: epochs in which the rate rises from 0.
    decay_epochs: for piecewise, the epochs at which the rate falls; for exponential, one number,
      the epochs in which it falls by `decay_rate`.
    decay_rate: the factor of each fall.
    minimum: at which cosine ends, and below which the other schedules do not fall.
    can_fall: whether `get_rate_factor` multiplies the rate, for runs that roll back.
  """
  if schedule == 'constant' and not warmup_epochs and not can_fall:
    return peak
  with tf.device(HOST), tf.name_scope('learning_rate'):
    # float64 counts examples exactly where float32 ends at 16,777,216.
    seen = tf.cast(examples_seen.read_value(), tf.float64)
    epochs = seen / examples_per_epoch

    if schedule == 'piecewise':
      falls = tf.reduce_sum(tf.cast(epochs >= tf.constant(decay_epochs, tf.float64), tf.float64))
      factor = tf.pow(tf.constant(decay_rate, tf.float64), falls)
    elif schedule == 'exponential':
      factor = tf.pow(tf.constant(decay_rate, tf.float64), epochs / decay_epochs[0])
    elif schedule == 'cosine':
      factor = 0.5 * (1.0 + tf.cos(math.pi * tf.minimum(seen / total_examples, 1.0)))
    else:
      factor = tf.ones([], tf.float64)

    if schedule == 'cosine':
      rate = minimum + (peak - minimum) * factor
    else:
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
  for variable in tf.local_variables():
    if variable.op.name == 'rate_factor':
      return variable
  with tf.device(HOST), tf.name_scope(None), tf.init_scope():
    return tf.Variable(1.0, name='rate_factor', trainable=False, use_resource=True,
                       collections=[tf.GraphKeys.LOCAL_VARIABLES])
