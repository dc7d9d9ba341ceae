"""Losses with weights: the sum over the global batch by the sum of weights over the global batch.

Here one tower is what one writes by hand; that several are one is in `tests.test_towers_equal_one`.
"""

import numpy as np
import pytest

import towers
from tests.harness import small
from tests.harness.in_process_cluster import InProcessCluster
from tests.test_towers_equal_one import weighted
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf

NUM_STEPS = 6
TRAIN = small.random_examples(17)
TRAIN.arrays[0][16] = -1  # The last batch of an epoch has no weight at all.
VALIDATION = small.random_examples(8, 'validation', seed=1)
SETTINGS = dict(train=TRAIN, optimizer='sgd', learning_rate=0.5, weight_decay=0.0)
EVEN = dict(SETTINGS, train=small.random_examples(16))


def by_hand(batch, is_training):
  """A mean over the batch, which only one tower that has all of it can take."""
  (losses, weights), metrics = weighted(batch, is_training)
  total = tf.reduce_sum(weights)
  hits = tf.reduce_sum(weights * tf.cast(metrics['hits'].values, tf.float32), 1)
  size = tf.cast(tf.size(batch[1]), tf.float32)
  return tf.math.divide_no_nan(tf.reduce_sum(weights * losses), total), dict(
      metrics, hits=tf.math.divide_no_nan(size * hits, total))


def changed(change):
  """The model with other losses and weights."""
  def model(batch, is_training):
    return change(*weighted(batch, is_training)[0])
  return model


def penalised(model):
  def changed(batch, is_training):
    with tf.variable_scope('', regularizer=lambda weights: 0.1 * tf.nn.l2_loss(weights)):
      return model(batch, is_training)
  return changed


def train(model, **settings):
  """Returns losses, weights and what validation measures."""
  with small.Run(model=model, validation=VALIDATION, **dict(SETTINGS, **settings)) as run:
    losses = [run.train() for _ in range(NUM_STEPS)]
    small.assert_moved(run.initial_weights, run.weights())
    return losses, run.weights(), run.validate()[0]


@pytest.mark.nightly(but=['of losses', 'scaled'])
@pytest.mark.parametrize('model', [
    weighted, changed(towers.Weighted),
    changed(lambda losses, weights: (2 * towers.Weighted(losses, weights) * 0.5, {})),
    # No gradient goes through weights.
    changed(lambda losses, weights: (towers.Weighted(losses, weights * tf.exp(
        losses - tf.stop_gradient(losses))), {}))],
    ids=['weighted', 'no metrics', 'scaled', 'of losses'])
def test_one_tower_is_as_by_hand(model):
  (losses, weights, measured), expected = train(model), train(by_hand, num_towers=1)
  np.testing.assert_allclose(losses, expected[0], atol=1e-5)
  assert 0 in losses
  small.assert_same_weights(weights, expected[1])
  assert measured == pytest.approx({name: expected[2][name] for name in measured}, abs=1e-5)


@pytest.mark.nightly(but=['several-settings0', 'weighted-settings3'])
@pytest.mark.parametrize('settings', [
    dict(num_towers=3), dict(num_towers=1), dict(num_towers=2, mode='shard'),
    dict(num_towers=2, accumulate=2, placement='replicated')])
@pytest.mark.parametrize('model', [
    weighted, changed(towers.Weighted), changed(lambda losses, weights: {
        'first': towers.Weighted(losses, weights),
        'second': towers.Weighted(tf.square(losses), tf.square(weights))})],
    ids=['weighted', 'no metrics', 'several'])
def test_training_metrics_are_means_by_weights_as_those_of_validation(model, settings, request):
  if 'several-settings3' in request.node.name:
    pytest.skip('several losses by weights are refused where a step has micro-batches')
  with small.Run(model=model, **dict(SETTINGS, learning_rate=1e-30, **settings)) as run:
    for _ in range(run.opened.plan.steps_per_epoch):
      run.opened.train()
    measured, expected = run.opened.metrics(), run.opened.evaluate(TRAIN)
  assert 'loss' in measured
  assert measured == pytest.approx({name: expected[name] for name in measured}, rel=1e-5)


@pytest.mark.nightly(but='3-1-settings0')
@pytest.mark.parametrize('num_towers, num_workers, settings', [
    (3, 1, dict(placement='replicated', tower_build='clone')),
    (2, 1, dict(accumulate=2, precision='mixed', loss_scale=64.0)),
    (2, 2, dict(placement='replicated'))])
def test_penalties_count_once_and_whole(num_towers, num_workers, settings):
  expected = train(penalised(by_hand), num_towers=1)
  with InProcessCluster(num_workers=num_workers, num_towers=num_towers, model=penalised(weighted),
                        **dict(SETTINGS, **settings)) as cluster:
    losses = [cluster.train() for _ in range(NUM_STEPS)]
    tolerance = 5e-3 if 'precision' in settings else 1e-5
    np.testing.assert_allclose(losses, expected[0], atol=tolerance)
    small.assert_same_weights(cluster.runs[0].weights(), expected[1], tolerance=tolerance)
  assert abs(train(weighted)[1]['hidden/weights'] - expected[1]['hidden/weights']).max() > 0.05


def test_a_clip_takes_the_norm_of_the_divided_gradients():
  with small.Run(model=weighted, **dict(EVEN, clip_norm=0.05, learning_rate=1.0)) as run:
    run.train()
    moved = [value - run.initial_weights[name] for name, value in run.weights().items()]
  assert np.sqrt(sum((value ** 2).sum() for value in moved)) == pytest.approx(0.05, rel=1e-4)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize('change, message', [
    (lambda weights: weights + float('nan'), 'not finite'),
    (lambda weights: weights - 0.5, 'loss of the model has a weight below 0'),
    (lambda weights: tf.placeholder_with_default(weights[:, 1:], [None, None]),
     'one weight for each value')], ids=['nan', 'below 0', 'fewer'])
def test_weights_that_only_a_run_shows_wrong_end_the_step_before_anything_is_updated(
    change, message):
  model = changed(lambda losses, weights: towers.Weighted(losses, change(weights)))
  with small.Run(model=model, **EVEN) as run:
    before = run.weights()
    with pytest.raises(towers.RunError, match=message):
      run.train()
    small.assert_same_weights(run.weights(), before, tolerance=0)


def of_any_rank(values):
  return tf.placeholder_with_default(values, None)


@pytest.mark.nightly(but=['0', '1', '13', '16'])
@pytest.mark.parametrize('change, message', [
    (lambda losses, weights: towers.Weighted(losses, weights[:, :1]),
     r'weights of the shape \(.*, 1\) for values of'),
    (lambda losses, weights: towers.Weighted(losses, tf.reduce_sum(weights, 1)), 'one weight for'),
    (lambda losses, weights: towers.Weighted(tf.reduce_mean(losses), tf.constant(1.0)),
     'weights, which need one value per example'),
    (lambda losses, weights: towers.Weighted(tf.reduce_mean(losses, 0, True), tf.ones([1, 3])),
     'has 1 values for every batch'),
    (lambda losses, weights: losses, r'towers\.Weighted'),
    (lambda losses, weights: (losses, 'weights'), 'returned a tuple'),
    (lambda losses, weights: (losses, weights, {}), 'returned a tuple of 3'),
    (lambda losses, weights: (losses[:, 0], losses[:, 1]), 'returned a tuple of 2'),
    (lambda losses, weights: (losses[:, 0], dict(hits=losses)), r'towers\.Weighted'),
    (lambda losses, weights: (losses[:, 0], dict(mean=tf.reduce_mean(losses))), 'metric mean has'),
    (lambda losses, weights: (losses[:, 0], dict(loss=losses[:, 0])), "called 'loss'"),
    (lambda losses, weights: (losses[:, 0], dict(examples=losses[:, 0])), "called 'examples'"),
    (lambda losses, weights: (losses[:, 0], dict(gradient_norm=losses[:, 0])), "'gradient_norm'"),
    (lambda losses, weights: dict(loss=losses[:, 0], other=losses[:, 1]), "called 'loss'"),
    (lambda losses, weights: (losses[:, 0], dict(word=tf.as_string(losses[:, 0]))), 'has texts'),
    (lambda losses, weights: tf.reduce_mean(towers.Weighted(losses, weights)), 'return it as it'),
    (lambda losses, weights: (losses[:, 0], dict(hits=of_any_rank(losses))),
     r'The metric hits has .*:0 of an unknown .*: write value.set_shape\(\[None\]\) for one value'),
    (lambda losses, weights: of_any_rank(losses), 'loss of the model has .* of an unknown number'),
    (lambda losses, weights: towers.Weighted(losses, of_any_rank(weights)), 'of an unknown number'),
    (lambda losses, weights: (losses[:, 0], dict(auc=towers.Whole(np.mean, [of_any_rank(losses)]))),
     'metric auc has .* of an unknown number'),
], ids=range(20))
def test_shapes_that_do_not_fit_are_refused(change, message):
  with pytest.raises(UsageError, match=message):
    small.Run(model=changed(change), **SETTINGS)


@pytest.mark.parametrize('scale', [
    lambda loss: loss * 0.5, lambda loss: 0.5 * loss, lambda loss: np.float32(0.5) * loss,
    lambda loss: tf.constant(0.5) * loss, lambda loss: loss / 2], ids=range(5))
def test_a_factor_scales_a_loss_with_weights(scale):
  expected = train(changed(lambda losses, weights: towers.Weighted(losses * 0.5, weights)))[0]
  model = changed(lambda losses, weights: scale(towers.Weighted(losses, weights)))
  np.testing.assert_allclose(train(model)[0], expected, rtol=1e-6)


def test_a_metric_without_any_weight_has_no_mean():
  model = changed(lambda losses, weights: (
      towers.Weighted(losses, weights), {'rare': towers.Weighted(losses, tf.zeros_like(losses))}))
  with small.Run(model=model, validation=VALIDATION, **EVEN) as run:
    with pytest.raises(UsageError, match="weights of 'rare' are all 0 over the 8 examples"):
      run.validate()
    # Of several tasks other examples may have one alone.
    assert list(run.opened.evaluate(VALIDATION)) == ['loss']


def test_a_program_without_weights_has_no_op_for_them():
  run = small.Run(model=changed(lambda losses, weights: tf.reduce_sum(losses, 1)), **EVEN)
  run.close()
  assert not [op.name for op in run.graph.get_operations() if '/weigh/' in '/' + op.name]
