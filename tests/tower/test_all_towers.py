"""Values of all towers in a model, and several losses: N towers are one tower for them too."""

import functools
import itertools

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.harness.in_process_cluster import InProcessCluster
from tests.harness.small import Run, assert_moved, assert_same_weights, nightly_but
from towers.base.usage_error import UsageError
from towers.tower.all_towers import all_rows, all_sum

NUM_STEPS = 5
WORDS = 8
WEIGHT = []


def examples(num_rows, name='train', seed=0):
  """Rows of `(words [5], mask [5], follows)`; some rows, and one whole batch, have no mask."""
  random = np.random.RandomState(seed)
  mask = (random.rand(num_rows, 5) < 0.4).astype(np.float32)
  mask[::4] = 0
  return towers.from_arrays(random.randint(WORDS, size=[num_rows, 5]).astype(np.int32), mask,
                            random.randint(2, size=num_rows).astype(np.int32), name=name)


def encode(batch):
  words, mask, follows = batch
  rows = tf.nn.embedding_lookup(tf.get_variable('table', [WORDS, 5]), words)
  logits = tf.tensordot(rows, tf.get_variable('words', [5, WORDS]), 1)
  return tf.reduce_mean(rows, 1), mask, tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=words, logits=logits), follows


def judge(rows, follows):
  return tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=follows, logits=tf.matmul(rows, tf.get_variable('pairs', [5, 2])))


def counted(batch, is_training):
  """A sum over the positives of the global batch, divided by their number."""
  rows, mask, losses, follows = encode(batch)
  positives = all_sum(tf.reduce_sum(mask))
  examples_of_all = all_sum(tf.cast(tf.shape(mask)[0], tf.float32))
  scale = examples_of_all / tf.maximum(positives, 1)
  return tf.reduce_sum(mask * losses, 1) * scale + judge(rows, follows)


def centred(batch, is_training):
  """Statistics of the global batch of one's own, through which gradients go."""
  rows, follows = tf.nn.embedding_lookup(tf.get_variable('table', [WORDS, 5]), batch[0]), batch[2]
  rows = tf.reduce_mean(rows, 1)
  count = all_sum(tf.cast(tf.shape(rows)[0], tf.float32))
  mean = all_sum(tf.reduce_sum(rows, 0)) / count
  variance = all_sum(tf.reduce_sum(tf.square(rows - mean), 0)) / count
  rows = (rows - mean) * tf.rsqrt(variance + 0.1)
  return judge(rows, follows), {'size': tf.reduce_sum(tf.square(rows), 1)}


def contrasted(batch, is_training):
  """In-batch negatives of the global batch, and a queue of its last rows, in its order."""
  rows, follows = tf.nn.embedding_lookup(tf.get_variable('table', [WORDS, 5]), batch[0]), batch[2]
  rows = tf.reduce_mean(rows, 1)
  keys = tf.nn.l2_normalize(tf.matmul(rows, tf.get_variable('pairs', [5, 4])), 1)
  of_all, labels = all_rows(keys), all_rows(follows)
  same = tf.cast(tf.equal(follows[:, None], labels), tf.float32)
  logits = tf.matmul(keys, of_all, transpose_b=True) * 3
  queue = tf.get_variable('queue', [3, 4], trainable=False, initializer=tf.zeros_initializer())
  tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, queue.assign(
      tf.concat([queue.read_value(), of_all], 0)[-3:]))
  ages = tf.reduce_sum(tf.matmul(keys, queue, transpose_b=True) * [1.0, 2.0, 3.0], 1)
  return (tf.reduce_logsumexp(logits, 1) - tf.reduce_sum(same * logits, 1) /
          tf.reduce_sum(same, 1) + 0.1 * ages)


def placed(batch, is_training):
  """Each row is to find its own pair among those of the global batch."""
  rows = tf.nn.embedding_lookup(tf.get_variable('table', [WORDS, 5]), batch[0])
  keys = tf.matmul(rows[:, 0], tf.get_variable('pairs', [5, 4]))
  of_all, places = all_rows(tf.tanh(keys), with_places=True)
  logits = tf.matmul(rows[:, 1, :4], of_all, transpose_b=True)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=places, logits=logits)


def listed(batch, is_training):
  rows, mask, losses, follows = encode(batch)
  return [towers.Weighted(losses, mask), judge(rows, follows)], {'mask': mask[:, 0]}


def named(batch, is_training):
  rows, mask, losses, follows = encode(batch)
  return {'words': towers.Weighted(losses, mask),
          'pairs': towers.Weighted(judge(rows, follows), 1 + mask[:, 0])}


def train(model, num_workers=1, **settings):
  """Returns losses, weights and what validation measures, of the first worker."""
  settings = dict(dict(model=model, train=examples(21), validation=examples(9, 'validation', 1),
                       batch_size=8, learning_rate=0.5), **settings)
  if num_workers > 1:
    with InProcessCluster(num_workers=num_workers, **settings) as cluster:
      losses = [cluster.train() for _ in range(NUM_STEPS)]
      [(measured, _), _] = cluster.each(lambda run: run.validate())
      return losses, cluster.runs[0].weights(), measured
  with Run(**settings) as run:
    losses = [run.train() for _ in range(NUM_STEPS)]
    assert_moved(run.initial_weights, run.weights())
    return losses, run.weights(), run.validate()[0]


POINTS = [
    (2, dict(mode='split')), (3, dict(mode='next', depth=0)), (8, dict(mode='shard')),
    (3, dict(mode='shard', placement='replicated')), (3, dict(mode='split', tower_build='clone')),
    (2, dict(mode='next', num_workers=2)),
    (2, dict(placement='replicated', num_workers=2, tower_build='clone')),
]


MODELS = [counted, centred, contrasted, placed, listed, named]
# At each commit one point of each model.
FAST = list(zip(MODELS, [POINTS[place] for place in (4, 0, 1, 5, 3, 0)]))


@functools.lru_cache(maxsize=None)
def one_tower(model):
  return train(model, num_towers=1)


@pytest.mark.parametrize('model, point', nightly_but(FAST, itertools.product(MODELS, POINTS)))
def test_towers_equal_one(model, point, caplog):
  num_towers, settings = point
  ours, theirs = train(model, num_towers=num_towers, **settings), one_tower(model)
  np.testing.assert_allclose(ours[0], theirs[0], atol=1e-5)
  assert_same_weights(ours[1], theirs[1])
  assert ours[2] == pytest.approx(theirs[2], abs=1e-5)
  assert not caplog.records  # No part of it depends on a tower's own examples.


def test_several_losses_are_the_sum_of_their_means():
  def by_hand(batch, is_training):
    rows, mask, losses, follows = encode(batch)
    return (tf.reduce_sum(mask * losses) / tf.maximum(tf.reduce_sum(mask), 1) +
            tf.reduce_mean(judge(rows, follows)))

  (losses, weights, measured), expected = [
      train(model, num_towers=1) for model in (listed, by_hand)]
  np.testing.assert_allclose(losses, expected[0], atol=1e-6)
  assert_same_weights(weights, expected[1])
  assert set(measured) == {'loss', 'loss_1', 'loss_2', 'mask'}
  # Over the whole split each is divided by its own weights.
  assert measured['loss'] == pytest.approx(measured['loss_1'] + measured['loss_2'])


@pytest.mark.parametrize('make, message', [
    (lambda b: [tf.reduce_mean(b[1])], r"'loss_1' of the model has the shape \(\)"),
    (lambda b: ([b[1][:, 0]], {'loss_1': b[1][:, 0]}), "A metric is called 'loss_1'"),
    (lambda b: [3.0], 'a dict for its loss|a list for its loss'),
    (lambda b: towers.Weighted(b[1], b[1]) + b[1][:, 0], 'return a list'),
    (lambda b: all_sum(b[1]), r'got the shape \(\?, 5\)'),
    (lambda b: all_rows(tf.reduce_sum(b[1])), r'all_rows got the shape \(\)'),
    (lambda b: tf.gradients(tf.square(all_sum(tf.square(WEIGHT[0]))), WEIGHT)[0] ** 2 * b[1][:, 0],
     'gradient of a gradient through tower_0/all_sum'),
    (lambda b: tf.map_fn(lambda x: all_sum(tf.reduce_sum(x)), b[1]), 'within a loop'),
])
def test_what_cannot_be_joined_is_refused(make, message):
  def model(batch, is_training):
    WEIGHT[:] = [tf.convert_to_tensor(tf.get_variable('weight', []))]
    return make(batch)

  with pytest.raises(UsageError, match=message):
    train(model, num_towers=2)


def test_rows_that_fill_a_batch_are_no_rows_of_all_towers_and_in_no_sum():
  padded = train(contrasted, num_towers=2, last_batch='pad')
  np.testing.assert_allclose(padded[0], train(contrasted, num_towers=1)[0], atol=1e-5)
  with pytest.raises(UsageError, match='last_batch=pad .* tower_0/all_sum depends on them'):
    train(counted, num_towers=2, last_batch='pad')


def test_a_session_evaluates_other_examples_as_one_tower_would():
  measured = []
  for num_towers in (1, 3):
    with Run(num_towers=num_towers, model=contrasted, train=examples(21), batch_size=8,
             validation=examples(9, 'validation', 1)) as run:
      measured.append(run.opened.evaluate(examples(13, 'other', seed=2)))
  assert measured[1] == pytest.approx(measured[0], abs=1e-5)


def test_micro_batches_of_losses_with_weights_are_refused():
  with pytest.raises(UsageError, match='accumulate=2 .* loss_1, loss_2'):
    train(listed, num_towers=2, accumulate=2)


def test_micro_batches_of_values_of_all_towers_are_warned_of(caplog):
  train(counted, num_towers=2, accumulate=2)
  assert 'those of a micro-batch, of which a step has 2' in caplog.text


@pytest.mark.parametrize('model', [
    counted, pytest.param(centred, marks=pytest.mark.nightly),
    pytest.param(contrasted, marks=pytest.mark.nightly)])
@pytest.mark.parametrize('num_rows', [24, pytest.param(21, marks=pytest.mark.nightly)])
def test_the_check_finds_that_towers_equal_one(model, num_rows):
  # Of 24 rows all batches have one size, which models may build in.
  report = towers.check(model, examples(num_rows), num_towers=2, batch_size=8, num_steps=3)
  assert report.agrees, report.format()
