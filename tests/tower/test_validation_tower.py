"""A tower that only validates measures what all towers do in turn, whatever a model reads."""

import pytest

import towers
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf


def losses_of(features, labels):
  return tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=labels, logits=small.dense(features, small.NUM_CLASSES, 'logits'))


def weight_of(step):
  return tf.minimum(1.0, (1.0 + tf.cast(step, tf.float32)) / 8)


def weighed(batch, is_training):
  return losses_of(*batch) * weight_of(tf.train.get_global_step())


def weighed_in_a_branch(batch, is_training):
  step = tf.train.get_global_step()
  return losses_of(*batch) * tf.cond(step > 2, lambda: weight_of(step), lambda: 3.0)


def noisy(batch, is_training):
  features, labels = batch
  return losses_of(features + tf.random.normal(tf.shape(features)), labels)


def make_with_a_step_from_before():
  tf.train.create_global_step()
  return weighed


MAKERS = {'weighed': lambda: weighed, 'branch': lambda: weighed_in_a_branch,
          'drawn': lambda: noisy, 'before': make_with_a_step_from_before}


def curve(make_model, **settings):
  """Returns the validations of a run, beside which its steps go on."""
  recorder = small.Recorder()
  with tf.Graph().as_default():
    program = towers.Program(
        make_model(), train=small.random_examples(13), batch_size=4, device='cpu', shuffle=False,
        validation=small.random_examples(11, 'validation', seed=1),
        optimizer=tf.train.GradientDescentOptimizer(0.1), **settings)
    towers.train(program, steps=7, validate_every='3steps', quiet=True, callbacks=[recorder])
  return {step: metrics['loss'] for step, metrics in recorder.validations}


@pytest.mark.nightly(but='weighed')
@pytest.mark.parametrize('kind', MAKERS)
def test_the_step_of_a_model_is_that_at_which_its_pass_began(kind):
  expected = curve(MAKERS[kind], num_towers=2)
  found = curve(MAKERS[kind], num_towers=3, validation_tower=True)
  assert len(set(expected.values())) == len(expected) >= 3
  assert found == pytest.approx(expected, abs=1e-5)


def make_module(name, is_trainable):
  """Returns what makes a module, of variables that its model does not ask for by name."""
  def make():
    weights = tf.get_variable(name, [small.NUM_FEATURES], trainable=is_trainable)
    derived = weights * 2

    def model(batch, is_training):
      features, labels = batch
      return losses_of(features * (derived if name == 'derived' else weights), labels)

    return model

  return make


@pytest.mark.parametrize('name', ['held', 'derived'])
def test_a_variable_from_before_is_refused_if_training_changes_it(name):
  settings = dict(num_towers=3, validation_tower=True)
  with pytest.raises(UsageError, match=f'reads the variable {name}, of which .* no snapshot'):
    small.Run(make_model=make_module(name, is_trainable=True), **settings)
  with small.Run(make_model=make_module(name, is_trainable=False), **settings) as run:
    run.train()
    assert run.validate()[1] == 11
