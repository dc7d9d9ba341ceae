"""The last, smaller batch of an epoch: filled up it equals one that is kept, in one shape."""

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.harness import small
from tests.harness.small import Run, assert_moved, assert_same_weights
from tests.input.test_shapes import BATCH, KINDS, NUM, POINTS, SEED, STEPS
from towers.base.usage_error import UsageError
from towers.input.plan import build_plan
from towers.tower.batch_norm_layer import batch_norm
from towers.training.reporting.describe import describe_batch

EPOCHS = 2


def take(kind, mode, num_towers, num_workers, first_step, last_batch):
  """Returns what each tower of each worker takes, step by step, to the end of two epochs."""
  taken = []
  for rank in range(num_workers):
    with tf.Graph().as_default():
      plan = build_plan(num_examples=NUM, batch_size=BATCH, num_towers=num_towers, rank=rank,
                        num_workers=num_workers, last_batch=last_batch)
      inputs = towers.build_inputs(KINDS[kind](NUM), plan=plan, mode=mode, shuffle=True, seed=SEED)
      batches = inputs.next_batches()
      if last_batch == 'pad':
        assert {batch.num_rows for batch in batches} == {plan.num_rows}
      with tf.Session() as session:
        session.run(inputs.initializer, inputs.feed_dict(first_step))
        for _ in range(first_step, EPOCHS * STEPS):
          for rows, count in session.run([(batch.tensors, batch.num_examples)
                                          for batch in batches]):
            # What fills a batch up repeats its last example.
            assert count == 0 or set(rows[count:]) <= {rows[count - 1]}
            taken.append(rows[:count].tolist())
  return taken


PLACES = [(list(KINDS)[number % 4],) + point + (number % 5,)
          for number, point in enumerate(POINTS[::5])]


@pytest.mark.parametrize('kind, mode, num_towers, num_workers, first_step',
                         small.nightly_but(PLACES[2:3], PLACES))
def test_a_batch_that_is_filled_up_has_the_same_examples(kind, mode, num_towers, num_workers,
                                                         first_step):
  place = kind, mode, num_towers, num_workers, first_step
  assert take(*place, last_batch='pad') == take(*place, last_batch='keep')


class Recorder:
  """A model with dropout, an embedding and weights, that records each tower's shapes."""

  def __init__(self):
    self.shapes = {}

  def __call__(self, batch, is_training):
    features, labels = batch
    seen = self.shapes.setdefault(tf.get_default_graph().get_name_scope(), set())
    recorded = tf.py_func(lambda rows: [seen.add(rows.shape), rows][1], [features], tf.float32)
    recorded.set_shape(features.shape)
    features = recorded
    hidden = tf.tanh(small.dense(features, 6, 'hidden'))
    keep = tf.cast(tf.random_uniform(tf.shape(hidden)) < 0.7, tf.float32)
    hidden *= tf.where(is_training, keep, tf.ones_like(keep))
    rows = tf.nn.embedding_lookup(tf.get_variable('rows', [small.NUM_CLASSES, 6]), labels)
    logits = small.dense(hidden + rows, small.NUM_CLASSES, 'logits')
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    right = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
    return towers.Weighted(losses, 1 + features[:, 0] ** 2), {'accuracy': right}


def train(last_batch, **settings):
  """Returns losses, validations, weights and shapes of two epochs of 13 examples."""
  model = Recorder()
  settings = dict(dict(optimizer='adam', learning_rate=0.01), **settings)
  with Run(model=model, last_batch=last_batch, shuffle=True, **settings) as run:
    losses, means = [], []
    for _ in range(EPOCHS):
      losses += [run.train(), run.train()]
      means.append(run.validate())
    assert_moved(run.initial_weights, run.weights())
    return losses, means, run.weights(), list(filter(None, model.shapes.values()))


# Modes, towers, depths, micro-batches and kinds of validation.
RUNS = [(mode, num_towers, depth, 1 + (num_towers < 4 and number % 2),
         ('switch', 'tower')[number % 3 == 1 and num_towers > 1])
        for number, (mode, num_towers, depth) in enumerate(
            small.covering_grid(small.MODES, small.TOWERS, small.DEPTHS))]
FAST = [RUNS[1], RUNS[12]]


@pytest.mark.nightly(but='split-2-2-2-tower')
@pytest.mark.parametrize('mode, num_towers, depth, accumulate, validation',
                         [run for run in RUNS if run in FAST or run[1] in (1, 3, 8)])
def test_filled_up_is_as_kept_to_rounding_in_one_shape(mode, num_towers, depth, accumulate,
                                                       validation):
  settings = dict(mode=mode, num_towers=num_towers, depth=depth, accumulate=accumulate,
                  validation_kind=validation)
  losses, means, weights, shapes = train('keep', **settings)
  found = train('pad', **settings)
  assert found[0] == pytest.approx(losses, abs=1e-5)
  for (mean, count), (other, other_count) in zip(found[1], means):
    assert mean == pytest.approx(other, abs=1e-5) and count == other_count == 11
  assert_same_weights(found[2], weights)
  assert num_towers == 8 or max(map(len, shapes)) > 1
  assert set(map(len, found[3])) == {1}


def mean_loss(batch, is_training):
  losses, _ = small.model(batch, is_training)
  return tf.reduce_mean(losses)


def normalised(batch, is_training, layer):
  features, labels = batch
  return small.model((layer(features, is_training), labels), is_training)


def by_layer(features, is_training):
  return batch_norm(features, is_training, name='norm')


def by_kernel(features, is_training):
  del is_training
  ones = tf.ones([small.NUM_FEATURES])
  images = tf.reshape(features, [-1, 1, 1, small.NUM_FEATURES])
  return tf.reshape(tf.nn.fused_batch_norm(images, ones, ones)[0], [-1, small.NUM_FEATURES])


@pytest.mark.nightly(but='by_kernel-FusedBatchNorm')
@pytest.mark.parametrize('layer, op', [(by_layer, 'norm/'), (by_kernel, 'FusedBatchNorm')])
def test_batch_normalisation_over_rows_that_do_not_count_is_refused(layer, op):
  def model(batch, is_training):
    return normalised(batch, is_training, layer)

  with pytest.raises(UsageError, match=f'last_batch=pad.*{op}.*test_last_batch.*last_batch=drop'), \
      Run(model=model, last_batch='pad'):
    pass
  # Batches that are full are not filled up.
  with Run(model=model, last_batch='pad', train=small.random_examples(16),
           validation=small.random_examples(8, 'validation')) as run:
    run.train()


def test_a_mean_over_rows_that_do_not_count_is_refused():
  with pytest.raises(UsageError, match='scalar.*last_batch=pad.*one loss per'):
    Run(model=mean_loss, last_batch='pad')


@pytest.mark.nightly(but='<lambda>1')
@pytest.mark.parametrize('reorder', [
    lambda losses, labels: tf.concat(tf.dynamic_partition(losses, labels % 2, 2), 0),
    lambda losses, labels: tf.gather(losses, tf.nn.top_k(losses, tf.shape(labels)[0])[1])])
def test_rows_in_another_order_are_refused(reorder):
  def model(batch, is_training):
    losses, metrics = small.model(batch, is_training)
    return reorder(losses, batch[1]), metrics

  with pytest.raises(UsageError, match='last_batch=pad.*loss.*depends on them.*last_batch=drop'), \
      Run(model=model, last_batch='pad'):
    pass
  with Run(model=model, last_batch='keep') as run:
    run.train()


def test_updates_that_read_no_row_are_welcome():
  def model(batch, is_training):
    count = tf.get_variable('count', [], trainable=False, initializer=tf.zeros_initializer())
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, count.assign_add(1.0))
    return small.model(batch, is_training)

  with Run(model=model, last_batch='pad') as run:
    for _ in range(3):
      run.train()
    [count] = [variable for variable in run.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
               if variable.op.name == 'count']
    assert run.session.run(count) == 3


def test_other_examples_are_left_out_in_each_epoch():
  plan = build_plan(num_examples=13, batch_size=8, num_towers=2, last_batch='drop')
  assert '(5 examples of each epoch left out)' in describe_batch(plan)
  taken = [set(plan.indices_at(epoch, seed=3)) for epoch in range(20)]
  assert {len(epoch) for epoch in taken} == {8} and set.union(*taken) == set(range(13))
  np.testing.assert_array_equal(plan._replace(last_batch='pad').indices_at(1, seed=3)[:5],
                                plan._replace(last_batch='keep').indices_at(1, seed=3))


def test_only_training_leaves_the_last_batch_out():
  with Run(last_batch='drop', shuffle=True) as run, Run(shuffle=True) as other:
    run.train()
    assert run.counters() == [1, 8] and run.program.plan.steps_per_epoch == 1
    other.train()
    assert run.validate()[1] == 11
    assert run.validate()[0] == pytest.approx(other.validate()[0], abs=1e-6)
