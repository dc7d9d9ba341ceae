"""Mixed precision: half inside of towers, float32 in variables; a scale saves small gradients."""

import numpy as np
import pytest

import models
import towers
from tests.harness import faults, small
from tests.update import test_nan_guard
from towers.base.usage_error import UsageError
from towers.data import load_synthetic
from towers.placement.replicas import REPLICAS
from towers.tensorflow_v1 import tf
from towers.tower.precision import build_precision
from towers.training.reporting.describe import describe_precision

NUM_STEPS = 4
TRAIN = small.random_examples(16)
MIXED = dict(precision='mixed', train=TRAIN)


def take_steps(**settings):
  """Returns the weights after some steps."""
  with small.Run(**settings) as run:
    run.train(NUM_STEPS)
    return run.weights()


def get_scale(run):
  loss_scale = run.program.gradients.loss_scale
  return tuple(run.session.run([loss_scale.variable, loss_scale.good_steps]))


def test_what_is_kept_is_float32_and_what_towers_compute_is_not():
  with small.Run(num_towers=2, placement='replicated', model=test_nan_guard.normed,
                 **MIXED) as run, run.graph.as_default():
    kept = [*tf.global_variables(), *tf.local_variables(), *tf.get_collection(REPLICAS)]
    assert {variable.dtype.base_dtype for variable in kept} == {tf.float32, tf.int64}
    products = [op for op in run.graph.get_operations()
                if op.type == 'MatMul' and op.name.startswith('tower_')]
    # A clone leaves out what no weight needs.
    assert len(products) >= 2 * 5 and {op.outputs[0].dtype for op in products} == {tf.float16}
    assert {gradient.dtype for gradient, _ in run.program.gradients.gradients} == {tf.float32}
    assert {tower.loss.dtype for tower in run.program.towers} == {tf.float32}
    exchanged = [op for op in run.graph.get_operations() if op.type.startswith('CollectiveReduce')]
    assert exchanged and {op.outputs[0].dtype for op in exchanged} == {tf.float32}
    assert describe_precision(run.program.precision) == (
        'precision: float16, on weights of float32; loss scale adapted')


@pytest.mark.nightly(but='1024.0-None')
@pytest.mark.parametrize('loss_scale, clip_norm', [(1.0, None), (1024.0, None), (1.0, 0.3),
                                                   (None, 0.3)])
def test_a_scale_changes_nothing_but_what_would_be_lost(loss_scale, clip_norm):
  weights = take_steps(num_towers=2, clip_norm=clip_norm, loss_scale=loss_scale, **MIXED)
  expected = take_steps(num_towers=2, clip_norm=clip_norm, loss_scale=256.0, **MIXED)
  small.assert_same_weights(weights, expected, tolerance=2e-5)


@small.with_losses
def faint(losses):
  """Gradients that are zero in float16: below 6e-8."""
  return 1e-8 * tf.cast(losses, tf.float32)


@pytest.mark.nightly(but='4096.0-True')
@pytest.mark.parametrize('loss_scale, learns', [(1.0, False), (4096.0, True), (None, True)])
def test_gradients_too_small_for_half_are_saved_by_a_scale(loss_scale, learns):
  with small.Run(model=faint, loss_scale=loss_scale, learning_rate=1e6, **MIXED) as run:
    run.train()
    changes = [np.abs(value - run.initial_weights[name]).max()
               for name, value in run.weights().items()]
  assert (max(changes) > 1e-3) == learns


def regularized(batch, is_training):
  """Two layers with penalties large enough to be seen: on the weights, and on these in half."""
  del is_training
  features, labels = batch
  with tf.variable_scope('hidden'):
    hidden = tf.get_variable('weights', [small.NUM_FEATURES, 4],
                             regularizer=lambda weights: 0.1 * tf.reduce_sum(tf.square(weights)))
  x = tf.tanh(tf.matmul(features, hidden))
  with tf.variable_scope('logits'):
    weights = tf.get_variable('weights', [4, small.NUM_CLASSES])
  tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, 0.1 * tf.reduce_sum(tf.square(weights)))
  logits = tf.cast(tf.matmul(x, weights), tf.float32)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def unregularized(batch, is_training):
  losses = regularized(batch, is_training)
  del tf.get_collection_ref(tf.GraphKeys.REGULARIZATION_LOSSES)[:]
  return losses


@pytest.mark.nightly(but='131072.0-1')
@pytest.mark.parametrize('loss_scale, accumulate', [
    (None, 1), (2.0 ** 17, 1), (1024.0, 3), (2.0 ** 17, 3)])
def test_penalties_weigh_the_same_at_any_scale_and_in_any_micro_batches(loss_scale, accumulate):
  def weights(model=regularized, **settings):
    return take_steps(model=model, batch_size=6, **dict(MIXED, **settings))

  found = weights(num_towers=2, loss_scale=loss_scale, accumulate=accumulate)
  small.assert_same_weights(found, weights(num_towers=1, precision='float32'), tolerance=2e-3)
  plain = weights(unregularized, num_towers=1, precision='float32')
  assert all(np.abs(found[name] - plain[name]).max() > 2e-2 for name in found)


def steep(batch, is_training):
  """In a step of 12 examples float16 holds the largest gradient at a scale of 512, not of 1024."""
  del is_training
  values = 1e-3 * small.dense(batch[0], 2, 'steep')
  return 1000 * tf.reduce_sum(tf.cast(values, tf.float32), 1)


@pytest.mark.nightly(but='3-2')
@pytest.mark.parametrize('accumulate, num_towers', [(3, 2), (1, 1), (4, 3), (2, 1)])
def test_micro_batches_overflow_where_one_batch_does(accumulate, num_towers):
  def train(loss_scale):
    with small.Run(model=steep, batch_size=12, train=small.random_examples(12), precision='mixed',
                   loss_scale=loss_scale, accumulate=accumulate, num_towers=num_towers) as run:
      run.train()
      return run.weights()

  small.assert_same_weights(train(512.0), train(1.0), tolerance=1e-3)
  with pytest.raises(towers.RunError, match='not finite'):
    train(1024.0)


def squared(batch, is_training):
  """A finite loss of features as large as 300: gradients times 2**15 are too large for half."""
  del is_training
  return tf.reduce_sum(tf.square(tf.cast(small.dense(batch[0] / 8, 2, 'squared'), tf.float32)), 1)


CASES = [dict(), dict(placement='replicated', optimizer='adam'),
         dict(placement='replicated', tower_build='clone'),
         dict(validation_tower=True, num_towers=4), dict(depth=0, accumulate=2)]


@pytest.mark.nightly(but='0')
@pytest.mark.parametrize('settings', CASES, ids=range(len(CASES)))
def test_an_overflow_in_one_tower_skips_the_step_once_in_all_and_halves_the_scale(settings, capsys):
  # Batches of 8 on 3 towers are 3, 3 and 2: row 14 is tower 2's, in the second step.
  train = faults.poison(TRAIN, test_nan_guard.ROW, 300.0)
  settings = {**dict(num_towers=3, model=squared, learning_rate=1e-4, precision='mixed',
                     train=train), **settings}
  with small.Run(**settings) as run:
    run.train()
    assert get_scale(run) == (2 ** 15, 1)
    before = test_nan_guard.everything(run)
    loss = run.train()
    assert np.isfinite(loss) and run.opened.step == 2 and run.counters() == [2, 16]
    assert get_scale(run) == (2 ** 14, 0)
    assert 'WARNING: step 2 has gradients too large for 16 bits' in capsys.readouterr().out
    after = test_nan_guard.everything(run)
    changed = {name for name in after if not np.array_equal(before[name], after[name])}
    assert changed == {'global_step', 'examples_seen', 'loss_scale/value', 'loss_scale/good_steps'}
    run.train()
    assert run.counters() == [3, 24] and get_scale(run) == (2 ** 14, 1)
    if run.program.replicas is not None:
      run.opened.check_replicas()


def test_what_no_scale_can_help_is_not_finite_at_once():
  mixed = dict(num_towers=3, precision='mixed')
  with small.Run(train=faults.poison(TRAIN, test_nan_guard.ROW), **mixed) as run:
    run.train()
    assert 'tower 2' in str(run.opened.take_step().not_finite)
    assert get_scale(run) == (2 ** 15, 1)
  # Gradients that are NaN at any scale are reported once the scale is 1.
  with small.Run(model=faults.root_of_zero, train=faults.poison(TRAIN, test_nan_guard.ROW, 0.0),
                 **mixed) as run, pytest.raises(towers.RunError):
    run.train(2 * 16 + 2)
  # A fixed scale is not touched.
  with small.Run(loss_scale=2.0 ** 15, learning_rate=1e-4, model=squared,
                 train=faults.poison(TRAIN, test_nan_guard.ROW, 300.0), **mixed) as run:
    run.train()
    assert not run.opened.take_step().not_finite.is_done


def test_the_scale_grows_after_good_steps_up_to_a_limit(monkeypatch):
  monkeypatch.setattr('towers.tower.precision._GOOD_STEPS', 3)
  monkeypatch.setattr('towers.tower.precision._LARGEST_SCALE', 2.0 ** 16)
  with small.Run(num_towers=2, model=faint, **MIXED) as run:
    scales = []
    for _ in range(7):
      run.train()
      scales.append(get_scale(run))
  assert scales == [(2**15, 1), (2**15, 2), (2**16, 0), (2**16, 1), (2**16, 2), (2**16, 0),
                    (2**16, 1)]


def test_the_half_follows_the_devices(monkeypatch):
  gpus = ['/device:GPU:0', '/device:GPU:1']
  for capabilities, devices, expected in [([(8, 0), (9, 0)], gpus, tf.bfloat16),
                                          ([(7, 0), (8, 0)], gpus, tf.float16),
                                          ([], gpus, tf.float16),
                                          ([(8, 0)], ['/device:CPU:0'], tf.float16)]:
    monkeypatch.setattr('towers.tower.precision.get_compute_capabilities',
                        lambda capabilities=capabilities: capabilities)
    with tf.Graph().as_default():
      precision = build_precision('mixed', devices=devices)
      assert precision.dtype == expected
      assert (precision.loss_scale.variable is None) == (expected == tf.bfloat16)
  assert build_precision('float32', devices=gpus) is None
  with pytest.raises(UsageError, match='choose one of float32, mixed'):
    build_precision('float8', devices=gpus)


def test_weights_that_are_half_themselves_are_refused():
  @small.with_losses
  def model(losses):
    own = tf.Variable(tf.ones([], tf.float16), name='own', use_resource=True)
    return losses * own

  with pytest.raises(UsageError, match='own and 0 more weights are of float16 themselves'):
    small.Run(num_towers=2, model=model, **MIXED)


@pytest.mark.parametrize('make, is_named', [
    (lambda: tf.Variable(tf.ones([3]), name='table'), True),
    (lambda: tf.get_variable('table', [3], initializer=tf.ones_initializer()), False)])
def test_a_model_that_computes_nothing_in_half_is_named(make, is_named, caplog):
  def model(batch, is_training):
    return tf.square(tf.gather(make(), batch[1]))

  small.Run(num_towers=2, model=model, **MIXED).close()
  assert ('the model computes nothing in float16' in caplog.text) == is_named


@pytest.mark.nightly(but='convnet-first')
@pytest.mark.parametrize('name, kind', [
    ('convnet', 'first'), ('resnet20', 'first'), ('resnet20', 'sync')])
def test_models_compute_in_half(name, kind):
  data = load_synthetic(image_shape=(32, 32, 3), num_classes=10, num_train=4, num_validation=2)
  run = small.Run(model=models.build_classifier(name, num_classes=10), batch_norm=kind,
                  batch_size=4, **dict(MIXED, train=data.train, validation=data.validation))
  convolutions = [op for op in run.graph.get_operations() if op.type.startswith('Conv2D')]
  assert convolutions and {op.outputs[0].dtype for op in convolutions} == {tf.float16}
  assert {gradient.dtype for gradient, _ in run.program.gradients.gradients} == {tf.float32}
  if name == 'convnet':  # Other kernels for half precision are for GPUs: a step takes minutes here.
    with run:
      assert np.isfinite(run.train())
  else:
    run.close()
