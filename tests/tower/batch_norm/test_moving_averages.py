"""Batch normalisation over towers: averages move once a step, and empty towers have no part."""

import itertools

import numpy as np
import pytest

from tests.data.test_skipped_steps import examples_without
from tests.harness import small
from tests.harness.device_audit import DeviceAudit
from towers.base.usage_error import UsageError
from towers.input import pipeline
from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import batch_norm


def model(batch, is_training):
  features, labels = batch
  x = tf.nn.relu(batch_norm(3.0 + small.dense(features, 6, 'hidden'), is_training, name='norm'))
  logits = small.dense(batch_norm(x, is_training, name='norm_2'), small.NUM_CLASSES, 'logits')
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  return losses, {'accuracy': tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)}


def one_layer(batch, is_training):
  """A layer whose input is the batch itself, so that its moments are known."""
  features, labels = batch
  return small.classify(batch_norm(features, is_training, name='norm', momentum=0.75), labels)


def averages(run):
  return {name: value for name, value in run.variables().items() if 'moving' in name}


KINDS = ('first', 'mean', 'sync')


@pytest.mark.parametrize('num_towers, kind, accumulate', small.nightly_but(
    [(2, 'sync', 1), (2, 'sync', 3)],
    [*itertools.product([1, 2, 3], KINDS, [1]), (2, 'sync', 3)]))
def test_averages_move_once_a_step_by_the_moments_of_their_kind(kind, num_towers, accumulate):
  train = small.random_examples(24)
  batch = train.arrays[0][:8 * accumulate]
  runs = {1: [8], 2: [4, 4], 3: [3, 3, 2]}[num_towers]
  parts = np.split(batch, np.cumsum(runs)[:-1])
  if kind == 'sync':
    parts = np.split(batch, accumulate)
  if kind == 'first':
    parts = parts[:1]
  mean = np.average([part.mean(0) for part in parts], 0, [len(part) for part in parts])
  variance = np.average([part.var(0, ddof=1) for part in parts], 0, [len(part) for part in parts])
  with small.Run(model=one_layer, num_towers=num_towers, batch_norm=kind, train=train,
                 batch_size=len(batch), accumulate=accumulate, validates=True) as run:
    run.validate()
    small.assert_same_weights(averages(run), {
        'norm/moving_mean': np.zeros(5), 'norm/moving_variance': np.ones(5)}, 0)
    run.train()
    after = {'norm/moving_mean': 0.25 * mean, 'norm/moving_variance': 0.75 + 0.25 * variance}
    small.assert_same_weights(averages(run), after, tolerance=1e-6)
    run.validate()
    small.assert_same_weights(averages(run), after, tolerance=1e-6)


@pytest.mark.nightly(but='split-first')
@pytest.mark.parametrize('mode, kind', list(itertools.product(small.MODES, KINDS)))
def test_empty_towers_have_no_part(mode, kind, monkeypatch):
  # 11 in batches of 5 leave one for 3 towers; in `shard` mode the first may be empty.
  monkeypatch.setattr(pipeline, 'fill_empty', small.fill_with_nan)
  with small.Run(model=model, mode=mode, num_towers=3, batch_size=5, batch_norm=kind,
                 train=small.random_examples(11)) as run:
    losses = [run.train() for _ in range(9)]
    assert all(np.isfinite(value).all()
               for value in [losses, *run.weights().values(), *averages(run).values()])
    assert all((value >= 0).all() for name, value in averages(run).items() if name.endswith(
        'variance'))


# The third step deals three shards the rows from 16 on in turn. Where those of the first are left
# out, the second stands in.
@pytest.mark.nightly(but='bad1-of_first1')
@pytest.mark.parametrize('bad, of_first', [([], [16, 19, 22]), ([16, 19, 22], [17, 20, 23])])
def test_first_is_the_first_tower_that_has_examples(bad, of_first, monkeypatch):
  monkeypatch.setattr(pipeline, 'fill_empty', small.fill_with_nan)
  with small.Run(model=one_layer, mode='shard', num_towers=3, batch_size=8,
                 train=examples_without(bad, 24)) as run:
    run.train(), run.train()
    before = averages(run)['norm/moving_mean']
    run.train()
    rows = small.random_examples(24).arrays[0][of_first]
    np.testing.assert_allclose(averages(run)['norm/moving_mean'],
                               0.75 * before + 0.25 * rows.mean(0), atol=1e-6)


@pytest.mark.nightly(but='13-False')
@pytest.mark.parametrize('num_train, is_joined', [(16, False), (13, False), (17, True)])
def test_first_takes_no_moments_of_towers_that_are_never_asked(num_train, is_joined):
  with small.Run(model=one_layer, num_towers=3, train=small.random_examples(num_train)) as run:
    names = [op.name for op in run.graph.get_operations()]
    assert any(name.startswith('all_sum') for name in names) == is_joined


def test_validation_sums_no_moments_between_towers_and_workers():
  run = small.Run(model=model, batch_norm='sync', num_towers=3, num_workers=2, validates=True)
  validation = run.program.validation

  def sums(audit):
    return [op.name for op in audit.ops if op.type.startswith('Collective')
            or (op.name.startswith('all_sum') and op.type in ('Add', 'AddV2', 'AddN'))]

  assert len(sums(DeviceAudit([run.program.train_op]))) > 4
  assert not sums(DeviceAudit([validation.sums], fed_true=[validation.is_validating]))
  run.session.close()


def test_large_means_do_not_cancel():
  x = (1000 + np.random.RandomState(0).randn(64, 3)).astype(np.float32)
  with tf.Graph().as_default(), tf.Session() as session:
    y = batch_norm(tf.constant(x), True, name='norm')
    [moving_mean] = [variable for variable in tf.global_variables() if variable.op.name.endswith(
        'moving_mean')]
    session.run(tf.global_variables_initializer())
    for _ in range(100):
      session.run(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    np.testing.assert_allclose(session.run(moving_mean), x.mean(0), rtol=1e-4)
    np.testing.assert_allclose(session.run(y), (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5),
                               atol=2e-3)


def stale(batch, is_training):
  tf.get_variable('moving_mean', [5], trainable=False)
  return small.model(batch, is_training)


def foreign(batch, is_training):
  moving = tf.get_variable('moving_mean', [5], trainable=False)
  tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, moving.assign_add(tf.ones([5])))
  return small.model(batch, is_training)


@pytest.mark.nightly(but='stale-first-Nothing updates moving_mean.*layer.get_updates_for')
@pytest.mark.parametrize('broken, kind, words', [
    (stale, 'first', 'Nothing updates moving_mean.*layer.get_updates_for'),
    (foreign, 'mean', 'batch_norm=mean needs layers that share their moments')])
def test_what_would_silently_go_wrong_is_refused(broken, kind, words):
  with pytest.raises(UsageError, match=words):
    small.Run(model=broken, num_towers=2, batch_norm=kind)


def test_foreign_updates_run_once_a_step():
  with small.Run(model=foreign, num_towers=3, validates=True) as run:
    before = averages(run)['moving_mean']
    run.train(3)
    run.validate()
    np.testing.assert_allclose(averages(run)['moving_mean'], before + 3, atol=1e-6)

