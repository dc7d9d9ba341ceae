"""Models that compute from several examples: refused or named before the first step."""

import logging

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.coupling import picks
from tests.coupling.models import EXACT, MIXED, SCALED
from tests.coupling.test_follow import X, Y


def build(model, *, num_towers=2, **settings):
  with tf.Graph().as_default():
    return towers.Program(
        lambda batch, is_training: model(*batch), train=towers.from_arrays(X, Y), batch_size=4,
        num_towers=num_towers, device='cpu', optimizer=tf.train.GradientDescentOptimizer(0.1),
        **settings)


@pytest.mark.parametrize('settings', [dict(), dict(num_towers=1, accumulate=2),
                                      dict(input_mode='shard')], ids=str)
def test_a_sum_is_refused_with_its_line(settings):
  with pytest.raises(towers.UsageError, match=r'a sum .*models.py, line \d+.*the 2 parts of a '
                                              r'step.*the mean over the batch'):
    build(SCALED['a_sum'], **settings)


def test_values_that_are_divided_already_are_refused():
  with pytest.raises(towers.UsageError, match='divide by the number'):
    build(SCALED['losses_divided_by_the_number_of_examples'])


def test_one_tower_takes_any_loss(caplog):
  build(SCALED['a_sum'], num_towers=1)
  build(MIXED['in_batch_negatives'], num_towers=1)
  assert not caplog.records


@pytest.mark.nightly(but='a_mean_over_a_mask')
@pytest.mark.parametrize('model', ['in_batch_negatives', 'a_mean_over_a_mask'])
def test_a_value_of_several_examples_is_named_once(model, caplog):
  with caplog.at_level(logging.WARNING, 'towers'):
    build(MIXED[model], num_towers=3)
  [record] = caplog.records
  assert 'models.py, line' in record.getMessage() and '3 parts' in record.getMessage()


@pytest.mark.nightly(but='2-1-True')
@pytest.mark.parametrize('num_towers, accumulate, is_named', [
    (2, 1, True), (1, 2, True), (4, 1, False), (1, 1, False)])
def test_a_picked_example_is_named_unless_it_is_the_batch(num_towers, accumulate, is_named, caplog):
  with caplog.at_level(logging.WARNING, 'towers'):
    build(picks.MIXED['less_the_first'], num_towers=num_towers, accumulate=accumulate)
  messages = [record.getMessage() for record in caplog.records]
  assert len(messages) == is_named
  assert all('picks.py, line' in text and 'one example of the data' in text for text in messages)


@pytest.mark.parametrize('settings, is_named', [
    (dict(), True), (dict(num_towers=1, accumulate=2), True),
    (dict(num_towers=1, last_batch='pad'), False)], ids=str)
def test_a_mean_over_the_longest_example_is_named_in_divided_batches(settings, is_named, caplog):
  def model(x, y):
    weight = tf.get_variable('weight', [])
    return weight * tf.reduce_mean(tf.sequence_mask(y + 1, dtype=tf.float32), 1)

  with caplog.at_level(logging.WARNING, 'towers'):
    build(model, **settings)
  messages = [record.getMessage() for record in caplog.records]
  assert len(messages) == is_named
  assert all('Mean, made in' in text and 'sum over it with a mask' in text for text in messages)


def test_one_padded_tower_has_its_first_example_in_place():
  build(picks.MIXED['less_the_first'], num_towers=1, last_batch='pad')


def test_picked_examples_may_be_shown(caplog):
  def model(x, y):
    losses = EXACT['a_loss_per_example'](x, y)
    tf.summary.image('first', tf.reshape(x[:1] - x[1:2], [1, 4, 2, 1]))
    return losses, {'rest': towers.Weighted(losses[1:], tf.ones_like(losses[1:]))}

  build(model)
  assert not caplog.records


@pytest.mark.nightly(but=['an_inner_step-2', 'a_gradient_penalty-2'])
@pytest.mark.parametrize('num_towers', [1, 2, 3])
@pytest.mark.parametrize('model', ['a_gradient_penalty', 'a_gradient_penalty_of_a_mean',
                                   'an_inner_step'])
def test_gradients_inside_of_a_model_are_exact_or_named(model, num_towers, caplog):
  with caplog.at_level(logging.WARNING, 'towers'):
    build({**EXACT, **MIXED}[model], num_towers=num_towers)
  messages = [record.getMessage() for record in caplog.records]
  assert len(messages) == (model in MIXED and num_towers > 1)
  assert all('tf.gradients of values per example' in message for message in messages)


def test_the_square_of_a_means_gradient_is_refused():
  with pytest.raises(towers.UsageError, match='no mean.*tf.gradients of values per example'):
    build(SCALED['a_square_of_the_gradient_of_a_mean'])


def test_a_metric_is_followed_too(caplog):
  def model(x, y):
    return EXACT['a_loss_per_example'](x, y), {'rank': x[:, 0] - tf.reduce_mean(x[:, 0])}

  build(model)
  assert 'The metric rank' in caplog.records[0].getMessage()


def state(name, initial, **settings):
  return tf.get_variable(name, initializer=initial, trainable=False, **settings)


def centres(x, y):
  kept = state('centres', np.zeros([4, 8], 'f'))
  return tf.scatter_sub(kept, y, 0.5 * (tf.gather(kept, y) - x)), tf.gather(kept, y)[:, 0]


def a_queue(x, y):
  kept = state('queue', np.zeros([3, 8], 'f'))
  return kept.assign(tf.concat([x, kept], 0)[:3]), tf.reduce_mean(kept) + x[:, 0]


def a_counter(x, y):
  kept = state('counter', 0.0)
  return kept.assign_add(1.0), kept + x[:, 0]


def an_average_to_look_at(x, y):
  return state('average', 0.0).assign_sub(tf.reduce_mean(x)), x[:, 0]


def batch_norm_of_another(x, y):
  kept = state('moving_mean', np.zeros([8], 'f'))
  return kept.assign_sub(0.1 * (kept - tf.reduce_mean(x, 0))), (x - kept)[:, 0]


@pytest.mark.nightly(but=['a_counter-3-False', 'batch_norm_of_another-3-False'])
@pytest.mark.parametrize('model, num_towers, is_named', [
    (centres, 3, True), (centres, 1, False), (a_queue, 3, True), (a_counter, 3, False),
    (an_average_to_look_at, 3, False), (batch_norm_of_another, 3, False)])
def test_state_of_a_batch_is_named_if_the_loss_reads_it(model, num_towers, is_named, caplog):
  def keeping(x, y):
    update, added = model(x, y)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    return EXACT['a_loss_per_example'](x, y) + added

  with caplog.at_level(logging.WARNING, 'towers'):
    build(keeping, num_towers=num_towers)
  messages = [record.getMessage() for record in caplog.records]
  assert len(messages) == is_named
  assert all('test_coupled.py, line' in text and '3 parts' in text for text in messages)


def test_rows_that_do_not_count_are_not_mixed():
  with pytest.raises(towers.UsageError, match='last_batch=pad.*Mean.*last_batch=drop'):
    build(lambda x, y: EXACT['a_loss_per_example'](x - tf.reduce_mean(x, 0), y), last_batch='pad')


def normalised(then):
  return lambda x, y: then(towers.tower.batch_norm_layer.batch_norm(x, True, name='norm'), y)


def test_batch_normalisation_has_a_setting_of_its_own(caplog):
  for setting in ('first', 'sync'):
    build(normalised(EXACT['a_loss_per_example']), batch_norm=setting)
  assert not caplog.records


def test_what_follows_batch_normalisation_is_named(caplog):
  build(normalised(MIXED['in_batch_negatives']), batch_norm='sync')
  assert 'MatMul' in caplog.records[0].getMessage()
