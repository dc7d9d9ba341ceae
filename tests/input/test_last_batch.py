"""The last, smaller batch of an epoch: what cannot be filled up, and what is left out."""

import functools

import numpy as np
import pytest

from tests.harness import small
from towers.base.usage_error import UsageError
from towers.input.plan import build_plan
from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import batch_norm
from towers.training.reporting.describe import describe_batch


def by_kernel(features, is_training):
  del is_training
  ones = tf.ones([small.NUM_FEATURES])
  images = tf.reshape(features, [-1, 1, 1, small.NUM_FEATURES])
  return tf.reshape(tf.nn.fused_batch_norm(images, ones, ones)[0], [-1, small.NUM_FEATURES])


@pytest.mark.nightly(but='by_kernel-FusedBatchNorm')
@pytest.mark.parametrize('layer, op', [
    (functools.partial(batch_norm, name='norm'), 'norm/'), (by_kernel, 'FusedBatchNorm')])
def test_batch_normalisation_over_rows_that_do_not_count_is_refused(layer, op):
  def model(batch, is_training):
    features, labels = batch
    return small.model((layer(features, is_training), labels), is_training)

  with pytest.raises(UsageError, match=f'last_batch=pad.*{op}.*test_last_batch.*last_batch=drop'), \
      small.Run(model=model, last_batch='pad'):
    pass
  # Batches that are full are not filled up.
  with small.Run(model=model, last_batch='pad', train=small.random_examples(16),
                 validation=small.random_examples(8, 'validation')) as run:
    run.train()


def test_a_mean_over_rows_that_do_not_count_is_refused():
  with pytest.raises(UsageError, match='scalar.*last_batch=pad.*one loss per'):
    small.Run(model=small.with_losses(tf.reduce_mean), last_batch='pad')


@pytest.mark.nightly(but='<lambda>1')
@pytest.mark.parametrize('reorder', [
    lambda losses, labels: tf.concat(tf.dynamic_partition(losses, labels % 2, 2), 0),
    lambda losses, labels: tf.gather(losses, tf.nn.top_k(losses, tf.shape(labels)[0])[1])])
def test_rows_in_another_order_are_refused(reorder):
  def model(batch, is_training):
    losses, metrics = small.model(batch, is_training)
    return reorder(losses, batch[1]), metrics

  with pytest.raises(UsageError, match='last_batch=pad.*loss.*depends on them.*last_batch=drop'), \
      small.Run(model=model, last_batch='pad'):
    pass
  with small.Run(model=model, last_batch='keep') as run:
    run.train()


SMALL = [('split', 4, 3, 'keep', {}), ('next', 4, 1, 'pad', {}), ('shard', 3, 2, 'keep', {}),
         ('shard', 8, 1, 'carry', {}), ('split', 2, 1, 'keep', dict(variables='replicated')),
         ('next', 3, 2, 'keep', dict(validation_tower=True)),
         ('split', 8, 3, 'drop', dict(tower_build='clone'))]


@pytest.mark.parametrize('mode, num_towers, num_examples, last_batch, settings',
                         small.nightly_but(SMALL[:3], SMALL))
def test_a_split_smaller_than_the_towers_is_measured_and_learnt_as_by_one(
    mode, num_towers, num_examples, last_batch, settings):
  def run(num_towers, train, **settings):
    program = small.program(
        num_towers=num_towers, train=train, last_batch=last_batch, batch_size=8,
        validation=small.random_examples(num_examples, 'validation', seed=1), **settings)
    with program.session() as session:
      found = [(session.validate(), session.train()) for _ in range(4)]
      return found, small.read_variables(program, session.tf_session)

  trains = [small.random_examples(13)]
  trains += [small.random_examples(num_examples)] if last_batch != 'drop' else []
  for train in trains:
    found, variables = run(num_towers, train, input_mode=mode, **settings)
    expected, of_one = run(1, train)
    for (means, loss), (its_means, its_loss) in zip(found, expected):
      assert means == pytest.approx(its_means, abs=1e-6)
      assert loss == pytest.approx(its_loss, abs=1e-6)
    small.assert_same_weights(of_one, {name: variables[name] for name in of_one})


def test_updates_that_read_no_row_are_welcome():
  def model(batch, is_training):
    count = tf.get_variable('count', [], trainable=False, initializer=tf.zeros_initializer())
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, count.assign_add(1.0))
    return small.model(batch, is_training)

  with small.Run(model=model, last_batch='pad') as run:
    run.train(3)
    [count] = [variable for variable in run.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
               if variable.op.name == 'count']
    assert run.session.run(count) == 3


@pytest.mark.parametrize('last_batch, batch_size, words', [
    ('keep', 8, '2 steps per epoch (the last of 5)'),
    ('drop', 8, '1 step per epoch (5 examples of each epoch left out)'),
    ('keep', 64, '1 step per epoch (its batch of 13)'),
    ('pad', 64, '1 step per epoch (its batch of 13, filled up)')])
def test_the_first_lines_say_what_becomes_of_a_smaller_batch(last_batch, batch_size, words):
  assert describe_batch(build_plan(num_examples=13, batch_size=batch_size, num_towers=2,
                                   last_batch=last_batch)).endswith(words)


def test_other_examples_are_left_out_in_each_epoch():
  plan = build_plan(num_examples=13, batch_size=8, num_towers=2, last_batch='drop')
  taken = [set(plan.indices_at(epoch, seed=3)) for epoch in range(20)]
  assert {len(epoch) for epoch in taken} == {8} and set.union(*taken) == set(range(13))
  np.testing.assert_array_equal(plan._replace(last_batch='pad').indices_at(1, seed=3)[:5],
                                plan._replace(last_batch='keep').indices_at(1, seed=3))


def test_only_training_leaves_the_last_batch_out():
  settings = dict(shuffle=True, validates=True)
  with small.Run(last_batch='drop', **settings) as run, small.Run(**settings) as other:
    run.train()
    assert run.counters() == [1, 8] and run.program.plan.steps_per_epoch == 1
    other.train()
    assert run.validate()[1] == 11
    assert run.validate()[0] == pytest.approx(other.validate()[0], abs=1e-6)
