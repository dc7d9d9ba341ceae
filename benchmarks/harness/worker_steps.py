"""A worker process of `benchmarks.workers`: takes steps of one kind, a requested number at a time.

Every kind trains the same nets from the same weights on the same examples: a worker's batches are
those of the plan of `towers`. Input comes from a tf.data pipeline that prefetches, and the loss of
each step is that of all workers, except for Horovod, whose users see their own. No kind saves,
writes summaries or shows progress.
"""

import faulthandler
import functools
import os
import sys
import tempfile
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np

from benchmarks.harness.task import draw_weights
from benchmarks.harness.turns import Turns, open_parent

IMAGE_SHAPE = (28, 28, 1)
NUM_CLASSES = 10
NUM_EXAMPLES = 4096
NUM_IDS = 20  # Of an example.
LEARNING_RATE = 0.01
MOMENTUM = 0.9
_TABLE = 'table'
_NO_END = 10 ** 9


class Layer(NamedTuple):
  """A 3x3 convolution followed by pooling, or a dense layer; all but the last have a ReLU.

  An embedding, whose table begins with zeros, is the mean of the rows of an example's ids.
  """
  kind: str
  units: int
  num_rows: int = 0


NETS: Dict[str, List[Layer]] = {
    'cnn': [Layer('conv', 16), Layer('conv', 32), Layer('dense', 64), Layer('dense', NUM_CLASSES)],
    'mlp': [Layer('dense', 128), Layer('dense', NUM_CLASSES)],
    **{name: [Layer('embedding', 64, num_rows), Layer('dense', NUM_CLASSES)]
       for name, num_rows in (('embedding_40k', 40000), ('embedding', 400000),
                              ('embedding_4m', 4000000))},
}


def load_examples(net: str) -> Any:
  """Returns the data set that all kinds train a net on."""
  from towers import data
  [first, *_] = NETS[net]
  if first.kind == 'embedding':
    random = np.random.RandomState(0)
    ids = random.randint(first.num_rows, size=[NUM_EXAMPLES, NUM_IDS]).astype(np.int32)
    train = data.from_arrays(ids, random.randint(NUM_CLASSES, size=NUM_EXAMPLES), name='train')
    return data.DataSet(train, train._replace(name='validation'), image_shape=(1, 1, NUM_IDS),
                        num_classes=NUM_CLASSES)
  return data.load_synthetic(image_shape=IMAGE_SHAPE, num_classes=NUM_CLASSES,
                             num_train=NUM_EXAMPLES)


def examples_of(net: str, rank: int, num_workers: int) -> Tuple[np.ndarray, ...]:
  """Returns a worker's examples in the order of its plan, see `towers.input.plan`."""
  return tuple(
      np.ascontiguousarray(array[rank::num_workers]) for array in load_examples(net).train.arrays)


def initial_weights(name: str, shape: Any) -> np.ndarray:
  """Returns the initial value of a variable, the same for all kinds."""
  return np.zeros(shape, np.float32) if len(shape) == 1 else draw_weights(name, shape)


def build_model(net: str) -> Any:
  """Returns a net as a `towers.Model`; Estimator's model function calls it too."""
  from models.layers import Layers, dense
  from towers.tensorflow_v1 import tf

  def from_initial_weights(getter, name, shape, **kwargs):
    if name == _TABLE:  # Too large for a constant.
      return getter(name, shape, **kwargs)
    values = initial_weights(name, tuple(shape))
    return getter(name, shape, **dict(kwargs, initializer=lambda *_, **__: tf.constant(values)))

  def model(batch, is_training):
    images, labels = batch
    layers = Layers(is_training)
    x = images if images.dtype == tf.int32 else layers.normalize(images)
    with tf.variable_scope('', custom_getter=from_initial_weights):
      for index, layer in enumerate(NETS[net]):
        if layer.kind == 'conv':
          x = layers.max_pool(layers.conv(x, layer.units, 3, name=f'layer{index}'))
        elif layer.kind == 'embedding':
          table = tf.get_variable(_TABLE, [layer.num_rows, layer.units],
                                  initializer=tf.zeros_initializer())
          x = tf.reduce_mean(tf.nn.embedding_lookup(table, x), 1)
        else:
          x = layers.flatten(x) if x.shape.ndims > 2 else x
          activation = tf.nn.relu if index < len(NETS[net]) - 1 else None
          x = dense(x, layer.units, name=f'layer{index}', activation=activation)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x), {}

  return model


def run_towers(turns: Turns, net: str, batch_size: int) -> None:
  """Takes steps of main.py's program: server, staging, guard, input wait and watch of peers."""
  from benchmarks.harness.program import open_program
  from towers.placement.cluster import read_cluster
  from towers.settings.config import Config

  cluster = read_cluster(os.environ)
  config = Config(model='linear', batch_size=batch_size * len(cluster.addresses),
                  learning_rate=LEARNING_RATE, momentum=MOMENTUM, schedule='constant',
                  validation='none', shuffle=False, last_batch='drop')
  with open_program(config, load_examples(net), num_towers=1, model=build_model(net),
                    cluster=cluster) as session:
    session.start()
    while turns.end_step(session.train()):
      pass


def run_estimator(turns: Turns, net: str, batch_size: int) -> None:
  """Takes steps of Estimator with MultiWorkerMirroredStrategy, of TensorFlow 1.14."""
  from benchmarks.peers.mirrored import build_update
  from towers.placement.cluster import read_cluster
  from towers.tensorflow_v1 import tf

  cluster = read_cluster(os.environ)
  arrays = examples_of(net, cluster.rank, len(cluster.addresses))
  strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy(
      tf.distribute.experimental.CollectiveCommunication.RING)

  def build(features, labels, mode):
    loss, train_op = build_update(build_model(net), (features, labels),
                                  tf.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM))
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

  def load():
    return tf.data.Dataset.from_tensor_slices(arrays).repeat().batch(
        batch_size, drop_remainder=True).prefetch(2)

  class Watch(tf.train.SessionRunHook):

    def before_run(self, run_context):
      return tf.train.SessionRunArgs(self._loss)

    def begin(self):
      # Estimator reduces it over all replicas, and adds it to this collection.
      self._loss = tf.get_collection(tf.GraphKeys.LOSSES)[-1]

    def after_run(self, run_context, run_values):
      if not turns.end_step(run_values.results):
        run_context.request_stop()

  with tempfile.TemporaryDirectory() as folder:
    config = tf.estimator.RunConfig(model_dir=folder, train_distribute=strategy,
                                    save_checkpoints_steps=_NO_END, save_summary_steps=_NO_END,
                                    log_step_count_steps=None)
    tf.estimator.train_and_evaluate(
        tf.estimator.Estimator(build, config=config),
        tf.estimator.TrainSpec(load, max_steps=_NO_END, hooks=[Watch()]),
        tf.estimator.EvalSpec(load))


def run_horovod(turns: Turns, net: str, batch_size: int, cycle_milliseconds: str = '') -> None:
  """Takes steps of Horovod's DistributedOptimizer, of TensorFlow 1.14."""
  from benchmarks.peers import horovod
  from towers.placement.cluster import read_cluster
  from towers.tensorflow_v1 import tf

  cluster = read_cluster(os.environ)
  horovod.run_horovod(turns, build_model(net), tf.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM),
                      examples_of(net, cluster.rank, len(cluster.addresses)), batch_size,
                      cluster=cluster, cycle_milliseconds=cycle_milliseconds)


def _open_keras(net, batch_size):
  """Returns TensorFlow in eager mode, the strategy, a function that builds the net, and the input.
  """
  # towers would turn eager mode off where it is imported after TensorFlow;
  # MultiWorkerMirroredStrategy needs Keras 2.
  os.environ['TF_USE_LEGACY_KERAS'] = '1'
  from towers.placement.cluster import read_cluster  # isort: skip

  import tensorflow as tf
  cluster = read_cluster(os.environ)
  arrays = examples_of(net, cluster.rank, len(cluster.addresses))
  options = tf.distribute.experimental.CommunicationOptions(
      implementation=tf.distribute.experimental.CommunicationImplementation.RING)
  strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

  def build():
    keras = tf.keras.layers
    if arrays[0].ndim == 2:
      model = tf.keras.Sequential([keras.InputLayer(arrays[0].shape[1:], dtype=tf.int32)])
    else:
      model = tf.keras.Sequential([keras.InputLayer(IMAGE_SHAPE), keras.Rescaling(1 / 255)])
    for index, layer in enumerate(NETS[net]):
      activation = 'relu' if index < len(NETS[net]) - 1 else None
      if layer.kind == 'conv':
        model.add(keras.Conv2D(layer.units, 3, padding='same', activation=activation))
        model.add(keras.MaxPool2D())
      elif layer.kind == 'embedding':
        model.add(keras.Embedding(layer.num_rows, layer.units, embeddings_initializer='zeros'))
        model.add(keras.GlobalAveragePooling1D())
      else:
        if len(model.output_shape) > 2:
          model.add(keras.Flatten())
        model.add(keras.Dense(layer.units, activation=activation))
    for index, layer in enumerate(layer for layer in model.layers if layer.count_params()):
      if isinstance(layer, keras.Embedding):
        continue
      layer.set_weights([initial_weights(f'layer{index}/{part}', weights.shape) for part, weights
                         in zip(('weights', 'biases'), layer.get_weights())])
    return model

  def load(_):
    return tf.data.Dataset.from_tensor_slices(arrays).repeat().batch(
        batch_size, drop_remainder=True).prefetch(2)

  return tf, strategy, build, strategy.distribute_datasets_from_function(load)


def run_loop(turns: Turns, net: str, batch_size: int) -> None:
  """Takes steps of a tf.function in a bare loop with MultiWorkerMirroredStrategy, TensorFlow 2."""
  tf, strategy, build, batches = _open_keras(net, batch_size)
  with strategy.scope():
    model = build()
    optimizer = tf.keras.optimizers.SGD(LEARNING_RATE, MOMENTUM)

  def replica(batch):
    images, labels = batch
    with tf.GradientTape() as tape:
      losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
      loss = tf.nn.compute_average_loss(
          losses, global_batch_size=batch_size * strategy.num_replicas_in_sync)
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

  @tf.function
  def step(iterator):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica, (next(iterator),)),
                           axis=None)

  iterator = iter(batches)
  while turns.end_step(step(iterator)):
    pass


KINDS: Dict[str, Callable[[Turns, str, int], None]] = {
    'towers': run_towers,
    'estimator': run_estimator,
    'horovod': run_horovod,
    'horovod 0.1 ms': functools.partial(run_horovod, cycle_milliseconds='0.1'),
    'loop': run_loop,
}


def main(arguments: List[str]) -> None:
  """Runs `KIND NET BATCH_SIZE STARTED LIMIT_SECONDS` as the worker that TF_CONFIG names."""
  kind, net, batch_size, started, limit_seconds = arguments
  # Collectives, and threads at the end of a process, never stop waiting for a lost worker.
  faulthandler.dump_traceback_later(float(limit_seconds), exit=True)
  with open_parent() as write:
    KINDS[kind](Turns(sys.stdin.readline, write, started=float(started)), net, int(batch_size))


if __name__ == '__main__':
  main(sys.argv[1:])
