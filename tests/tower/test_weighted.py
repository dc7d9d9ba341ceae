"""Losses with weights: the sum over the global batch by the sum of weights over the global batch.

The data is like ragged text: rows of up to 6 tokens, very unequal, some with none.
"""

import functools

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.harness.in_process_cluster import InProcessCluster
from tests.harness.small import Run, assert_moved, assert_same_weights
from towers.base.usage_error import UsageError
from towers.training.stepping.not_finite import NotFinite

NUM_STEPS = 6
TIME, WORDS, TAGS = 6, 7, 4
RATE = 0.5


class Text:
  """`num_rows` rows of tokens, their tags and the number of tokens in each."""

  def __init__(self, num_rows, name='train', seed=0):
    random = np.random.RandomState(seed)
    self.tokens = random.randint(WORDS, size=[num_rows, TIME]).astype(np.int32)
    self.tags = random.randint(TAGS, size=[num_rows, TIME]).astype(np.int32)
    self.lengths = (random.rand(num_rows) ** 3 * (TIME + 1)).astype(np.int32)
    if num_rows % 8 == 1:
      self.lengths[-1] = 0  # The last batch of an epoch has no token at all.
    self.examples = towers.from_arrays(self.tokens, self.tags, self.lengths, name=name)

  @property
  def mask(self):
    return (np.arange(TIME) < self.lengths[:, None]).astype(np.float32)


def score(batch):
  """Returns losses `[batch, time]`, hits and the mask of real tokens."""
  tokens, tags, lengths = batch
  table = tf.get_variable('table', [WORDS, TAGS])
  biases = tf.get_variable('biases', [TAGS], initializer=tf.zeros_initializer())
  logits = tf.gather(table, tokens) + biases
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tags, logits=logits)
  hits = tf.equal(tf.argmax(logits, 2, output_type=tf.int32), tags)
  return losses, hits, tf.sequence_mask(lengths, TIME)


def tagger(batch, is_training):
  del is_training
  losses, hits, mask = score(batch)
  return towers.Weighted(losses, mask), {
      'accuracy': towers.Weighted(hits, mask), 'long': batch[2] > 3}


class ByHand:
  """The whole batch in numpy: softmax over a table and biases, gradient descent."""

  def __init__(self, initial, rate=RATE, penalty=0.0):
    self.table, self.biases = [initial[name].astype(np.float64) for name in ('table', 'biases')]
    self.rate, self.penalty = rate, penalty

  def score(self, text, rows):
    """Returns losses and hits, both `[rows, time]`, and the gradients of the losses' logits."""
    logits = self.table[text.tokens[rows]] + self.biases
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    truth = np.eye(TAGS)[text.tags[rows]]
    return -np.log((chances * truth).sum(-1)), logits.argmax(-1) == text.tags[rows], chances - truth

  def train(self, text, rows):
    losses, _, gradients = self.score(text, rows)
    weights = text.mask[rows]
    divisor = weights.sum() or 1.0
    gradients = gradients * weights[..., None] / divisor
    table = 2 * self.penalty * self.table
    np.add.at(table, text.tokens[rows], gradients)
    self.table -= self.rate * table
    self.biases -= self.rate * gradients.sum((0, 1))
    return (losses * weights).sum() / divisor

  def weights(self):
    return dict(table=self.table, biases=self.biases)


def rows_of_step(num_rows, step, size=8):
  begin = step % -(-num_rows // size) * size
  return slice(begin, min(begin + size, num_rows))


@functools.lru_cache(maxsize=None)
def texts(num_rows):
  return Text(num_rows), Text(11, 'validation', seed=1)


def settings_of(num_rows, **settings):
  train, validation = texts(num_rows)
  return dict(dict(train=train.examples, validation=validation.examples, model=tagger,
                   learning_rate=RATE, optimizer='sgd', weight_decay=0.0), **settings)


def assert_as_by_hand(run, num_rows, losses, measured=None, penalty=0.0, rate=RATE):
  train, validation = texts(num_rows)
  by_hand = ByHand(run.initial_weights, rate, penalty)
  expected = [by_hand.train(train, rows_of_step(num_rows, step)) for step in range(len(losses))]
  np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)
  assert_same_weights(run.weights(), by_hand.weights())
  if measured is None:
    return
  values, hits, _ = by_hand.score(validation, slice(None))
  mask = validation.mask
  means, num_examples = measured
  assert num_examples == 11
  assert means == pytest.approx({
      'loss': (values * mask).sum() / mask.sum(), 'accuracy': (hits * mask).sum() / mask.sum(),
      'long': (validation.lengths > 3).mean()}, abs=1e-5)


# 13 over batches of 8 leaves 5, 17 leaves 1, which has no token; 16 leaves nothing.
@pytest.mark.nightly(but=['17-3-settings1', '16-2-settings2'])
@pytest.mark.parametrize('num_rows, num_towers, settings', [
    (13, 1, dict(depth=0)),
    (17, 3, dict(mode='split', placement='replicated', tower_build='clone')),
    (16, 2, dict(mode='next', placement='first', accumulate=2)),
    (13, 4, dict(mode='shard', depth=2, placement='balanced', accumulate=2)),
    pytest.param(17, 8, dict(mode='next', tower_build='clone'), marks=pytest.mark.nightly),
    pytest.param(16, 3, dict(mode='shard', placement='replicated', accumulate=2),
                 marks=pytest.mark.nightly),
    (13, 3, dict(mode='split', validation_tower=True)),
    pytest.param(17, 2, dict(mode='split', accumulate=4), marks=pytest.mark.nightly),
    pytest.param(16, 8, dict(mode='split', placement='replicated'), marks=pytest.mark.nightly),
])
def test_towers_and_micro_batches_equal_a_batch_by_hand(num_rows, num_towers, settings):
  with Run(num_towers=num_towers, **settings_of(num_rows, **settings)) as run:
    losses = [run.steps.train() for _ in range(NUM_STEPS)]
    assert_moved(run.initial_weights, run.weights())
    assert_as_by_hand(run, num_rows, losses, run.validate())
    steps_of_epoch = -(-num_rows // 8)
    epochs, rest = divmod(NUM_STEPS, steps_of_epoch)
    assert run.counters() == [NUM_STEPS, epochs * num_rows + min(rest * 8, num_rows)]


@pytest.mark.nightly(but='3-1-settings1')
@pytest.mark.parametrize('num_towers, num_workers, settings', [
    (1, 1, {}), (3, 1, dict(placement='replicated', tower_build='clone')),
    (2, 1, dict(accumulate=2, precision='mixed', loss_scale=64.0)),
    (2, 2, dict(placement='replicated'))])
def test_penalties_count_once_and_whole(num_towers, num_workers, settings):
  def model(batch, is_training):
    returned = tagger(batch, is_training)
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
      table = tf.get_variable('table', [WORDS, TAGS], tf.float32)
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, 0.1 * tf.reduce_sum(tf.square(table)))
    return returned

  settings = settings_of(17, **dict(settings, model=model))
  with InProcessCluster(num_workers=num_workers, num_towers=num_towers, **settings) as cluster:
    losses = [cluster.train() for _ in range(NUM_STEPS)]
    run = cluster.runs[0]
    if settings.get('precision') == 'mixed':
      by_hand = ByHand(run.initial_weights, RATE, 0.1)
      for step in range(NUM_STEPS):
        by_hand.train(texts(17)[0], rows_of_step(17, step))
      assert_same_weights(run.weights(), by_hand.weights(), tolerance=5e-3)
    else:
      assert_as_by_hand(run, 17, losses, penalty=0.1)


def test_a_clip_takes_the_norm_of_the_divided_gradients():
  rate = 1.0
  with Run(num_towers=2, **settings_of(16, clip_norm=0.05, learning_rate=rate)) as run:
    run.steps.train()
    moved = [value - run.initial_weights[name] for name, value in run.weights().items()]
  assert np.sqrt(sum((value ** 2).sum() for value in moved)) == pytest.approx(0.05 * rate, rel=1e-4)


def test_losses_and_weights_may_come_as_a_pair():
  def model(batch, is_training):
    losses, _, mask = score(batch)
    return losses, tf.cast(mask, tf.int32)

  with Run(num_towers=2, **settings_of(13, model=model)) as run:
    losses = [run.steps.train() for _ in range(2)]
    assert_as_by_hand(run, 13, losses)


def test_no_gradient_goes_through_weights():
  def model(batch, is_training):
    losses, _, mask = score(batch)
    return towers.Weighted(losses, tf.cast(mask, tf.float32) * tf.exp(
        losses - tf.stop_gradient(losses))), {}

  with Run(num_towers=2, **settings_of(13, model=model)) as run:
    assert_as_by_hand(run, 13, [run.steps.train() for _ in range(3)])


def test_weights_that_are_not_finite_are_refused_by_the_guard_which_names_the_tower():
  def model(batch, is_training):
    losses, _, mask = score(batch)
    is_last = tf.get_default_graph().get_name_scope().startswith('tower_1')
    return losses, tf.cast(mask, tf.float32) + (float('nan') if is_last else 0.0)

  with Run(num_towers=2, **settings_of(16, model=model)) as run:
    before = run.weights()
    with pytest.raises(NotFinite):
      run.steps.train()
    described = run.steps.retry().describe()
    assert 'in tower 1 the loss is' in described and 'tower 0' not in described
    assert_same_weights(run.weights(), before, tolerance=0)


def test_negative_weights_end_the_step_before_anything_is_updated():
  def model(batch, is_training):
    losses, _, mask = score(batch)
    return losses, tf.cast(mask, tf.float32) - 0.5

  with Run(num_towers=2, **settings_of(16, model=model)) as run:
    before = run.weights()
    with pytest.raises(tf.errors.InvalidArgumentError, match='loss of the model has a weight below'
                                                             ' 0'):
      run.steps.train()
    assert_same_weights(run.weights(), before, tolerance=0)


@pytest.mark.nightly(but=[
    '<lambda>-weights of the shape \\\\(.*, 1\\\\) for values of',
    '<lambda>-returned a tuple of 3'])
@pytest.mark.parametrize('change, message', [
    (lambda losses, mask: (losses, mask[:, :1]), r'weights of the shape \(.*, 1\) for values of'),
    (lambda losses, mask: (losses, tf.reduce_sum(tf.cast(mask, tf.float32), 1)), 'one weight for'),
    (lambda losses, mask: (tf.reduce_mean(losses), tf.constant(1.0)),
     'weights, which need one value per example'),
    (lambda losses, mask: (tf.reduce_mean(losses, 0, True), tf.ones([1, TIME])),
     'has 1 values for every batch'),
    (lambda losses, mask: losses, r'towers\.Weighted'),
    (lambda losses, mask: (losses, 'mask'), 'returned a tuple'),
    (lambda losses, mask: (losses, mask, {}), 'returned a tuple of 3'),
    (lambda losses, mask: (tf.reduce_mean(losses, 1), dict(hits=losses)), r'towers\.Weighted'),
])
def test_shapes_that_do_not_fit_are_refused(change, message):
  def model(batch, is_training):
    losses, _, mask = score(batch)
    return change(losses, mask)

  with pytest.raises(UsageError, match=message):
    Run(num_towers=2, **settings_of(13, model=model))


def test_weights_that_only_a_run_finds_unequal_are_refused_there():
  def model(batch, is_training):
    losses, _, mask = score(batch)
    fewer = tf.placeholder_with_default(mask[:, 1:], [None, None])
    return losses, fewer

  with Run(num_towers=2, **settings_of(16, model=model)) as run, pytest.raises(
      tf.errors.InvalidArgumentError, match='one weight for each value'):
    run.steps.train()


def test_a_metric_without_any_weight_has_no_mean():
  def without(batch, is_training):
    losses, _, mask = score(batch)
    return (losses, mask), {'rare': towers.Weighted(mask, tf.zeros_like(losses))}

  with Run(num_towers=2, **settings_of(16, model=without)) as run, pytest.raises(
      UsageError, match="weights of 'rare' are all 0 over the 11 examples"):
    run.validate()


def test_a_program_without_weights_has_no_op_for_them():
  def plain(batch, is_training):
    losses, _, mask = score(batch)
    return tf.reduce_sum(losses, 1)

  with Run(num_towers=2, **settings_of(16, model=plain)) as run:
    assert not [op.name for op in run.graph.get_operations() if '/weigh/' in '/' + op.name]


@pytest.mark.nightly
def test_the_check_points_a_mean_over_tokens_to_weights():
  def token_mean(batch, is_training):
    losses, _, mask = score(batch)
    mask = tf.cast(mask, tf.float32)
    return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)

  report = towers.check(token_mean, texts(16)[0].examples, num_towers=2, batch_size=8)
  assert not report.agrees and 'towers.Weighted(losses, weights)' in report.format()
