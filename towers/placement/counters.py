"""Counters: weight updates and training examples, for schedules, checkpoints and progress.

`global_step` counts weight updates, `examples_seen` the examples in them. Schedules read
`examples_seen`, so that an epoch's learning rate depends on neither batch size nor towers.
"""

import contextlib
from typing import Any, Iterator

from towers.base.usage_error import UsageError
from towers.placement.host import HOST
from towers.tensorflow_v1 import Variable, tf


def get_global_step() -> Variable:
  """Returns the int64 variable that counts weight updates; the first call makes it, on the host."""
  root = tf.VariableScope(reuse=False)  # A model may ask for it within another.
  try:
    with tf.device(HOST), tf.variable_scope(root, auxiliary_name_scope=False):
      return tf.train.get_or_create_global_step()
  except TypeError:
    raise UsageError('The program made a variable of the name global_step by itself: write '
                     'tf.train.get_or_create_global_step(), which each step adds 1 to.') from None


@contextlib.contextmanager
def counted_by(step: Variable) -> Iterator[None]:
  """Opens a context in which another variable is the global step, also for a model."""
  steps = tf.get_collection_ref(tf.GraphKeys.GLOBAL_STEP)
  before, steps[:] = list(steps), [step]
  try:
    yield
  finally:
    steps[:] = before


def get_examples_seen() -> Variable:
  """Returns the int64 variable that counts examples; the first call makes it, on the host."""
  return get_scalar('examples_seen', 0, tf.int64, tf.GraphKeys.GLOBAL_VARIABLES)


def get_micro_batch_in_step() -> Variable:
  """Returns the int64 variable that counts the micro-batches of a step; it is not checkpointed."""
  return get_scalar('micro_batch_in_step', 0, tf.int64, tf.GraphKeys.LOCAL_VARIABLES)


def get_scalar(name: str, value: Any, dtype: tf.DType, collection: str) -> Variable:
  """Returns the untrained variable of this name in a collection; the first call makes it."""
  for variable in tf.get_collection(collection):
    if variable.op.name == name:
      return variable
  with tf.device(HOST), tf.name_scope(None), tf.init_scope():
    return tf.Variable(value, name=name, dtype=dtype, trainable=False, use_resource=True,
                       collections=[collection])
