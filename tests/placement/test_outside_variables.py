"""Variables from before the program, as of a module or of Keras layers that people make once.

The law: beside variables that the model makes, each is updated once in a step, wherever those live
and on any number of towers. No law of a tower sees the update, so it is stated on what a session
holds after some steps: variables and slots.
"""

import functools

import pytest

from tests.harness import small
from tests.harness.in_process_cluster import InProcessCluster
from towers.tensorflow_v1 import load_keras, tf

keras = load_keras()
NUM_STEPS = 3


def losses_of(logits, labels):
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def make_module():
  """A module that makes a dense, a sparse and a derived weight before its model is called."""
  weights = tf.get_variable('outside/weights', [small.NUM_FEATURES, 4])
  table = tf.get_variable('outside/table', [small.NUM_CLASSES, 4])
  scale = 2.0 * tf.get_variable('outside/scale', [], initializer=tf.ones_initializer())

  def model(batch, is_training):
    features, labels = batch
    hidden = tf.tanh(scale * tf.matmul(features, weights)) + 0.1 * tf.gather(table, labels)
    return losses_of(small.dense(hidden, small.NUM_CLASSES, 'inside'), labels)

  return model


def make_layers():
  """A layer of Keras, whose kernel exists before the model is called."""
  layer = keras.layers.Dense(4, activation='tanh', name='outside')
  layer.build([None, small.NUM_FEATURES])
  return lambda batch, is_training: losses_of(
      small.dense(layer(batch[0]), small.NUM_CLASSES, 'inside'), batch[1])


def make_all():
  """Weights that all exist before the model is called, and stand on no device."""
  weights = tf.get_variable('outside/weights', [small.NUM_FEATURES, small.NUM_CLASSES])
  return lambda batch, is_training: losses_of(tf.matmul(batch[0], weights), batch[1])


MODELS = {'module': make_module, 'layers': make_layers, 'all': make_all}
UPDATES = {
    'sgd': dict(optimizer='sgd'),
    'momentum': dict(optimizer='momentum', weight_decay=0.1),
    'adam': dict(optimizer='adam', learning_rate=0.01),
    'clipped': dict(optimizer='momentum', clip_norm=0.3),
    'averaged': dict(optimizer='sgd', average_weights=0.9),
    'accumulated': dict(optimizer='momentum', accumulate=2)}


@functools.lru_cache(maxsize=None)
def one_tower(model, update):
  settings = {**UPDATES[update], 'accumulate': 1}
  with small.Run(make_model=MODELS[model], num_towers=1, validates=True, **settings) as one:
    losses = [one.train() for _ in range(NUM_STEPS)]
    small.assert_moved(one.initial_weights, one.weights(), at_least=1e-4)
    return losses, one.variables(), one.validate()[0]


@pytest.mark.nightly(but=['replicated-2-momentum-module', 'replicated-3-sgd-layers',
                          'host-2-adam-module'])
@pytest.mark.parametrize('model', MODELS)
@pytest.mark.parametrize('update', UPDATES)
@pytest.mark.parametrize('num_towers', [2, 3])
@pytest.mark.parametrize('placement', small.PLACEMENTS)
def test_each_is_updated_once_in_a_step(placement, num_towers, update, model):
  losses, variables, means = one_tower(model, update)
  with small.Run(make_model=MODELS[model], num_towers=num_towers, placement=placement,
                 validates=True, **UPDATES[update]) as run:
    assert [run.train() for _ in range(NUM_STEPS)] == pytest.approx(losses, abs=1e-5)
    small.assert_same_weights(run.variables(), variables)
    assert run.validate()[0] == pytest.approx(means, abs=1e-5)


@pytest.mark.nightly(but=['replicated-module', 'host-all'])
@pytest.mark.parametrize('model', ['module', 'all'])
@pytest.mark.parametrize('placement', ['replicated', 'host'])
def test_workers_update_each_once_in_a_step(placement, model):
  losses, variables, _ = one_tower(model, 'momentum')
  with InProcessCluster(num_workers=2, num_towers=2, placement=placement, make_model=MODELS[model],
                        **UPDATES['momentum']) as cluster:
    assert [cluster.train() for _ in range(NUM_STEPS)] == pytest.approx(losses, abs=1e-5)
    for found in cluster.each(lambda run: run.variables()):
      small.assert_same_weights(found, variables)


def test_a_checkpoint_goes_on_with_other_towers_and_placements(tmp_path):
  losses, variables, _ = one_tower('module', 'momentum')

  def go_on(num_towers, placement, begin, end):
    with small.Run(make_model=make_module, num_towers=num_towers, placement=placement,
                   validates=True, **UPDATES['momentum']) as run, run.graph.as_default():
      if begin:
        run.opened.restore(str(tmp_path))
      found = [run.train() for _ in range(begin, end)]
      run.opened.save(str(tmp_path))
      return found, run.variables()

  layouts = [(3, 'replicated'), (1, 'host'), (2, 'replicated')]
  steps = [go_on(*layout, step, step + 1) for step, layout in enumerate(layouts)]
  assert [loss for [loss], _ in steps] == pytest.approx(losses, abs=1e-5)
  small.assert_same_weights(steps[-1][1], variables)
