"""A small program for the laws: random features, a two-layer model, the whole straight line."""

import contextlib
import itertools
import time
import types

import numpy as np
import pytest

import towers
from towers.checkpoint.restore import Data
from towers.cli.jobs import build_configured
from towers.data import DataSet
from towers.data.digest import take_digest
from towers.input.pipeline import fill_empty
from towers.placement.counters import get_examples_seen, get_global_step
from towers.placement.devices import build_session_config
from towers.placement.workers import Workers
from towers.process.startup import Startup
from towers.settings.config import Config
from towers.tensorflow_v1 import tf

MODES = ('split', 'next', 'shard')
TOWERS = (1, 2, 3, 4, 8)
DEPTHS = (0, 1, 2)
PLACEMENTS = ('host', 'first', 'balanced', 'replicated')

NUM_FEATURES = 5
NUM_CLASSES = 3


def covering_grid(*axes):
  """Returns a third of a grid that covers every combination of values of all axes but one.

  Each axis has at least three values. A point belongs to it if the indices of its values add up to
  a multiple of 3.
  """
  assert all(len(axis) >= 3 for axis in axes)
  return [tuple(value for _, value in point) for point in itertools.product(*map(enumerate, axes))
          if sum(index for index, _ in point) % 3 == 0]


def diagonal(*axes):
  """Returns as many points as the longest axis has values, with every value of every axis."""
  return [tuple(axis[index % len(axis)] for axis in axes) for index in range(max(map(len, axes)))]


def nightly_but(chosen, points):
  """Returns points, or values of one parameter, all marked nightly except those of `chosen`."""
  points = list(points)
  assert all(point in points for point in chosen)
  return [pytest.param(*(point if isinstance(point, tuple) else [point]),
                       marks=() if point in chosen else pytest.mark.nightly) for point in points]


def id_examples(num_examples, name='train'):
  """Examples that are their own indices."""
  return towers.Examples(num_examples=num_examples, name=name)


def element_examples(num_examples, name='train', shuffle_buffer=0):
  """The same of elements without random access."""
  return towers.Examples(num_examples=num_examples, name=name, shuffle_buffer=shuffle_buffer,
                         elements=lambda: tf.data.Dataset.range(num_examples))


def random_examples(num_examples, name='train', seed=0):
  """Examples of `(features [5], label)`."""
  random = np.random.RandomState(seed)
  features = random.randn(num_examples, NUM_FEATURES).astype(np.float32)
  labels = random.randint(NUM_CLASSES, size=num_examples).astype(np.int32)
  return towers.Examples(
      num_examples=num_examples,
      parse_batch=lambda indices, *arrays: tuple(tf.gather(array, indices) for array in arrays),
      arrays=(features, labels), name=name, is_gathered=True)


def model(batch, is_training):
  """Softmax regression over a hidden layer; per-example losses and one metric."""
  del is_training
  features, labels = batch
  hidden = tf.tanh(dense(features, 4, 'hidden'))
  logits = dense(hidden, NUM_CLASSES, 'logits')
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  return losses, {'accuracy': tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)}


def with_losses(change):
  """Returns the small model with other losses, `change(losses)`."""
  def changed(batch, is_training):
    losses, metrics = model(batch, is_training)
    return change(losses), metrics

  return changed


def classify(x, labels):
  """Returns the losses of a last layer on activations, which may be of half precision."""
  return tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=labels, logits=tf.cast(dense(x, NUM_CLASSES, 'logits'), tf.float32))


def fill_with_nan(batches, counts):
  """In place of `fill_empty`, fills empty towers with NaN, and with 0 where that is no float.

  Without it NaN comes from rows of zeros alone, which a tower has where no other has an example.
  """
  def fill(tensor, count):
    number = np.nan if tensor.dtype.is_floating else 0
    return tf.where(count > 0, tensor, tf.fill(tf.shape(tensor), tf.cast(number, tensor.dtype)))

  return [tf.nest.map_structure(lambda tensor, count=count: fill(tensor, count), tensors)
          for tensors, count in zip(fill_empty(batches, counts), counts)]


def dense(inputs, size, name):
  with tf.variable_scope(name):
    weights = tf.get_variable('weights', [inputs.shape[1], size])
    biases = tf.get_variable('biases', [size], initializer=tf.zeros_initializer())
    return tf.matmul(inputs, weights) + biases


def program(model=model, *, num_towers=2, train=None, optimizer=None, **settings):
  """A `towers.Program` in a graph of its own, by default on 13 random examples and 11 others."""
  with tf.Graph().as_default():
    return towers.Program(
        model, num_towers=num_towers, device='cpu', train=train or random_examples(13),
        optimizer=optimizer or tf.train.MomentumOptimizer(0.1, 0.9),
        **dict(dict(batch_size=8, shuffle=False,
                    validation=random_examples(11, 'validation', seed=1)), **settings))


class Recorder(towers.Callback):
  """Keeps losses and validations of the steps that count, ways back, and how a run has ended."""

  def __init__(self):
    self.losses, self.validations, self.rewinds, self.calls = [], [], [], []

  def on_step(self, run):
    self.losses.append(run.loss)

  def on_validation(self, run):
    self.validations.append((run.validation_step, run.validation))

  def on_rewind(self, run):
    self.rewinds.append((len(self.losses), run.step))
    del self.losses[run.step:]
    self.validations = [pair for pair in self.validations if pair[0] <= run.step]

  def on_end(self, run):
    self.calls.append(run.result['global_step'])

  def on_close(self, run):
    self.calls.append('close')


# Of `towers.train`: no two things happen after the same step but at the end.
CURVES = dict(steps=12, validate_every='5steps', checkpoint_every='4steps', summary_every='3steps')


class Killed(BaseException):
  """Ends a run as `kill -9` would: it saves nothing any more."""


def killing(last):
  """Returns a callback that kills the run after a step."""
  def kill(step, loss):
    if step == last:
      raise Killed

  return kill


def data_of(program):
  """Returns what checkpoints of a program record of its examples."""
  return Data(take_digest(program.train_examples), program.plan, program.feed.inputs.order)


def read_checkpoint(folder):
  """Returns the tensors of a folder's newest checkpoint by name."""
  reader = tf.train.load_checkpoint(str(folder))
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def read_variables(program, session):
  """Returns the global variables of a program, or of a `Run`, by name."""
  with program.graph.as_default():
    return session.run({variable.op.name: variable for variable in tf.global_variables()})


class _Member:
  """Stands in for a worker that has met the others, which the tests call at once."""

  def __init__(self, run, rank, share):
    self._run = run
    self.cluster = types.SimpleNamespace(is_chief=rank == 0)
    self.peers = types.SimpleNamespace(explain=lambda error: None, stop=lambda: None, share=share)

  def compare_graphs(self, *_):
    pass

  def open_session(self):
    return tf.Session(self._run.target, config=self._run.session_config)


class Run:
  """The program of `main.py` on `num_towers` virtual CPU devices, in an open session."""

  def __init__(self, *, mode='split', num_towers=2, depth=1, placement='host', train=None,
               validation=None, validates=False, model=model, shuffle=False, validation_tower=False,
               rank=0, num_workers=1, serve=None, share=None, make_model=None, **settings):
    """Opens the program, by default on 13 random examples.

    Args:
      mode, depth, placement: `input_mode`, `staging_depth` and `variables` of Config.
      validation: the split, by default 11 random examples.
      validates: whether it validates by the switch, which costs a third of the graph, as it does
        where `validation` is given; with `validation_tower` the last tower validates.
      serve: for one of several workers, returns the target for a session's config.
      share: for one of several workers, see `Peers.share`.
      make_model: returns the model, whose variables it makes before the program; None for `model`.
      **settings: of Config.
    """
    settings = dict(dict(batch_size=8, learning_rate=0.1, schedule='constant'), **settings)
    self.config = config = Config(
        input_mode=mode, staging_depth=depth, variables=placement, shuffle=shuffle,
        validation='switch' if validates or validation or validation_tower else 'none',
        validation_tower=validation_tower, num_towers=num_towers, device='cpu', **settings)
    data_set = DataSet(train or random_examples(13),
                       validation or random_examples(11, 'validation', seed=1),
                       image_shape=(1, 1, NUM_FEATURES), num_classes=NUM_CLASSES)
    self.graph = tf.Graph()
    with self.graph.as_default():
      model = make_model() if make_model else model
      workers = Workers(num_workers, rank)
      self.program = build_configured(config, model, data_set, workers)
      if config.keeps_curves:
        self.program.build_gradient_norm()
      self.session_config = build_session_config(
          self.program.devices, workers=workers, needs_threads=self.program.needs_threads)
    self.target = serve(self.session_config) if serve else ''
    self.opened = towers.Session(self.program)
    self._closing = contextlib.ExitStack()
    self._closing.enter_context(self.opened.opened(
        Startup(time.monotonic()), _Member(self, rank, share) if num_workers > 1 else None))
    # For a look at the inside of a session, of which it knows nothing.
    self.engine = self.opened._engine
    self.session = self.engine.session
    self.table = ''
    if self.program.warm_start and rank == 0:
      self.table = self.program.warm_start.start(self.session)
    self.initial_weights = self.weights()

  def __enter__(self):
    self.opened.start()
    return self

  def __exit__(self, *error):
    self._closing.__exit__(*error)

  def close(self):
    self._closing.close()

  def train(self, steps=1):
    """Takes steps as a user's session does; returns the loss of the last."""
    for _ in range(steps):
      loss = self.opened.train()
    return loss

  def weights(self):
    with self.graph.as_default():
      return dict(zip([variable.op.name for variable in tf.trainable_variables()],
                      self.session.run(tf.trainable_variables())))

  def variables(self):
    """Returns all global variables by name."""
    return read_variables(self, self.session)

  def averages(self):
    """Returns the averages of a run with `average_weights`, by the names of the weights."""
    variables = self.program.averages.variables
    return dict(zip(variables, self.session.run(list(variables.values()))))

  def counters(self):
    with self.graph.as_default():
      return self.session.run([get_global_step(), get_examples_seen()])

  def validate(self):
    """Returns the metrics' means over the validation split, and the number of examples."""
    validation_pass = self.opened.begin_validation()
    self.opened.finish_validation(validation_pass)
    return validation_pass.means(), validation_pass.num_examples


def assert_moved(initial, weights, at_least=1e-3):
  """Asserts that all weights moved: towers that train nothing would agree as well."""
  for name, value in weights.items():
    assert abs(value - initial[name]).max() > at_least, name


def assert_same_weights(left, right, tolerance=1e-5):
  assert sorted(left) == sorted(right)
  for name, value in left.items():
    np.testing.assert_allclose(value, right[name], rtol=0, atol=tolerance, err_msg=name)
