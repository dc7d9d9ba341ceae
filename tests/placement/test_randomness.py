"""Initial values depend on the seed and names alone."""

import importlib
import random
import types

import numpy as np
import pytest

from models.layers import he_normal
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.placement.counters import get_global_step
from towers.placement.variables import VariableStore
from towers.tensorflow_v1 import tf

# Its initializers are other objects than those of tf.
V2 = importlib.import_module('tensorflow.compat.v2')
MASKS, MADE = 'masks', 'made'


def python_seed():
  """A seed as Keras's initializer objects take it: from Python, another one in every build."""
  return [random.randint(1, 10 ** 9), 0]


def split_seed():
  """A seed that is drawn by another stateless op."""
  return tf.random.stateless_uniform([2], python_seed(), minval=0, maxval=10 ** 6, dtype=tf.int32)


def same_seed_twice(shape):
  seed = tf.constant(python_seed())
  return tf.random.stateless_normal(shape, seed) - 2 * tf.random.stateless_normal(shape, seed)


OBJECTS = {name: getattr(V2.initializers, name) for name in (
    'HeNormal', 'GlorotUniform', 'Orthogonal', 'VarianceScaling', 'TruncatedNormal',
    'RandomNormal', 'RandomUniform') if hasattr(V2.initializers, name)}
DRAWS = dict(
    {name: lambda shape, make=make: make()(shape) for name, make in OBJECTS.items()},
    scaling=tf.variance_scaling_initializer(),
    by_columns=tf.orthogonal_initializer(),
    gamma=lambda shape: tf.random.gamma(shape, 1.0),
    shuffled=lambda shape: tf.reshape(tf.random.shuffle(tf.range(24.0)), shape),
    stateless_uniform=lambda shape: tf.random.stateless_uniform(shape, python_seed()),
    stateless_normal=lambda shape: tf.random.stateless_normal(shape, python_seed()),
    stateless_truncated=lambda shape: tf.random.stateless_truncated_normal(shape, python_seed()),
    stateless_integers=lambda shape: tf.cast(tf.random.stateless_uniform(
        shape, python_seed(), maxval=1000, dtype=tf.int64), tf.float32),
    stateless_categorical=lambda shape: tf.cast(tf.random.stateless_categorical(
        tf.zeros([shape[0], 1000]), shape[1], python_seed()), tf.float32),
    same_seed_twice=same_seed_twice,
    seed_that_is_drawn=lambda shape: tf.random.stateless_normal(shape, split_seed()),
)
if 'alg' in tf.random.stateless_normal.__code__.co_varnames:
  DRAWS['key'] = lambda shape: tf.random.stateless_normal(shape, python_seed(), alg='philox')
STAY = dict(identity=V2.initializers.identity(), zeros=tf.zeros,
            array=lambda shape: np.arange(24, dtype=np.float32).reshape(shape))


def start(draws, seed=5, num_towers=1, placement='host'):
  """Returns the initial values of variables, by name, each drawn by the function of its name."""
  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(random.randint(1, 10 ** 9))
    store = VariableStore(
        devices=['/device:CPU:0'] * num_towers, placement=placement, seed=seed)
    with tf.variable_creator_scope(store.creator):
      for name, draw in draws.items():
        tf.Variable(lambda draw=draw: draw([6, 4]), name=name)
    session.run([variable.initializer for variables in (store.made, *store.replicas.values())
                 for variable in variables.values()])
    for of_tower in store.replicas.values():
      for name, copy in of_tower.items():
        np.testing.assert_array_equal(*session.run([copy, store.made[name]]), err_msg=name)
    return dict(zip(store.made, session.run(list(store.made.values()))))


@pytest.mark.nightly
def test_initial_values_depend_on_the_seed_and_the_name_whatever_draws_them():
  values = start(DRAWS)
  backwards = start(dict(reversed(list(DRAWS.items()))), num_towers=3, placement='replicated')
  others = start(DRAWS, seed=6)
  renamed = start({name + '_renamed': draw for name, draw in DRAWS.items()})
  for name, value in values.items():
    np.testing.assert_array_equal(value, backwards[name], err_msg=name)
    assert (value != others[name]).any() and (value != renamed[name + '_renamed']).any(), name
    assert np.isfinite(value).all() and len(np.unique(value)) > 12, name


def test_draws_keep_their_distribution():
  values = start(DRAWS)
  assert values['stateless_uniform'].min() >= 0 and values['stateless_uniform'].max() < 1
  assert np.abs(values['stateless_truncated']).max() <= 2
  np.testing.assert_allclose(values['Orthogonal'].T @ values['Orthogonal'], np.eye(4), atol=1e-5)
  alone = start({'normal': lambda shape: tf.random.stateless_normal(shape, [1, 2])})['normal']
  twice = start({'normal': lambda shape: same_seed_twice(shape)})['normal']
  np.testing.assert_allclose(twice, -alone, rtol=1e-5)  # Two draws by one seed are the same.
  values = start(STAY)  # Which are not drawn.
  np.testing.assert_array_equal(values['identity'], np.eye(6, 4))
  np.testing.assert_array_equal(values['array'], np.arange(24).reshape(6, 4))
  assert not values['zeros'].any()


def test_a_variable_that_starts_from_another_ones_value_leaves_that_as_it_is():
  draws = {'first': tf.random.normal}
  alone = start(draws)['first']
  both = start({**draws, 'second': lambda _: 2 * tf.global_variables()[0].initial_value})
  np.testing.assert_array_equal(both['first'], alone)
  np.testing.assert_array_equal(both['second'], 2 * alone)


@pytest.mark.parametrize('sizes, whole', [([], None), ([3, 5], None), ([3, 5], [3, 5, 12, 8])])
@pytest.mark.parametrize('mode', ['fan_in', 'fan_out'])
def test_he_normal_draws_what_tensorflow_draws(mode, sizes, whole):
  whole = whole and types.SimpleNamespace(full_shape=whole)  # What a partitioner divides.
  ours, theirs = (
      start({'kernel': lambda shape, make=make: make(sizes + shape, tf.float32, whole)})['kernel']
      for make in (he_normal(mode), tf.variance_scaling_initializer(2.0, mode)))
  np.testing.assert_array_equal(ours, theirs)
  with tf.Graph().as_default():  # Of a program of one's own, by its seed.
    tf.set_random_seed(3)
    assert he_normal(mode)([2, 2]).op.inputs[0].op.get_attr('seed') == 3


def of_initializer_objects(batch, is_training):
  def weights(shape, name):
    return tf.Variable(lambda: OBJECTS['GlorotUniform']()(shape), name=name)

  features, labels = batch
  x = tf.tanh(tf.matmul(features, weights([small.NUM_FEATURES, 4], 'hidden')))
  x = tf.matmul(x, weights([4, small.NUM_CLASSES], 'logits'))
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)


def test_weights_by_initializer_objects_are_the_same_in_every_program():
  found = []
  for settings in (dict(num_towers=1), dict(num_towers=2), dict(num_towers=3, placement='balanced'),
                   dict(num_towers=2, mode='next', placement='replicated', tower_build='clone')):
    with small.Run(model=of_initializer_objects, **settings) as run:
      small.assert_same_weights(run.initial_weights, (found or [run.initial_weights])[0], 0)
      found.append(run.initial_weights)


def draw_non_deterministically(shape):
  return V2.random.experimental.Generator.from_non_deterministic_state().normal(shape)


def draw_in_function(shape):
  return V2.function(lambda: tf.random.normal(shape))()


def draw_stateless_in_function(shape):
  return V2.function(V2.function(lambda: tf.random.stateless_normal(shape, python_seed())))()


def draw_by_generator(shape):
  made = tf.get_collection_ref(MADE)  # The generator of the whole graph.
  if not made:
    made.append(V2.random.experimental.Generator.from_seed(3))
  return made[0].normal(shape)


@pytest.mark.nightly(but='draw_non_deterministically-of type NonDeterministicInts, .*generator')
@pytest.mark.parametrize('draw, words', [
    (draw_in_function, 'w .*RandomStandardNormal in the function .*lambda'),
    (draw_stateless_in_function, 'w .*StatelessRandom.* in the function .*lambda'),
    (draw_non_deterministically, 'of type NonDeterministicInts, .*generator')])
def test_what_cannot_be_seeded_in_an_initial_value_is_refused_by_name(draw, words):
  with tf.Graph().as_default():
    store = VariableStore(devices=['/device:CPU:0'])
    with tf.variable_creator_scope(store.creator), \
        pytest.raises(UsageError, match=words + r'.*tf\.random\.normal'):
      tf.Variable(lambda: draw([6, 4]), name='w')


def drawing_model(draw):
  return small.with_losses(lambda losses: losses + tf.reduce_sum(draw([3])))


@pytest.mark.parametrize('draw, words', [
    (draw_in_function, 'RandomStandardNormal in the function .*lambda.*which the op tower_0/'),
    (draw_by_generator, 'the op tower_0/.*from a generator')])
def test_what_cannot_be_tied_to_tower_and_step_is_refused_by_name(draw, words):
  with pytest.raises(UsageError, match='Random numbers are drawn by .*' + words):
    small.Run(model=drawing_model(draw))


def test_what_a_model_draws_by_a_seed_that_it_computes_is_its_own_matter():
  def draw(shape):
    seed = tf.stack([tf.constant(3, tf.int64), get_global_step().read_value()])
    tf.add_to_collection(MASKS, tf.random.stateless_normal(shape, seed))
    return V2.function(lambda seed: tf.random.stateless_normal(shape, seed))(seed)

  with small.Run(model=drawing_model(draw), num_towers=2) as run:
    first = run.session.run(run.graph.get_collection(MASKS))
    run.train()
    second = run.session.run(run.graph.get_collection(MASKS))
    np.testing.assert_array_equal(first[0], first[1])
    assert (first[0] != second[0]).all()


def test_pooling_whose_seeds_must_be_0_is_left_alone_and_named(caplog):
  @small.with_losses
  def model(losses):
    pooled = tf.raw_ops.FractionalMaxPool(value=tf.ones([1, 4, 4, 1]), pseudo_random=True,
                                          pooling_ratio=[1.0, 1.5, 1.5, 1.0])[0]
    return losses * tf.reduce_mean(pooled)

  with small.Run(model=model, num_towers=1) as run:
    run.train()
  assert 'FractionalMaxPool' in caplog.text
