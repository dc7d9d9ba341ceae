"""Groups of variables: an optimizer or a rate for each, or none, as in a hand-written step."""

import contextlib
import functools

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.cli.flags import parse_flags
from towers.optimizers import AdamWOptimizer
from towers.placement.patterns import parse_pairs
from towers.process.run_error import RunError
from towers.tensorflow_v1 import tf
from towers.update.groups import Group, build_groups

NUM_STEPS = 5
SETTINGS = {
    'optimizers': dict(optimizer={'hidden/': tf.train.AdamOptimizer,
                                  'logits/': lambda rate: tf.train.MomentumOptimizer(rate, 0.9)}),
    'all': dict(optimizer={'': tf.train.AdagradOptimizer,
                          'hidden/': tf.train.AdamOptimizer}, frozen=['logits/biases'],
                rate_factors={'hidden/biases': 0.5})}
# What a hand-written program does in each: variables, optimizer, factor of the rate.
BY_HAND = {
    'optimizers': [(['hidden/weights', 'hidden/biases'], 'adam', 1),
                   (['logits/weights', 'logits/biases'], 'momentum', 1)],
    'all': [(['hidden/weights'], 'adam', 1), (['hidden/biases'], 'adam', 0.5),
            (['logits/weights'], 'adagrad', 1)]}
MAKE = {'adam': tf.train.AdamOptimizer, 'adagrad': tf.train.AdagradOptimizer,
        'momentum': lambda rate: tf.train.MomentumOptimizer(rate, 0.9)}
RATE = 0.05


def build(num_towers, model=small.model, **settings):
  settings = dict(dict(learning_rate=RATE, batch_size=8, shuffle=False, device='cpu'), **settings)
  with tf.Graph().as_default():
    return towers.Program(model, train=small.random_examples(13), num_towers=num_towers, **settings)


def train(num_towers, **settings):
  """Returns all variables before the first step and after the last."""
  program = build(num_towers, **settings)
  with program.session() as session:
    initial = small.read_variables(program, session)
    for _ in range(NUM_STEPS):
      session.train()
    if program.replicas:
      assert session.run(program.replicas.same).all()
    return initial, small.read_variables(program, session)


def train_by_hand(groups, initial, *, num_steps=NUM_STEPS, refuses=False):
  """Returns the weights after the same steps on whole batches, without towers.

  A group may have a fourth part: in which of every three steps it acts, from 1. Every second step
  may be refused.
  """
  features, labels = small.random_examples(13).arrays
  with tf.Graph().as_default(), tf.Session() as session:
    batch = tf.placeholder(tf.float32, [None, small.NUM_FEATURES]), tf.placeholder(tf.int32, [None])
    losses, _ = small.model(batch, True)
    variables = {variable.op.name: variable for variable in tf.trainable_variables()}
    steps = []
    for names, optimizer, factor, *_ in groups:
      chosen = [variables[name] for name in names]
      gradients = tf.gradients(tf.reduce_mean(losses), chosen)
      steps.append((MAKE[optimizer](RATE * factor), list(zip(gradients, chosen))))
    with tf.control_dependencies([gradient for _, pairs in steps for gradient, _ in pairs]):
      ops = [optimizer.apply_gradients(pairs) for optimizer, pairs in steps]
    session.run(tf.global_variables_initializer())
    for name, variable in variables.items():
      variable.load(initial[name], session)
    for index in range(num_steps):
      chosen = slice(0, 8) if index % 2 == 0 else slice(8, 13)
      acting = [op for op, (_, _, _, *turns) in zip(ops, groups)
                if not turns or index % 3 + 1 in turns[0]]
      if not refuses or index % 2 == 0:
        session.run(acting, dict(zip(batch, (features[chosen], labels[chosen]))))
    return session.run(variables)


@functools.lru_cache(maxsize=None)
def by_hand(kind):
  initial, _ = train(1, **SETTINGS[kind])
  return train_by_hand(BY_HAND[kind], initial)


@pytest.mark.nightly(but='all-2-settings1')
@pytest.mark.parametrize('kind, num_towers, settings', [
    ('optimizers', 3, dict(variables='balanced')),
    ('all', 2, dict(accumulate=2, variables='replicated')),
    ('all', 3, dict(variables='replicated', tower_build='clone')), ('all', 8, {})])
def test_towers_train_as_a_program_by_hand(kind, num_towers, settings):
  initial, trained = train(num_towers, **SETTINGS[kind], **settings)
  expected = by_hand(kind)
  for name, value in expected.items():
    np.testing.assert_allclose(trained[name], value, rtol=0, atol=1e-5, err_msg=name)
  assert trained['global_step'] == NUM_STEPS and trained['examples_seen'] == 8 + 5 + 8 + 5 + 8
  moved = {name for names, *_ in BY_HAND[kind] for name in names}
  for name in expected:
    assert (abs(trained[name] - initial[name]).max() > 1e-3) == (name in moved), name
    slots = [other for other in trained if other.startswith(name + '/')]
    assert bool(slots) == (name in moved), slots


@pytest.mark.nightly(but='host')
@pytest.mark.parametrize('variables', ['host', 'replicated'])
def test_frozen_variables_have_no_gradient_ops(variables):
  def ops(**settings):
    program = build(2, optimizer=tf.train.MomentumOptimizer(0.1, 0.9), learning_rate=None,
                    variables=variables, **settings)
    return [op.name for op in program.graph.get_operations()]

  whole, frozen = ops(), ops(frozen='hidden/')
  assert any('Momentum' in name and 'hidden/' in name for name in whole)
  assert not any('Momentum' in name and 'hidden/' in name for name in frozen)
  # The gradient goes back through tanh to hidden/ alone.
  assert any('TanhGrad' in name for name in whole)
  assert not any('TanhGrad' in name for name in frozen)
  assert len(frozen) < len(whole)


def sgd(rate):
  return tf.train.GradientDescentOptimizer(rate)


@pytest.mark.nightly(but=[
    'settings6-optimizer=hidden/ matches no trainable variable',
    'settings4-frozen=encoder/ matches no trainable variable'])
@pytest.mark.parametrize('settings, message', [
    (dict(optimizer={'hiden/': sgd, 'logits/': sgd}),
     'optimizer=hiden/ matches no trainable variable: there are hidden/weights'),
    (dict(optimizer={'hidden/': sgd}),
     "optimizer has no pattern for logits/weights, logits/biases: add one, '' for all others"),
    (dict(optimizer={'hidden/': sgd, '.*': sgd}),
     r"optimizer matches hidden/weights twice, by 'hidden/' and by '\.\*': let"),
    (dict(optimizer={}), 'optimizer is an empty dict'),
    (dict(optimizer=sgd, frozen=['encoder/']), 'frozen=encoder/ matches no trainable variable'),
    (dict(optimizer=sgd, frozen=['.*']), 'frozen=.* matches all 4 trainable variables'),
    (dict(optimizer={'hidden/': sgd, 'logits/': sgd}, frozen=['hidden/']),
     'optimizer=hidden/ matches no trainable variable'),
    (dict(optimizer=sgd, rate_factors={'hidden': 2, '.*biases': 3}),
     'rate_factors matches hidden/biases twice'),
    (dict(optimizer=sgd, rate_factors={'hidden': -1.0}), 'rate_factors has -1.0 for hidden'),
    (dict(optimizer=tf.train.GradientDescentOptimizer(0.1), learning_rate=None,
          rate_factors={'logits': 2.0}), 'rate_factors has 2 for logits/weights, whose optimizer'),
    (dict(optimizer=AdamWOptimizer, weight_decay=0.1),
     'weight_decay=0.1 would be added to the gradients beside the 0.01 of AdamWOptimizer: leave'),
    (dict(optimizer=sgd, rate_factors='hidden=0.1'), "rate_factors is 'hidden=0.1': write"),
    (dict(optimizer=towers.Every(0, sgd)), 'towers.Every got 0 steps: give a whole number'),
    (dict(optimizer=towers.Every(3, sgd, turns=[0, 2])),
     r'towers.Every got turns=\[0, 2\]: give numbers from 1 to its 3 steps, as turns=\[1, 3\].'),
    (dict(optimizer=towers.Every(3, sgd, turns=2)), 'towers.Every got turns=2: give numbers')])
def test_mistakes_name_the_variable(settings, message):
  with pytest.raises(UsageError, match=message):
    build(1, **settings)


def test_one_object_updates_all_its_variables_at_once():
  """Otherwise its own variables, such as powers of beta, would move once for each pattern."""
  adam = tf.train.AdamOptimizer(0.1)
  groups = build_groups({'a': adam, 'b': adam}, 0.1, ['a/1', 'a/2', 'b'])
  assert groups == [Group(adam, {'a/1', 'a/2', 'b'}, rate=0.1, text='0.1', label='a')]
  with pytest.raises(UsageError, match='one object for groups that act in different steps'):
    build_groups({'a': towers.Every(2, adam), 'b': adam}, 0.1, ['a/1', 'b'])


@pytest.mark.nightly(but=['2-True-turns2-settings2', '3-False-turns3-settings3'])
@pytest.mark.parametrize('num_towers, refuses, turns, settings', [
    (1, False, [], {}), (3, True, [], {}),
    (2, True, [], dict(variables='replicated', average_weights=0.9)), (3, False, [1, 2], {})])
def test_a_group_acts_in_some_of_three_steps(num_towers, refuses, turns, settings, tmp_path):
  """As by two train ops, also after a resume and where steps are refused."""
  @small.with_losses
  def model(losses):
    whole = tf.equal(towers.all_sum(tf.shape(losses)[0]), 8)
    return losses + tf.where(whole | (not refuses), 0.0, np.nan)

  def make():
    return build(num_towers, model=model, **settings, optimizer={
        'hidden/': towers.Every(3, tf.train.AdamOptimizer, turns),
        'logits/': lambda rate: tf.train.MomentumOptimizer(rate, 0.9)})

  def train_on(session, num_steps):
    for _ in range(num_steps):
      with contextlib.suppress(RunError):
        session.train()

  program = make()
  with program.session() as session:
    initial = small.read_variables(program, session)
    train_on(session, 4)
    session.save(str(tmp_path))
  program = make()
  with program.session() as session:
    session.restore(str(tmp_path))
    train_on(session, 4)
    trained = small.read_variables(program, session)
  assert trained['global_step'] == 8
  expected = train_by_hand([
      (['hidden/weights', 'hidden/biases'], 'adam', 1, turns or [3]),
      (['logits/weights', 'logits/biases'], 'momentum', 1)], initial, num_steps=8, refuses=refuses)
  for name, value in expected.items():
    np.testing.assert_allclose(trained[name], value, rtol=0, atol=1e-6, err_msg=name)


def test_flags_give_patterns():
  config = parse_flags(['main.py', '--frozen=a/,b', '--rate_factors=c=0.5'])
  assert config.frozen == 'a/,b'
  assert parse_pairs('rate_factors', config.rate_factors, like='') == {'c': '0.5'}
  with pytest.raises(UsageError, match='rate_factors=logits: .* as encoder/=0.1'):
    small.Run(rate_factors='logits')
  with pytest.raises(UsageError, match='rate_factors=logits=x: could not convert'):
    small.Run(rate_factors='logits=x')


def letting_averages_through(getter, *args, **kwargs):
  """The getter of docs/running.md."""
  variable = getter(*args, **kwargs)
  return variable if kwargs.get('trainable') is False else tf.stop_gradient(variable)


def making_all_constant(getter, *args, **kwargs):
  return tf.stop_gradient(getter(*args, **kwargs))


def critic_through(getter):
  """Returns a model whose loss reads a network with batch normalisation through a getter."""
  def model(batch, is_training):
    x = small.dense(batch[0], 4, 'generator')

    def criticise():
      with tf.variable_scope('critic'):
        return small.dense(tf.layers.batch_normalization(x, training=is_training), 1, 'out')[:, 0]

    criticise()
    with tf.variable_scope(tf.get_variable_scope(), reuse=True, custom_getter=getter):
      return tf.nn.softplus(criticise())

  return model


def test_a_getter_of_constants_leaves_weights_and_lets_averages_through():
  with small.Run(model=critic_through(letting_averages_through), num_towers=2) as run:
    before = run.variables()
    run.train()
    moved = {name for name, value in run.variables().items() if (value != before[name]).any()}
    assert {name for name in moved if name in run.weights() or 'moving' in name} == {
        'generator/weights', 'generator/biases', 'critic/batch_normalization/moving_mean',
        'critic/batch_normalization/moving_variance'}


def test_a_getter_that_makes_averages_constant_is_named():
  message = (r'critic/batch_normalization/moving_mean, .*made in .*test_groups.py, line \d+.*'
             r"kwargs.get\('trainable'\) is False")
  with pytest.raises(UsageError, match=message):
    small.Run(model=critic_through(making_all_constant))
