"""Towers share all variables, however a model makes them, or an error names one not shared."""

import functools
import itertools

import numpy as np
import pytest

from tests.harness import small
from towers.base.usage_error import UsageError
from towers.input.batch import Batch
from towers.placement.variables import VariableStore
from towers.reduce.average import average_gradients
from towers.tensorflow_v1 import load_keras, tf
from towers.tower.towers import build_towers

keras = load_keras()


def losses_of(logits, labels):
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def plain_variables(batch, is_training):
  """Two tf.Variables under one name, one in a name scope, and one that has the name of a scope."""
  del is_training
  features, labels = batch
  x = tf.matmul(features, tf.Variable(tf.random.normal([5, 4]), name='w'))
  x = tf.matmul(tf.tanh(x), tf.Variable(lambda: tf.random.normal([4, 3]), name='w'))
  with tf.name_scope('last'):
    x += tf.Variable(np.zeros(3, np.float32), name='b')
    with tf.name_scope('gain') as scope:
      return losses_of(x * tf.Variable(1.0, name=scope), labels)


def named_variables(batch, is_training):
  """The same model on tf.get_variable."""
  del is_training
  features, labels = batch
  random = tf.random_normal_initializer()
  x = tf.matmul(features, tf.get_variable('w', [5, 4], initializer=random))
  x = tf.matmul(tf.tanh(x), tf.get_variable('w_1', [4, 3], initializer=random))
  return losses_of(x + tf.get_variable('last/b', [3], initializer=tf.zeros_initializer()), labels)


def variables_of_constants(batch, is_training):
  """Variables whose dtype their values decide."""
  del is_training
  features, labels = batch
  weights = tf.get_variable('w', initializer=np.random.RandomState(0).randn(5, 3))
  gain = tf.get_variable('gain', initializer=2, trainable=False)
  return losses_of(tf.matmul(features, tf.cast(weights, tf.float32)) * tf.cast(gain, tf.float32),
                   labels)


def towers_of_its_own(batch, is_training):
  """Scopes that have the names of towers."""
  del is_training
  features, labels = batch
  logits = 0
  for index in range(2):
    with tf.variable_scope(f'tower_{index}', reuse=tf.AUTO_REUSE):
      logits += tf.matmul(features, tf.get_variable('w', [5, 3])) * (index + 1)
  return losses_of(logits, labels)


def keras_layers():
  """Layers that are made once, outside of the model function."""
  layers = [keras.layers.Dense(4, activation='tanh', name='hidden'),
            keras.layers.Dense(3, name='logits')]
  return lambda batch, is_training: losses_of(layers[1](layers[0](batch[0])), batch[1])


def layers_in_the_model(batch, is_training):
  """The same layers, made in each call, which Keras names."""
  hidden = keras.layers.Dense(4, activation='tanh')(batch[0])
  return losses_of(keras.layers.Dense(3)(hidden), batch[1])


MODELS = {
    'layers inside': (lambda: layers_in_the_model, [
        'dense/bias', 'dense/kernel', 'dense_1/bias', 'dense_1/kernel']),
    'plain': (lambda: plain_variables, ['last/b', 'last/gain', 'w', 'w_1']),
    'named': (lambda: named_variables, ['last/b', 'w', 'w_1']),
    'constants': (lambda: variables_of_constants, ['w']),
    'own towers': (lambda: towers_of_its_own, ['tower_0/w', 'tower_1/w']),
    'layers': (keras_layers, ['hidden/bias', 'hidden/kernel', 'logits/bias', 'logits/kernel'])}


@functools.lru_cache(maxsize=None)
def one_tower(kind):
  with small.Run(model=MODELS[kind][0](), num_towers=1, validates=True) as one:
    losses = [one.train() for _ in range(5)]
    return one.initial_weights, losses, one.weights(), one.validate()[0]


@pytest.mark.nightly(but=['layers-2-host-False', 'layers inside-2-host-False', 'plain-3-host-True',
                          'own towers-3-replicated-False', 'constants-2-host-True'])
@pytest.mark.parametrize('kind, num_towers, placement, has_validation_tower', [
    ('own towers', 3, 'replicated', False), ('own towers', 2, 'host', True),
    ('constants', 3, 'replicated', False), ('constants', 2, 'host', True),
    *[('plain', 3, placement, False) for placement in small.PLACEMENTS], ('plain', 3, 'host', True),
    ('named', 2, 'host', False), ('layers', 2, 'host', False), ('layers', 3, 'replicated', False),
    ('layers inside', 3, 'replicated', True), ('layers inside', 2, 'host', False)])
def test_variables_are_shared_placed_and_named_however_they_are_made(
    kind, num_towers, placement, has_validation_tower):
  make, names = MODELS[kind]
  initial, losses, weights, means = one_tower(kind)
  with small.Run(model=make(), num_towers=num_towers, placement=placement,
                 validation_tower=has_validation_tower, validates=True) as run:
    assert sorted(run.weights()) == names
    small.assert_same_weights(run.initial_weights, initial, tolerance=0)
    assert len({value.tobytes() for value in initial.values()}) == len(initial)
    assert [run.train() for _ in losses] == pytest.approx(losses, abs=1e-5)
    small.assert_same_weights(run.weights(), weights)
    assert run.validate()[0] == pytest.approx(means, abs=1e-5)
    with run.graph.as_default():
      devices = {variable.device for variable in tf.trainable_variables()}
    assert len(devices) == (num_towers if placement == 'balanced' else 1)


def test_layers_with_variables_from_before_the_towers_start_from_the_seed():
  def start(num_towers, seed, num_ops):
    """Returns the first loss and the initial weights of a model that was made before the towers."""
    config = tf.ConfigProto(device_count={'CPU': 2})
    with tf.Graph().as_default(), tf.Session(config=config) as session:
      for _ in range(num_ops):
        tf.random.normal([2])
      inputs = keras.layers.Input([5])
      hidden = keras.layers.Dense(4, 'tanh', name='hidden')(inputs)
      layers = keras.Model(inputs, keras.layers.Dense(3, name='logits')(hidden))

      def model(batch, is_training):
        return losses_of(layers(batch[0]), batch[1])

      devices = [f'/device:CPU:{tower}' for tower in range(num_towers)]
      size = 4 // num_towers
      batches = [Batch((tf.ones([size, 5]), tf.zeros([size], tf.int32)), size)] * num_towers
      store = VariableStore(devices=devices, seed=seed)
      all_towers = build_towers(model, batches, devices=devices, store=store)
      reduced = average_gradients(all_towers)
      session.run(tf.global_variables_initializer())
      return session.run([reduced.loss] + [variable.value() for variable in layers.weights])

  for one, other, again in zip(start(1, 5, 0), start(1, 6, 0), start(2, 5, 3)):
    np.testing.assert_allclose(one, again, rtol=1e-6)
    assert not one.any() or (one != other).any()


def make_with_a_name_for_trainable(is_before):
  """Returns what makes a model of `tf.Variable(value, name)`; the second argument is trainable."""
  def make():
    outside = tf.Variable(tf.zeros([3]), 'biases') if is_before else None

    def model(batch, is_training):
      biases = outside if is_before else tf.Variable(tf.zeros([3]), 'biases')
      return losses_of(small.dense(batch[0], 3, 'logits') + biases, batch[1])

    return model

  return make


@pytest.mark.nightly(but=['host-False', 'replicated-True'])
@pytest.mark.parametrize('is_before', [False, True])
@pytest.mark.parametrize('placement', ['host', 'replicated'])
def test_a_name_in_the_place_of_trainable_trains(placement, is_before):
  with small.Run(make_model=make_with_a_name_for_trainable(is_before), placement=placement,
                 optimizer='adam') as run:
    assert sorted(run.weights()) == ['Variable', 'logits/biases', 'logits/weights']
    run.train()
    # Both biases have one gradient.
    weights = run.weights()
    np.testing.assert_allclose(weights['Variable'], weights['logits/biases'], atol=1e-6)
    small.assert_moved(run.initial_weights, weights)
    with run.graph.as_default():
      assert {variable.trainable for variable in tf.trainable_variables()} == {True}


def test_variables_made_in_every_tower_are_refused_by_name():
  numbers = itertools.count()
  with pytest.raises(UsageError, match='own_1:0(.|\n)*once, outside of the model function'):
    small.Run(model=lambda batch, _: losses_of(small.dense(batch[0], 3, 'logits') + tf.Variable(
        tf.zeros([3]), name=f'own_{next(numbers)}'), batch[1]))


def penalized(batch, is_training):
  """A model that takes all trainable variables, in its middle those that it has made, and makes a
  summary of each."""
  losses, metrics = small.model(batch, is_training)
  scale = 1.0 + len(tf.trainable_variables())
  losses += scale * tf.square(small.dense(batch[0], 1, 'extra')[:, 0])
  for variable in tf.trainable_variables():
    tf.summary.histogram(variable.op.name, variable)
  return losses + 0.1 * tf.add_n(list(map(tf.nn.l2_loss, tf.trainable_variables()))), metrics


def by_gradients(batch, is_training):
  """A model whose losses take gradients by all trainable variables, of `tf.gradients` and a tape,
  at inputs that are the same for all towers."""
  losses, metrics = small.model(batch, is_training)
  with tf.variable_scope(tf.get_variable_scope(), reuse=True), tf.GradientTape() as tape:
    hidden = tf.tanh(small.dense(tf.ones([1, batch[0].shape[1]]), 4, 'hidden'))
    fixed = small.dense(hidden, small.NUM_CLASSES, 'logits')
  variables = tf.trainable_variables()
  of_tape = tape.gradient(fixed, variables, unconnected_gradients='zero')
  return losses + 0.1 * tf.global_norm(tf.gradients(fixed, variables) + of_tape), metrics


def averaged(batch, is_training):
  """A model that reads averages of its weights, of listed ones and of some that it asks for, takes
  a gradient of its own by a weight, and penalises weights by name."""
  @tf.custom_gradient
  def halve(x):
    scale = tf.get_variable('scale', [], initializer=tf.ones_initializer(), use_resource=True)
    return x * scale, lambda dy, variables=None: (dy * scale, [
        0.5 * tf.reduce_sum(dy * x)] * len(variables))

  def average(getter, name, *args, **settings):
    variable = getter(name, *args, **settings)
    found = [each.average(variable) for each in averages if each.average(variable) is not None]
    return tf.add_n(found or [variable])

  losses, metrics = small.model(batch, is_training)
  with tf.variable_scope(tf.get_variable_scope(), reuse=True):
    some = [tf.get_variable('hidden/weights')]
  averages = [tf.train.ExponentialMovingAverage(0.9, name=name) for name in ('all', 'some')]
  for each, variables in zip(averages, (tf.trainable_variables('hidden'), some)):
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, each.apply(variables))
  with tf.variable_scope(tf.get_variable_scope(), reuse=True, custom_getter=average):
    taught = small.dense(batch[0], 4, 'hidden')
  with tf.variable_scope('own', use_resource=True):
    losses *= halve(1 + tf.reduce_mean(tf.square(taught), 1))
  return losses + sum(tf.nn.l2_loss(weights) for weights in some
                      if weights.name == 'hidden/weights:0'), metrics


def chosen(batch, is_training):
  """A model that chooses weights by what they are, by the names of their ops, and of a layer."""
  losses, metrics = small.model(batch, is_training)
  layer = tf.layers.Dense(1, name='own')
  losses += tf.square(layer(batch[0])[:, 0])
  with tf.variable_scope(tf.get_variable_scope(), reuse=True):
    kernel = tf.get_variable('hidden/weights')
  weights = [variable for variable in tf.trainable_variables()
             if variable is kernel or variable.op.name == 'hidden/biases']
  return losses + tf.add_n(list(map(tf.nn.l2_loss, weights + layer.trainable_weights))), metrics


def recurrent(batch, is_training):
  """A model with a loop, whose scope reads variables once for all that take them."""
  losses, metrics = small.model(batch, is_training)
  steps = tf.stack([batch[0], -batch[0], 2 * batch[0]], 1)
  _, last = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(3), steps, dtype=tf.float32)
  return losses + tf.reduce_sum(tf.square(last), 1), metrics


@pytest.mark.nightly(but=[
    'recurrent-settings0', 'recurrent-settings2', 'penalized-settings0', 'penalized-settings4',
    'keras_layers-settings2', 'by_gradients-settings3', 'averaged-settings3', 'chosen-settings3'])
@pytest.mark.parametrize('settings', [
    dict(placement='replicated', tower_build='reuse'),
    dict(placement='replicated', tower_build='clone'), dict(validation_tower=True),
    dict(placement='replicated', validation_tower=True),
    dict(frozen='hidden/(bias|weights)')])
@pytest.mark.parametrize('make_model', [
    lambda: penalized, keras_layers, lambda: by_gradients, lambda: averaged, lambda: chosen,
    lambda: recurrent],
                         ids=['penalized', 'keras_layers', 'by_gradients', 'averaged', 'chosen',
                              'recurrent'])
def test_variables_that_are_not_asked_for_by_name_are_those_of_the_tower(make_model, settings):
  def train(**settings):
    with small.Run(model=make_model(), batch_size=7, validates=True, **settings) as run:
      losses = [run.train() for _ in range(4)]
      return losses, run.validate(), run.weights()

  found = train(num_towers=3, **settings)
  expected = train(num_towers=1, frozen=settings.get('frozen'))
  np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
  np.testing.assert_allclose(found[1][0]['loss'], expected[1][0]['loss'], atol=1e-5)
  for name, weights in expected[2].items():
    np.testing.assert_allclose(found[2][name], weights, atol=1e-5, err_msg=name)


@pytest.mark.parametrize('kind', ['template', 'template outside', 'layers'])
def test_what_makes_variables_is_made_in_the_model(kind):
  make = functools.partial(tf.make_template, 'net', small.classify)
  template = make()

  def model(batch, is_training):
    return (template if 'outside' in kind else make())(*batch)

  model = layers_in_the_model if kind == 'layers' else model
  with small.program(model, num_towers=2).session() as session:
    examples = small.random_examples(5).arrays
    if 'outside' not in kind:
      assert session.evaluate(examples)['loss'] > 0
    else:
      with pytest.raises(UsageError, match='the variable net/.*make a tf.make_template in the fun'):
        session.evaluate(examples)
