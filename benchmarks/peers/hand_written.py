"""Towers written by hand: as fast as we could, and as TensorFlow's cifar10 tutorial writes them."""

from typing import Any, List

from benchmarks.harness.task import Task

# As in the tutorial.
_QUEUE_BATCHES_PER_TOWER = 2


def run_by_hand(turns: Any, task: Task) -> None:
  """Takes steps of a bare loop: a split batch and staging, but neither guard nor counters."""
  from towers.tensorflow_v1 import StagingArea, tf

  model, num_towers = task.build_model(), task.num_towers
  with tf.device('/cpu:0'):
    dataset = tf.data.Dataset.from_tensor_slices(task.load_arrays()).repeat()
    dataset = dataset.batch(task.global_batch_size, drop_remainder=True).prefetch(2)
    iterator = tf.data.make_initializable_iterator(dataset)
    parts = zip(*[tf.split(tensor, num_towers) for tensor in iterator.get_next()])
  puts, gradients, losses = [], [], []
  for tower, (part, device) in enumerate(zip(parts, task.devices)):
    with tf.device(device), tf.variable_scope(tf.get_variable_scope(), reuse=tower > 0):
      area = StagingArea([tensor.dtype for tensor in part], [tensor.shape for tensor in part])
      puts.append(area.put(part))
      loss = tf.reduce_mean(model(tuple(area.get()), True)[0])
      losses.append(loss)
      gradients.append(tf.gradients(loss, tf.trainable_variables()))
  reduced = [average(shares) for shares in zip(*gradients)]
  update = task.build_optimizer().apply_gradients(zip(reduced, tf.trainable_variables()))
  loss = average(losses)
  with tf.Session(config=task.build_session_config()) as session:
    session.run([tf.global_variables_initializer(), iterator.initializer])
    session.run(puts)
    call = session.make_callable([loss, update] + puts + first_updates(num_towers))
    turns.watch(session, tf.trainable_variables())
    while turns.end_step(call()[0]):
      pass


def run_recipe(turns: Any, task: Task) -> None:
  """Takes steps of the cifar10 tutorial: a queue of batches, weights on the CPU, `Session.run`.

  The moving average of all weights is left out, because no other kind computes it. The tutorial
  prints the last tower's loss; here it is the mean over towers, so that it can be compared.
  """
  from towers.tensorflow_v1 import tf

  model, num_towers = task.build_model(), task.num_towers
  with tf.device('/cpu:0'):
    dataset = tf.data.Dataset.from_tensor_slices(task.load_arrays()).repeat()
    iterator = tf.data.make_initializable_iterator(
        dataset.batch(task.batch_size, drop_remainder=True))
    batch = iterator.get_next()
    # What slim's prefetch_queue does; TensorFlow 2 has no slim.
    queue = tf.FIFOQueue(_QUEUE_BATCHES_PER_TOWER * num_towers, [part.dtype for part in batch],
                         [part.shape for part in batch])
    tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(batch)]))
    optimizer = task.build_optimizer()
    losses, gradients = [], []
    for tower in range(num_towers):
      with tf.device(f'/cpu:{tower}'), tf.name_scope(f'tower_{tower}'), \
          tf.variable_scope(tf.get_variable_scope(), reuse=tower > 0):
        loss = tf.reduce_mean(model(tuple(queue.dequeue()), True)[0])
        losses.append(loss)
        gradients.append(optimizer.compute_gradients(loss))
    update = optimizer.apply_gradients(_average_gradients(gradients))
    loss = average(losses)
  with tf.Session(config=task.build_session_config()) as session:
    session.run([tf.global_variables_initializer(), iterator.initializer])
    coordinator = tf.train.Coordinator()
    tf.train.start_queue_runners(session, coordinator)
    fetches = [update, loss] + first_updates(num_towers)
    turns.watch(session, tf.trainable_variables())
    while turns.end_step(session.run(fetches)[1]):
      pass
    coordinator.request_stop()
    session.run(queue.close(cancel_pending_enqueues=True))


def average(shares: Any) -> Any:
  """Returns the mean over towers."""
  from towers.tensorflow_v1 import tf
  return tf.add_n(list(shares)) / len(shares)


def first_updates(num_towers: int) -> List[Any]:
  """Returns the first tower's updates of moving averages: UPDATE_OPS lists tower by tower."""
  from towers.tensorflow_v1 import tf
  updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
  return updates[:len(updates) // num_towers]


def _average_gradients(tower_gradients):
  """Averages as the tutorial's function of this name does."""
  from towers.tensorflow_v1 import tf
  reduced = []
  for shares in zip(*tower_gradients):
    stacked = tf.concat([tf.expand_dims(gradient, 0) for gradient, _ in shares], 0)
    reduced.append((tf.reduce_mean(stacked, 0), shares[0][1]))
  return reduced
