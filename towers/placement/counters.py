"""Counters: weight updates and training examples, which schedules, checkpoints and progress read.

`global_step` counts weight updates, `examples_seen` the examples that they were computed from.
Schedules read the latter, so that the rate at an epoch does not depend on the batch or the number
of towers.
"""

from typing import Any

from tensorflow_v1 import tf
from towers.placement.host import HOST


def get_global_step() -> Any:
  """Returns the int64 variable that counts weight updates; made on the host when first asked for.
  """
  with tf.device(HOST):
    return tf.train.get_or_create_global_step()


def get_examples_seen() -> Any:
  """Returns the int64 variable that counts training examples; made on the host when first asked
  for.
  """
  for variable in tf.global_variables():
    if variable.op.name == 'examples_seen':
      return variable
  with tf.device(HOST), tf.name_scope(None), tf.init_scope():
    return tf.Variable(tf.zeros([], tf.int64), name='examples_seen', trainable=False,
                       use_resource=True)
