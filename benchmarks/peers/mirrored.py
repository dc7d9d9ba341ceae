"""MirroredStrategy in graph mode, with a model's update as its users write it."""

import contextlib
from typing import Any, Callable, Optional, Tuple

from benchmarks.harness.task import Task


def run_mirrored(turns: Any, task: Task) -> None:
  """Takes steps of MirroredStrategy with its own input, which prefetches a batch per device."""
  from towers.tensorflow_v1 import tf

  def load(_):
    # Batches of one device, dealt out in turn: faster than `make_dataset_iterator`, which splits
    # global batches.
    dataset = tf.data.Dataset.from_tensor_slices(task.load_arrays()).repeat()
    return dataset.batch(task.batch_size, drop_remainder=True).prefetch(2)

  with contextlib.ExitStack() as opened:
    step, session = open_mirrored(opened, task.build_model(), load=load,
                                  num_towers=task.num_towers, kind=task.kind,
                                  optimizer=task.build_optimizer,
                                  session_config=task.build_session_config())
    turns.watch(session, tf.trainable_variables())
    while turns.end_step(step()):
      pass


def open_mirrored(opened: contextlib.ExitStack, model: Any, *, num_towers: int, kind: str = 'CPU',
                  optimizer: Callable[[], Any], load: Optional[Callable[[Any], Any]] = None,
                  make_batch: Optional[Callable[[], Any]] = None,
                  session_config: Optional[Any] = None) -> Tuple[Callable[[], Any], Any]:
  """Returns a function that takes a step and returns its loss, and the session.

  Batches of one tower come from the data set that `load` makes, or are those of `make_batch`.
  """
  from towers.tensorflow_v1 import tf

  # Virtual devices must be there before the strategy looks for them.
  config = session_config or tf.ConfigProto(device_count={'CPU': num_towers},
                                            use_per_session_threads=True)
  session = opened.enter_context(tf.Session(config=config))
  strategy = tf.distribute.MirroredStrategy(
      [f'/device:{kind}:{tower}' for tower in range(num_towers)])

  def replica(batch):
    # Outside Estimator the strategy sums gradients; the loss must divide by the global batch.
    loss, train_op = build_update(model, batch, optimizer(),
                                  global_batch_size=num_towers * batch[1].shape[0].value)
    with tf.control_dependencies([train_op]):
      return tf.identity(loss)

  with strategy.scope():
    if load:
      iterator = strategy.make_input_fn_iterator(load)
      start = iterator.initialize()
      losses = strategy.experimental_run(replica, iterator)
    else:
      assert make_batch, 'neither load nor make_batch'
      start = []
      run = getattr(strategy, 'run', None) or strategy.experimental_run_v2
      losses = run(lambda: replica(make_batch()))
    loss = strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
    init = tf.global_variables_initializer()
  session.run([init, start])
  return session.make_callable(loss), session


def build_update(model: Any, batch: Any, optimizer: Any, *,
                 global_batch_size: Optional[int] = None) -> Tuple[Any, Any]:
  """Returns the loss and the train op of a replica.

  The loss is the sum over its batch divided by `global_batch_size`, or the mean.
  """
  from towers.tensorflow_v1 import tf

  def own_averages(getter, *args, **kwargs):
    """Keeps a moving average per device and reads their mean, as Keras does here."""
    if kwargs.get('trainable') is False:
      kwargs.update(synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.MEAN)
    return getter(*args, **kwargs)

  with tf.variable_scope('', custom_getter=own_averages):
    losses, _ = model(batch, True)
  loss = tf.reduce_sum(losses) / global_batch_size if global_batch_size else tf.reduce_mean(losses)
  with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    return loss, optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
