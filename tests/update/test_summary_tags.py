"""Tags of tf.summary: in each measured step, once, on any towers, of weights after the update."""

import re

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.tensorflow_v1 import tf


class Logged(tf.train.GradientDescentOptimizer):
  """Makes tags of the gradients and weights that it gets."""

  def apply_gradients(self, grads_and_vars, global_step=None, name=None):
    for gradient, variable in grads_and_vars:
      tf.summary.scalar(f'norm/{variable.op.name}', tf.norm(gradient))
      tf.summary.scalar(f'weight/{variable.op.name}', tf.norm(variable))
    tf.summary.scalar(f'rate/{variable.op.name}', self._learning_rate)
    return super().apply_gradients(grads_and_vars, global_step, name)


@small.with_losses
def model(losses):
  tf.summary.scalar('seen', tf.reduce_mean(losses))
  for variable in tf.trainable_variables():
    tf.summary.scalar(f'of_model/{variable.op.name}', tf.norm(variable))
  is_third = tf.equal(tf.train.get_or_create_global_step(), 2)
  return losses + tf.where(is_third, float('nan'), 0.0)


def read_tags(**settings):
  """Returns the values of all tags in two steps, before one that is refused, and after each the
  norms of the weights."""
  program = small.program(model, optimizer={
      'hidden/': Logged(0.1), 'logits/': towers.Every(2, Logged(0.1))}, **settings)
  with program.graph.as_default():
    tf.summary.scalar('rate', program.learning_rate)
    tf.summary.scalar('by hand', tf.placeholder(tf.float32, []))
  program.build_gradient_norm()
  weights = {variable.op.name: variable for variable in program.towers[0].variables}
  steps, norms = [], []
  with program.session() as session:
    session.calls.measure_update(True)
    session.calls.run_by(lambda run, fetches: run(fetches))  # Which refuses what has no value.
    for _ in range(2):
      session.train()
      steps.append({re.sub('^(tower_0|apply)/', '', value.tag): value.simple_value
                    for text in session.calls.update.summaries
                    for value in tf.Summary.FromString(text).value})
      norms.append({name: np.linalg.norm(value) for name, value in session.run(weights).items()})
    assert session.take_step().not_finite and session.calls.update is None
  return steps, norms


HIDDEN = {f'{kind}/hidden/{name}' for kind in ('norm', 'weight') for name in ('weights', 'biases')}
LOGITS = {name.replace('hidden', 'logits') for name in HIDDEN}
OF_MODEL = {name.replace('weight/', 'of_model/') for name in HIDDEN | LOGITS if 'weight/' in name}


REPLICATED = dict(num_towers=2, variables='replicated')


@pytest.mark.parametrize('settings', small.nightly_but([REPLICATED], [
    REPLICATED, dict(num_towers=1), dict(num_towers=2),
    dict(num_towers=3, tower_build='clone', variables='replicated', validation_tower=True),
    dict(num_towers=3, tower_build='clone', accumulate=2)]))
def test_each_tag_comes_once_and_is_empty_where_its_update_is_left_out(settings):
  (first, second), norms = read_tags(**settings)
  always = {'seen', 'rate', 'rate/hidden/biases', *OF_MODEL}
  assert set(first) == {*always, *HIDDEN}
  assert set(second) == {*always, *HIDDEN, *LOGITS, 'rate/logits/biases'}
  for step, expected, after in zip((first, second), read_tags(num_towers=1)[0], norms):
    for name in set(step) - {'seen'}:  # The first tower's share has its own mean.
      assert step[name] == pytest.approx(expected[name], abs=1e-5), name
      kind, _, weight = name.partition('/')
      if kind in ('weight', 'of_model'):
        assert step[name] == pytest.approx(after[weight], rel=1e-6), name


@pytest.mark.parametrize('settings', small.nightly_but([dict(input_mode='next')], [
    dict(input_mode='next'), dict(num_towers=3, tower_build='clone', input_mode='shard'),
    dict(validation_tower=True, num_towers=3), dict(variables='replicated'), dict(accumulate=2)]))
def test_no_step_is_taken_for_a_variable_that_a_tag_and_a_result_read(settings):
  def model(batch, is_training, makes_tags=True):
    losses, metrics = small.model(batch, is_training)
    scale, offset = [tf.convert_to_tensor(tf.get_variable(name, [], trainable=False))
                     for name in ('scale', 'offset')]  # No loss needs them.
    metrics['whole'] = towers.Whole(np.mean, [losses + scale])
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, tf.square(offset))
    if makes_tags:
      tf.summary.scalar('scale', scale)
      tf.summary.scalar('offset', offset)
    return losses, metrics

  def train(model):
    with small.program(model, **settings).session() as session:
      return session.validate(), session.train(), session.validate(), session.step

  assert train(model) == train(lambda *batch: model(*batch, makes_tags=False))
