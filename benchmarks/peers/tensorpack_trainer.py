"""Tensorpack's synchronous trainer, on virtual CPU devices.

It takes `TFDatasetInput`, and only the callback that updates moving averages. Two things differ
from tensorpack as it ships, to make it comparable. It uses resource variables, like everything that
imports `towers.tensorflow_v1`: with ref variables, its own choice, an update races with the reads
of other towers. And a device function turns the GPUs that its trainers name into CPUs.
"""

import importlib.util
from typing import Any, Callable, List, Tuple

from benchmarks.harness.task import NETS, Task
from benchmarks.peers.hand_written import average

_NO_END = 10 ** 9


class NotInstalled(Exception):
  """Tensorpack is not installed."""


def run_tensorpack(turns: Any, task: Task) -> None:
  """Takes steps with as few callbacks as possible, and the session config of the other kinds."""
  tf, tensorpack = _load()
  dataset = tf.data.Dataset.from_tensor_slices(task.load_arrays()).repeat()
  dataset = dataset.batch(task.batch_size, drop_remainder=True).prefetch(2)
  with tf.device(_on_cpus):
    trainer, losses = _build(tensorpack, task, tensorpack.TFDatasetInput(dataset))
    new_session = tensorpack.tfutils.sesscreate.NewSessionCreator(
        config=task.build_session_config())
    trainer.train(callbacks=[_make_watch(tensorpack, turns, losses), tensorpack.RunUpdateOps()],
                  monitors=[], session_creator=new_session,
                  session_init=tensorpack.tfutils.JustCurrentSession(),
                  steps_per_epoch=_NO_END, max_epoch=1)


def _load():
  """Returns TensorFlow and tensorpack, which must be imported after it."""
  if importlib.util.find_spec('tensorpack') is None:
    raise NotInstalled('tensorpack is not installed')
  from towers.tensorflow_v1 import tf
  try:
    import tensorpack
    import tensorpack.tfutils.sesscreate
  except ImportError as error:
    raise NotInstalled(f'tensorpack cannot be imported here: {error}') from None
  return tf, tensorpack


def _build(tensorpack: Any, task: Task, source: Any) -> Tuple[Any, List[Any]]:
  """Returns the trainer, with its graph, and the loss of each tower."""
  from towers.tensorflow_v1 import tf
  model, losses = task.build_model(), []

  def get_cost(*batch):
    losses.append(tf.reduce_mean(model(batch, NETS[task.net].is_training)[0]))
    return losses[-1]

  trainer = (tensorpack.SyncMultiGPUTrainer(task.num_towers)
             if task.num_towers > 1 else tensorpack.SimpleTrainer())
  images, labels = task.load_arrays()
  trainer.setup_graph([
      tf.TensorSpec((task.batch_size,) + array.shape[1:], tf.as_dtype(array.dtype), name)
      for array, name in ((images, 'images'), (labels, 'labels'))
  ], source, get_cost, task.build_optimizer)
  return trainer, losses


def _on_cpus(op: Any) -> str:
  """Returns an op's device, with the CPU of the same index in place of a GPU."""
  return op.device.replace('/device:GPU:', '/device:CPU:')


def _make_watch(tensorpack: Any, turns: Any, losses: List[Any]) -> Any:
  """Returns the callback that fetches the mean loss of each step and waits between requests."""
  from towers.tensorflow_v1 import tf

  class Watch(tensorpack.Callback):

    def _setup_graph(self):
      self._fetches: Callable[[], Any] = tf.train.SessionRunArgs(average(losses))

    def _before_train(self):
      turns.watch(self.trainer.sess, tf.trainable_variables())

    def _before_run(self, context):
      return self._fetches

    def _after_run(self, context, values):
      if not turns.end_step(values.results):
        context.request_stop()

  return Watch()
