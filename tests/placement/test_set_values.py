"""All towers start from values that Keras loads while a model is built, or an error names them."""

import gc
import weakref

import numpy as np
import pytest

from models.keras_model import KerasModel
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.input.batch import Batch
from towers.placement.replicas import REPLICAS
from towers.placement.variables import VariableStore
from towers.tensorflow_v1 import load_keras, tf
from towers.tower.towers import build_towers

keras = load_keras()
LOSS = 'sparse_categorical_crossentropy'
IS_1 = tf.__version__.startswith('1.')


def make_layers():
  inputs = keras.layers.Input([small.NUM_FEATURES])
  hidden = keras.layers.Dense(4, activation='tanh', name='hidden')(inputs)
  logits = keras.layers.Dense(small.NUM_CLASSES, activation='softmax', name='logits')
  return keras.Model(inputs, logits(hidden))


class Subclassed(keras.Model):
  """Makes its variables when it is called."""

  def __init__(self):
    super().__init__(name='subclassed')
    self.hidden = keras.layers.Dense(4, activation='tanh', name='hidden')
    self.logits = keras.layers.Dense(small.NUM_CLASSES, activation='softmax', name='logits')

  def call(self, inputs):
    return self.logits(self.hidden(inputs))


def weights():
  random = np.random.RandomState(3)
  return [random.randn(*shape).astype(np.float32) for shape in (
      (small.NUM_FEATURES, 4), (4,), (4, small.NUM_CLASSES), (small.NUM_CLASSES,))]


def first_loss():
  """Returns the mean loss over the first 8 examples, by numpy."""
  features, labels = (array[:8] for array in small.random_examples(13).arrays)
  kernel, bias, last_kernel, last_bias = weights()
  outputs = np.exp(np.tanh(features @ kernel + bias) @ last_kernel + last_bias)
  probabilities = outputs / outputs.sum(1, keepdims=True)
  return -np.log(probabilities[np.arange(8), labels]).mean()


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """A folder with the weights in all of Keras's formats."""
  folder = tmp_path_factory.mktemp('weights')
  with tf.Graph().as_default(), tf.Session():
    layers = make_layers()
    layers.set_weights(weights())
    layers.save_weights(str(folder / 'weights.h5'))
    layers.save(str(folder / 'model.h5'))
    if not IS_1:  # Which refuses to, in graph mode.
      layers.save(str(folder / 'saved'), save_format='tf')
  with tf.Graph().as_default(), tf.Session():
    layers = Subclassed()
    layers(tf.zeros([1, small.NUM_FEATURES]))
    layers.set_weights(weights())
    layers.save_weights(str(folder / 'checkpoint'), save_format='tf')
  return folder


def loaded(make, load):
  layers = make()
  load(layers)
  return layers


WAYS = {
    'h5': lambda files: loaded(
        make_layers, lambda layers: layers.load_weights(str(files / 'weights.h5'))),
    'set': lambda files: loaded(make_layers, lambda layers: layers.set_weights(weights())),
    'checkpoint': lambda files: loaded(
        Subclassed, lambda layers: layers.load_weights(str(files / 'checkpoint'))),
    'model': lambda files: keras.models.load_model(str(files / 'model.h5'), compile=False),
    'layers': lambda files: keras.Sequential([
        keras.layers.Dense(4, activation='tanh', weights=weights()[:2]),
        keras.layers.Dense(small.NUM_CLASSES, activation='softmax', weights=weights()[2:])]),
    'another': lambda files: loaded(make_layers, lambda layers: layers.set_weights(
        WAYS['h5'](files).get_weights()))}
if not IS_1:
  WAYS['saved'] = lambda files: keras.models.load_model(str(files / 'saved'), compile=False)


@pytest.mark.nightly(but='h5-3-balanced-clone')
@pytest.mark.parametrize('way, num_towers, placement, build', [
    *[(way, 2, 'host', 'reuse') for way in WAYS], ('h5', 1, 'first', 'reuse'),
    ('h5', 3, 'balanced', 'clone'), ('h5', 2, 'replicated', 'clone'), ('h5', 8, 'host', 'reuse')])
def test_values_arrive_on_every_tower_whatever_the_format(way, num_towers, placement, build, files):
  model = KerasModel(lambda: WAYS[way](files), loss=LOSS)
  with small.Run(model=model, num_towers=num_towers, placement=placement, tower_build=build) as run:
    with run.graph.as_default():
      copies = {variable.op.name: run.session.run(variable)
                for variable in tf.get_collection(REPLICAS)}
      values = run.session.run([variable.value() for variable in model.layers.weights])
    assert len(copies) >= 4 * (num_towers - 1) * (placement == 'replicated')
    for value, expected, variable in zip(values, weights(), model.layers.weights):
      np.testing.assert_array_equal(value, expected)
      for name, copy in copies.items():
        if name.endswith('/' + variable.op.name):
          np.testing.assert_array_equal(copy, expected)
    # Beside an open session the function is called again, in graphs of their own.
    with run.opened.as_default():
      features, labels = small.random_examples(5).arrays
      likely = run.opened.predict(features, model.predict)[np.arange(5), labels]
      assert run.opened.evaluate((features, labels))['loss'] == pytest.approx(
          -np.log(likely).mean(), abs=1e-5)
    assert run.train() == pytest.approx(first_loss(), abs=1e-5)


def test_a_layer_that_is_called_in_a_model_function_keeps_its_weights():
  matrix = np.random.RandomState(1).randn(20, 3).astype(np.float32)

  made = []

  def model(batch, is_training):
    made[:] = made or [keras.layers.Embedding(20, 3, weights=[matrix], name='words')]
    numbers, labels = batch
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=made[0](numbers))

  devices = ['/device:CPU:0'] * 2
  with tf.Graph().as_default(), tf.Session() as session:
    numbers, labels = tf.constant([1, 2], name='numbers'), tf.constant([0, 1], name='labels')
    batches = [Batch((numbers, labels), 2)] * 2
    store = VariableStore(devices=devices)
    build_towers(model, batches, devices=devices, store=store)
    session.run(tf.global_variables_initializer())
    np.testing.assert_array_equal(session.run(store.made['words/embeddings']), matrix)


@pytest.mark.nightly
def test_only_what_was_set_comes_from_keras_and_the_rest_from_the_seed():
  def make(names):
    def make():
      layers = make_layers()
      layers.get_weights()  # Keras initializes all of them in its session.
      for name in names:
        layer = layers.get_layer(name)
        layer.set_weights([2 * value for value in layer.get_weights()])
      return layers
    return KerasModel(make, loss=LOSS)

  plain, one = make([]), make(['hidden'])
  with small.Run(model=KerasModel(make_layers, loss=LOSS)) as expected, \
      small.Run(model=plain) as run, small.Run(model=one) as half:
    small.assert_same_weights(run.initial_weights, expected.initial_weights, tolerance=0)
    assert not [op for op in run.graph.get_operations() if op.type == 'PyFunc']
    for name, value in expected.initial_weights.items():
      factor = 2 if name.startswith('hidden') else 1
      np.testing.assert_array_equal(half.initial_weights[name], factor * value)
    assert [op.name for op in half.graph.get_operations() if op.type == 'PyFunc'] == [
        'set_values/hidden/kernel', 'set_values/hidden/bias']


def test_values_are_no_part_of_the_graph_and_keras_session_is_gone():
  sessions = []

  def make():
    layers = keras.Sequential([
        keras.layers.Dense(100 * 1000, input_shape=[small.NUM_FEATURES]),
        keras.layers.Dense(small.NUM_CLASSES, activation='softmax')])
    layers.set_weights([np.full(shape, 0.5, np.float32) for shape in (
        variable.shape.as_list() for variable in layers.weights)])
    session = keras.backend.get_session()
    assert {device.device_type for device in session.list_devices()} <= {'CPU', 'XLA_CPU'}
    sessions.append(weakref.ref(session.opened))
    return layers

  with small.Run(model=KerasModel(make, loss=LOSS)) as run:
    assert all((value == 0.5).all() for value in run.initial_weights.values())
    assert run.graph.as_graph_def().ByteSize() < 1e6
    gc.collect()
    assert sessions[0]() is None
    assert tf.get_default_session() is None


def make_towers(model):
  """Builds a tower in the default graph."""
  batch = Batch((tf.ones([2, small.NUM_FEATURES]), tf.zeros([2], tf.int32)), 2)
  store = VariableStore(devices=['/device:CPU:0'])
  try:
    build_towers(model, [batch], devices=['/device:CPU:0'], store=store)
  finally:
    keras.backend.set_session(None)


def build_from_before(prepare):
  """Builds a tower of a Keras model that was made before, and prepared in a session of Keras."""
  with tf.Graph().as_default():
    layers = make_layers()
    prepare(layers)
    make_towers(lambda batch, is_training: keras.losses.sparse_categorical_crossentropy(
        batch[1], layers(batch[0])))


@pytest.mark.parametrize('load', [
    lambda layers, files: layers.load_weights(str(files / 'weights.h5')),
    lambda layers, files: layers.set_weights(weights()),
    lambda layers, files: keras.backend.set_value(layers.weights[0], weights()[0])])
def test_a_model_that_was_loaded_before_the_towers_is_refused_by_name(load, files):
  with pytest.raises(UsageError, match='reads the variable hidden/kernel .* Keras has set before'):
    build_from_before(lambda layers: load(layers, files))


def test_a_model_that_was_only_looked_at_before_the_towers_is_not_refused():
  build_from_before(lambda layers: layers.get_weights())


def test_weights_from_a_model_that_was_loaded_before_are_refused():
  with tf.Graph().as_default():
    teacher = make_layers()
    teacher.set_weights(weights())
    with pytest.raises(UsageError, match='it read the variable .*/(kernel|bias), which has no'):
      make_towers(KerasModel(lambda: loaded(
          make_layers, lambda layers: layers.set_weights(teacher.get_weights())), loss=LOSS))
