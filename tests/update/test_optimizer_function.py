"""A function of gradients and variables updates as an optimizer that does the same."""

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf


def momentum(grads_and_vars, global_step):
  """Clips, schedules, applies and counts, as functions of public repositories do."""
  gradients, variables = zip(*grads_and_vars)
  gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
  steps = tf.Variable(0.0, trainable=False)  # Read again for each weight, before it is assigned.
  updates = [steps.assign(steps + 1)]
  for gradient, variable in zip(gradients, variables):
    slot = tf.get_variable(variable.op.name + '/slot', variable.shape, trainable=False,
                           initializer=tf.zeros_initializer())
    rate = tf.train.exponential_decay(0.3, steps, 2, 0.5)
    moved = 0.9 * slot + gradient
    updates += [slot.assign(moved), variable.assign_sub(rate * moved)]
  count = tf.assign_add(global_step, 1)
  return tf.group(*updates, count, tf.train.get_global_step().assign(global_step + 1))


def applied(grads_and_vars, global_step):
  return tf.train.MomentumOptimizer(
      tf.train.exponential_decay(0.3, global_step, 2, 0.5), 0.9).apply_gradients(
          grads_and_vars, global_step=global_step)


def scheduled(rate):
  del rate
  return tf.train.MomentumOptimizer(tf.train.exponential_decay(
      0.3, tf.train.get_or_create_global_step(), 2, 0.5), 0.9)


def read(folder, **settings):
  """Returns losses, step and variables of some steps, with a resume in between."""
  program = small.program(validation=None, **settings)
  with program.session() as session:
    losses = [session.train() for _ in range(3)]
    session.save(folder)
    session.train()
    session.restore(folder)
    losses += [session.train() for _ in range(2)]
    variables = small.read_variables(program, session)
    return losses, (session.step, variables['global_step']), {
        name: value for name, value in variables.items()
        if not name.endswith(('slot', 'Momentum')) and 'apply/Variable' not in name}


SETTINGS = [dict(num_towers=1), dict(num_towers=3, tower_build='clone'),
            dict(num_towers=2, variables='replicated'), dict(accumulate=2, input_mode='shard')]


@pytest.mark.parametrize('settings', small.nightly_but(SETTINGS[2:3], SETTINGS),
                         ids=lambda settings: '-'.join(settings))
@pytest.mark.parametrize('function', [momentum, applied])
def test_a_function_updates_as_an_optimizer(function, settings, tmp_path):
  losses, steps, variables = read(str(tmp_path / 'function'), optimizer=function,
                                  clip_norm=0.5 if function is applied else None, **settings)
  expected_losses, expected_steps, expected = read(
      str(tmp_path / 'optimizer'), optimizer=scheduled, learning_rate=1.0, clip_norm=0.5,
      **settings)
  assert losses == pytest.approx(expected_losses, rel=1e-6)
  assert steps == expected_steps == (5, 5)
  small.assert_same_weights(variables, expected, tolerance=1e-6)


class Clipped(tf.train.AdamOptimizer):
  """Clips where optimizers that change gradients do, goes by names, and keeps the norms."""

  def apply_gradients(self, grads_and_vars, global_step=None, name=None):
    gradients, variables = zip(*[
        (gradient * 0.5 if variable.op.name.startswith('hidden/') else gradient, variable)
        for gradient, variable in grads_and_vars])
    gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
    norms = tf.get_variable('norms', [len(gradients)], trainable=False)
    with tf.control_dependencies([norms.assign([tf.norm(gradient) for gradient in gradients])]):
      return super().apply_gradients(zip(gradients, variables), global_step, name)


@pytest.mark.parametrize('settings', small.nightly_but(SETTINGS[2:3], SETTINGS[1:]),
                         ids=lambda settings: '-'.join(settings))
def test_an_optimizer_of_ones_own_gets_each_gradient_once(settings, tmp_path):
  losses, _, variables = read(str(tmp_path / 'some'), optimizer=Clipped(0.1), **settings)
  expected_losses, _, expected = read(str(tmp_path / 'one'), optimizer=Clipped(0.1), num_towers=1)
  assert losses == pytest.approx(expected_losses, rel=1e-5)
  small.assert_same_weights(variables, expected)


@pytest.mark.parametrize('variables', ['host', 'replicated'])
def test_an_optimizer_of_ones_own_returns_its_update(variables):
  class Forgetful(tf.train.AdamOptimizer):
    def apply_gradients(self, *args, **kwargs):
      super().apply_gradients(*args, **kwargs)

  with pytest.raises(UsageError, match=r'Forgetful returned .*None.*: return the op that updates'):
    small.program(num_towers=2, variables=variables, optimizer=Forgetful(0.1))


def clipped(grads_and_vars, global_step):
  gradients, variables = zip(*grads_and_vars)
  gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
  return tf.train.GradientDescentOptimizer(1.0).apply_gradients(zip(gradients, variables))


def tied(batch, is_training):
  """Looks up rows of a table that it also multiplies by."""
  features, labels = batch
  table = tf.get_variable('table', [small.NUM_CLASSES, 4])
  x = small.dense(features, 4, 'hidden') + tf.nn.embedding_lookup(table, labels)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=labels, logits=tf.matmul(x, table, transpose_b=True))


def looked_up(batch, is_training):
  """Looks up rows of a table alone, many of them more than once."""
  features, labels = batch
  rows = tf.nn.embedding_lookup(tf.get_variable('table', [small.NUM_CLASSES, 4]), labels)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=labels, logits=small.dense(tf.concat([features, rows], 1), small.NUM_CLASSES, 'out'))


@pytest.mark.parametrize('model', [tied, looked_up])
@pytest.mark.parametrize('optimizer', small.nightly_but([clipped], [clipped, Clipped(0.1)]))
@pytest.mark.parametrize('settings', small.nightly_but(SETTINGS[1:2], SETTINGS[1:]),
                         ids=lambda settings: '-'.join(settings))
def test_a_norm_of_ones_own_is_one_towers_whatever_a_table_is(settings, optimizer, model, tmp_path):
  losses, _, variables = read(str(tmp_path / 'some'), model=model, optimizer=optimizer, **settings)
  expected_losses, _, expected = read(str(tmp_path / 'one'), model=model, optimizer=optimizer,
                                      num_towers=1)
  assert losses == pytest.approx(expected_losses, rel=1e-5)
  small.assert_same_weights(variables, expected)


def shake(gradient):
  return gradient + 0.1 * tf.random.normal(tf.shape(gradient))


def noisy(grads_and_vars, global_step):
  return tf.train.MomentumOptimizer(0.1, 0.9).apply_gradients(
      [(shake(gradient), variable) for gradient, variable in grads_and_vars])


class Noisy(tf.train.MomentumOptimizer):
  """Adds noise to gradients, by `shake`, where one variable after the other is updated."""

  def _resource_apply_dense(self, grad, var):
    return super()._resource_apply_dense(shake(grad), var)


NOISES = {
    'function': dict(optimizer=noisy),
    'class': dict(optimizer=lambda rate: Noisy(rate, 0.9), learning_rate=0.1),
    'rate': dict(optimizer=lambda rate: Noisy(rate, 0.9), learning_rate=lambda plan: (
        0.2 * tf.random.uniform([], 0.5)))}


@pytest.mark.parametrize('noise', NOISES)
@pytest.mark.parametrize('settings', small.nightly_but(SETTINGS[2:3], SETTINGS),
                         ids=lambda settings: '-'.join(settings))
def test_what_an_update_draws_follows_from_seed_and_step(settings, noise, tmp_path):
  losses, _, variables = read(str(tmp_path), **NOISES[noise], **settings)
  program = small.program(validation=None, num_towers=1, **NOISES[noise])
  with program.session() as session:
    assert losses == pytest.approx([session.train() for _ in range(5)], rel=1e-5)
    small.assert_same_weights(variables, {
        name: value for name, value in small.read_variables(program, session).items()
        if name in variables})
  plain, _, _ = read(str(tmp_path / 'plain'), optimizer=tf.train.MomentumOptimizer(0.1, 0.9))
  assert np.abs(np.subtract(losses, plain))[1:].min() > 1e-4


def test_groups_may_have_functions():
  program = small.program(optimizer={
      'hidden': towers.Every(2, momentum), 'logits': tf.train.GradientDescentOptimizer(0.1)})
  with program.session() as session:
    before = small.read_variables(program, session)
    session.train()
    after = small.read_variables(program, session)
  changed = {name for name, value in before.items() if (value != after[name]).any()}
  assert {name.split('/')[0] for name in changed} == {'logits', 'global_step', 'examples_seen'}


@pytest.mark.parametrize('change, match', [
    (lambda pairs, step: None, r'returned \[None\]: return the op that updates'),
    (lambda pairs, step: pairs[0][1].assign_sub(
        tf.cast(tf.assign_add(step, 1), tf.float32) * pairs[0][0]),
     'reads global_step by .*made in .*test_optimizer_function.py.*compute with global_step . 1'),
    *[(change, 'returned .*, which update none of its 4 variables: return the op that does, as '
       r'tf.train.AdamOptimizer\(1e-3\).apply_gradients\(pairs\).')
      for change in (lambda pairs, step: [(gradient * 2, weight) for gradient, weight in pairs],
                     lambda pairs, step: tf.assign_add(step, 1))]])
def test_what_a_function_may_not_do(change, match):
  with pytest.raises(UsageError, match=match):
    small.program(optimizer=change)
