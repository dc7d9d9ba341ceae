"""MirroredStrategy in graph mode, as a user of it writes a model's update, to be measured beside ours."""

import contextlib
from typing import Any, Callable, Tuple


def open_mirrored(opened: contextlib.ExitStack, model: Any, *, image_shape: Tuple[int, ...], dtype: str,
                  batch_size: int, num_towers: int, optimizer: Callable[[], Any]) -> Tuple[Callable[[], Any], Any]:
  """Returns what takes a step and returns its loss, and the session that it runs in; the batch is constant.

  Args:
    opened: closes the session.
    model: towers.Model.
    image_shape: of the images.
    dtype: of the images.
    batch_size: of each tower.
    num_towers: on virtual CPU devices.
    optimizer: makes the optimizer.
  """
  from tensorflow_v1 import tf

  # Virtual devices must be there before the strategy looks for them.
  session = opened.enter_context(tf.Session(config=tf.ConfigProto(
      device_count={'CPU': num_towers}, use_per_session_threads=True)))
  strategy = tf.distribute.MirroredStrategy(['/device:CPU:%d' % tower for tower in range(num_towers)])

  def replica():
    batch = tf.zeros((batch_size,) + image_shape, dtype), tf.zeros([batch_size], tf.int32)
    loss, train_op = build_update(model, batch, optimizer())
    with tf.control_dependencies([train_op]):
      return tf.identity(loss)

  with strategy.scope():
    run = getattr(strategy, 'run', None) or strategy.experimental_run_v2
    loss = strategy.reduce(tf.distribute.ReduceOp.MEAN, run(replica), axis=None)
    init = tf.global_variables_initializer()
  session.run(init)
  return session.make_callable(loss), session


def build_update(model: Any, batch: Any, optimizer: Any) -> Tuple[Any, Any]:
  """Returns the loss and the train op of a replica."""
  from tensorflow_v1 import tf

  def own_averages(getter, *args, **kwargs):
    """As Keras makes moving averages for this strategy: each device its own, the mean of them when they are read."""
    if kwargs.get('trainable') is False:
      kwargs.update(synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.MEAN)
    return getter(*args, **kwargs)

  with tf.variable_scope('', custom_getter=own_averages):
    losses, _ = model(batch, True)
  loss = tf.reduce_mean(losses)
  with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    return loss, optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
