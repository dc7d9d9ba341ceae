"""The law: N towers are one tower on the whole batch, with whatever a program is set to.

A point is a program with N towers and some value of each feature. It must train, validate and count
as the program that has one tower and no feature but those that belong to the mathematics: the
model, the data and the update. At each commit a few points have every value of every feature; at
night points follow in which any two values meet, and, of where towers, batches and variables are,
any three.
"""

import functools

import numpy as np
import pytest

import towers
from tests.data.test_skipped_steps import examples_without, of_directions
from tests.harness import small
from tests.harness.covering import cover
from tests.harness.sounds import recognise, sorted_sounds, sounds
from towers.placement.counters import get_examples_seen
from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import batch_norm

NUM_STEPS = 7
BATCH = 20


def normed(batch, is_training):
  """A layer normalised over the whole batch of all towers."""
  features, labels = batch
  x = batch_norm(tf.tanh(small.dense(features, 6, 'wide')), is_training, name='norm')
  return small.model((x, labels), is_training)


def weighted(batch, is_training):
  """The mean by weights, several for each example, of which some have none above 0."""
  features, labels = batch
  logits = small.dense(tf.tanh(small.dense(features, 4, 'hidden')), small.NUM_CLASSES, 'logits')
  truth, weights = tf.one_hot(labels, small.NUM_CLASSES), tf.nn.relu(features[:, :3] - 0.5)
  losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.cast(truth, logits.dtype),
                                                   logits=logits)
  return towers.Weighted(losses, weights), {
      'hits': towers.Weighted(tf.equal(logits > 0, truth > 0), weights), 'ones': labels > 0}


def several(batch, is_training):
  """Losses that are divided by different sums."""
  losses, metrics = small.model(batch, is_training)
  squares = tf.reduce_mean(tf.square(tf.tanh(small.dense(batch[0], 2, 'squares'))), 1)
  return {'first': towers.Weighted(losses, tf.square(batch[0][:, 0])), 'second': squares,
          'third': towers.Weighted(losses * squares, batch[1] > 0)}, metrics


def counted(batch, is_training):
  """A sum over what is positive in the global batch, divided by how much that is."""
  losses, metrics = small.model(batch, is_training)
  positive = tf.nn.relu(batch[0][:, 0])
  positives = towers.all_sum(tf.reduce_sum(positive))
  examples = towers.all_sum(tf.cast(tf.size(batch[1]), losses.dtype))
  return positive * losses * examples / tf.maximum(positives, 0.1), metrics


def contrasted(batch, is_training):
  """Each row is to find its own among those of the global batch, whose last ones are kept."""
  keys = tf.cast(tf.tanh(small.dense(batch[0], 4, 'keys')), tf.float32)
  of_all, places = towers.all_rows(keys, with_places=True)
  queue = tf.get_variable('queue', [3, 4], trainable=False, initializer=tf.zeros_initializer())
  tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, queue.assign(
      tf.concat([queue.read_value(), of_all], 0)[-3:]))
  ages = tf.reduce_sum(tf.matmul(keys, queue, transpose_b=True) * [1.0, 2.0, 3.0], 1)
  seekers = tf.cast(small.dense(batch[0], 4, 'logits'), tf.float32)
  logits = tf.matmul(seekers, of_all, transpose_b=True)
  return 0.1 * ages + tf.nn.sparse_softmax_cross_entropy_with_logits(labels=places, logits=logits)


def drawn(batch, is_training):
  """Draws, in a loop too, by the places of examples, on any axis; and for all towers alike."""
  draws = tf.cast(is_training, tf.float32)
  x = tf.nn.dropout(small.dense(batch[0], small.NUM_FEATURES, 'wide'), rate=0.3 * draws)
  steps = tf.nn.dropout(tf.stack([x, tf.tanh(x)]), rate=0.3 * draws)
  weights = tf.nn.softmax(tf.einsum('ibd,jbd->ijb', steps, steps), 1)
  x = tf.reduce_sum(tf.einsum(
      'ijb,jbd->ibd', tf.nn.dropout(weights, rate=0.3 * draws), steps), 0)
  x += draws * tf.random.normal([1, small.NUM_FEATURES])
  _, x = tf.while_loop(lambda turn, _: turn < 2, lambda turn, x: (
      turn + 1, tf.tanh(x + draws * tf.random.uniform(tf.shape(x)))), (0, x))
  return small.model((x, batch[1]), is_training)


def table(batch, is_training):
  """Rows of a table: their gradients are sparse."""
  features, labels = batch
  rows = tf.get_variable('places', [small.NUM_CLASSES + 2, small.NUM_FEATURES])
  return small.model((features + tf.gather(rows, labels), labels), is_training)


def looped(batch, is_training):
  """Reads weights in each turn of a loop, as a recurrent net does, and in a branch of some."""
  features, labels = batch
  with tf.variable_scope('loop'):
    weights = tf.get_variable('weights', [small.NUM_FEATURES, small.NUM_FEATURES])
    rows = tf.get_variable('rows', [small.NUM_CLASSES, small.NUM_FEATURES])

  def body(turn, state):
    state = tf.tanh(tf.matmul(state, weights))
    return turn + 1, tf.cond(
        tf.equal(turn, 1), lambda: tf.matmul(state, weights) + tf.gather(rows, labels),
        lambda: state)

  _, state = tf.while_loop(lambda turn, _: turn < 3, body, (0, features))
  return small.model((state, labels), is_training)


def penalised(batch, is_training):
  """Penalties beside the loss, which count once."""
  with tf.variable_scope('', regularizer=lambda weights: 0.1 * tf.nn.l2_loss(weights)):
    return small.model(batch, is_training)


@small.with_losses
def averaged(losses):
  """One loss for the batch, which weighs as much as the batch has examples."""
  return tf.reduce_mean(losses)


def partitioned(batch, is_training):
  """A table in three parts."""
  features, labels = batch
  rows = tf.get_variable('rows', [small.NUM_CLASSES + 2, small.NUM_FEATURES],
                         partitioner=tf.fixed_size_partitioner(3))
  looked_up = tf.nn.embedding_lookup(rows, labels, partition_strategy='div')
  return small.model((features + looked_up, labels), is_training)


MODELS = {'plain': small.model, 'normed': normed, 'weighted': weighted, 'table': table,
          'looped': looped, 'penalised': penalised, 'nan for zeros': of_directions,
          'averaged': averaged, 'partitioned': partitioned, 'several': several, 'counted': counted,
          'contrasted': contrasted, 'drawn': drawn}
# Whose micro-batches have a part in each other; one tower has nothing to join.
WHOLE_STEPS = ('normed', 'several', 'counted', 'contrasted')


def from_elements(num_examples):
  """As `small.random_examples`, without access to single examples."""
  arrays = small.random_examples(num_examples).arrays
  return towers.Examples(num_examples, lambda *arrays: tf.data.Dataset.from_tensor_slices(arrays),
                         arrays=arrays, name='train')


# Some are damaged: in the last batch of 33 a tower of eight is left without an example.
BAD = [1, 2, 3, 21, 32]
DATA = {'arrays': small.random_examples, 'elements': from_elements,
        'damaged': lambda num_examples: examples_without(BAD, num_examples),
        'sounds': lambda num_examples: sorted_sounds(num_examples, BAD)}
# What has a model of its own; others are validated on arrays.
OWN_MODELS, OWN_VALIDATION = {'sounds': recognise}, {'sounds': sounds}


def by_pattern():
  return {'logits/': tf.train.AdamOptimizer(0.02, epsilon=0.01),
          '^(?!logits/)': tf.train.GradientDescentOptimizer(0.1)}


OPTIMIZERS = {'sgd': lambda: tf.train.GradientDescentOptimizer(0.1),
              'momentum': lambda: lambda rate: tf.train.MomentumOptimizer(rate, 0.9),
              'adam': lambda: tf.train.AdamOptimizer(0.02, epsilon=0.01), 'by pattern': by_pattern}
# It sinks with the examples that the steps before have taken.
RATES = {'momentum': lambda plan: 5 / (50 + tf.cast(get_examples_seen(), tf.float32))}
# What the result is by: the same for one tower and for several.
MATHEMATICS = dict(
    # 33 over batches of 20 leaves 13, 41 leaves 1 (towers stay empty), 40 leaves nothing (static
    # shapes).
    model=list(MODELS), data=list(DATA), size=[33, 41, 40], optimizer=list(OPTIMIZERS),
    clip_norm=[None, 0.3], average_weights=[None, 0.9], last_batch=['keep', 'pad', 'drop'])
# What it must not depend on.
LAYOUT = dict(
    num_towers=[2, 3, 4, 8, 1], input_mode=list(small.MODES), staging_depth=[1, 2, 0],
    variables=list(small.PLACEMENTS), tower_build=['clone', 'reuse', 'auto'], accumulate=[1, 2, 4],
    recompute=['none', 2], validation_tower=[False, True], precision=['float32', 'mixed'])
AXES = {**LAYOUT, **MATHEMATICS}
PLAIN = dict({name: values[0] for name, values in MATHEMATICS.items()}, num_towers=1,
             input_mode='split', staging_depth=0, variables='host', tower_build='reuse',
             accumulate=1, recompute='none', validation_tower=False, precision='float32')


def is_valid(point):
  """Whether these values of some features go together."""
  joins = point.get('num_towers') != 1
  point = {**PLAIN, **point}
  # Rows that do not count have no part in moments, nor have micro-batches in each other's; and a
  # mean over all rows has them in it.
  if point['model'] in WHOLE_STEPS and (point['accumulate'] > 1 or not joins):
    return False
  # A row that is skipped moves the places of those behind it in its tower.
  if point['model'] in ('drawn', 'contrasted') and point['data'] in ('damaged', 'sounds'):
    return False
  if point['model'] == 'drawn' and point['precision'] == 'mixed':
    return False  # float16 draws other numbers.
  if point['data'] in OWN_MODELS and point['model'] != 'plain':
    return False
  if point['model'] in ('normed', 'averaged', 'counted') and point['last_batch'] == 'pad':
    return False
  return point['num_towers'] * point['accumulate'] <= BATCH


class Outcome:
  """What a program has come to: all that towers must not change."""

  def __init__(self, program):
    self.is_static = isinstance(program.gradients.num_examples, int)
    with program.session() as session, program.graph.as_default():
      # Copies of other towers and the scale of float16 are none of one tower's.
      variables = {variable.op.name: variable for variable in tf.global_variables()
                   if not variable.op.name.startswith('loss_scale')}
      self.weights = [variable.op.name for variable in tf.trainable_variables()]
      self.initial = session.run(variables)
      self.losses = [session.train() for _ in range(NUM_STEPS // 2)]
      self.measured = [session.validate()]
      self.losses += [session.train() for _ in range(NUM_STEPS // 2, NUM_STEPS)]
      self.measured.append(session.validate())
      self.final = session.run(variables)


def run_program(model, data, size, optimizer, num_towers, validation_tower, **settings):
  """Returns the outcome of a point."""
  # Shapes are static only if those of both splits are.
  validate_on = OWN_VALIDATION.get(data, functools.partial(small.random_examples, seed=1))
  with tf.Graph().as_default():
    program = towers.Program(
        OWN_MODELS.get(data, MODELS[model]), train=DATA[data](size),
        validation=validate_on(40 if size % BATCH == 0 else 31, 'validation'), batch_size=BATCH,
        optimizer=OPTIMIZERS[optimizer](), learning_rate=RATES.get(optimizer),
        num_towers=num_towers + validation_tower, validation_tower=validation_tower,
        weight_decay=0.01, batch_norm='sync', shuffle=False, device='cpu', **settings)
    return Outcome(program)


@functools.lru_cache(maxsize=None)
def one_tower(**mathematics):
  """The reference: one tower, the whole batch as it is, no staging."""
  return run_program(**{**PLAIN, **mathematics})


def assert_equals_one_tower(point):
  outcome = run_program(**point)
  # A last batch that is filled up is one that is kept.
  kept = {'pad': 'keep'}.get(point['last_batch'], point['last_batch'])
  expected = one_tower(**{**{name: point[name] for name in MATHEMATICS}, 'last_batch': kept})
  is_mixed = point['precision'] == 'mixed'
  # float16 has 11 bits: it is rounded to a thousandth at every op.
  tolerance = 5e-3 if is_mixed else 2e-5
  assert sorted(outcome.final) == sorted(expected.final)
  small.assert_moved({name: outcome.initial[name] for name in outcome.weights},
                     {name: outcome.final[name] for name in outcome.weights})
  small.assert_same_weights(outcome.initial, expected.initial, tolerance=0)
  np.testing.assert_allclose(outcome.losses, expected.losses, rtol=0, atol=tolerance)
  assert is_mixed == (outcome.losses != pytest.approx(expected.losses, abs=2e-5))
  for ours, theirs in zip(outcome.measured, expected.measured):
    assert ours == pytest.approx(theirs, abs=tolerance)
  small.assert_same_weights(outcome.final, expected.final, tolerance)


EACH_VALUE = cover(AXES, strength=1, is_valid=is_valid)
PAIRS = cover(AXES, strength=2, is_valid=is_valid)
PLACES = cover({name: LAYOUT[name] for name in ('num_towers', 'input_mode', 'staging_depth',
                                                'variables')}, strength=3, is_valid=is_valid)


def describe(point):
  return ','.join(f'{name}={point[name]}' for name in sorted(point) if PLAIN[name] != point[name])


AT_NIGHT = [point for point in PAIRS + [{**PLAIN, **point} for point in PLACES]
            if point not in EACH_VALUE]


@pytest.mark.parametrize('point', small.nightly_but(EACH_VALUE, EACH_VALUE + AT_NIGHT),
                         ids=describe)
def test_towers_equal_one_tower(point):
  assert_equals_one_tower(point)
