"""Writes that the loss waits for: once a step, with the values of one tower on which they are in
place; or refused by name."""

import numpy as np
import pytest

import towers
from tests.graph.test_writes import check_refused_step, slim_norm
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf
from towers.tower import model_call

IS_TF1 = tf.__version__.startswith('1.')


def state(name, shape, value=0.1, **settings):
  return tf.get_variable(name, shape, initializer=tf.constant_initializer(value),
                         **dict(dict(trainable=False), **settings))


def put(op, value):
  with tf.control_dependencies([op]):
    return tf.identity(value)


def divide(assign, u, weights):
  """Spectral normalisation, of which `assign` returns the new vector."""
  v = tf.nn.l2_normalize(tf.matmul(u, weights, transpose_b=True))
  new = assign(u, tf.nn.l2_normalize(tf.matmul(v, weights)))
  sigma = tf.matmul(tf.matmul(tf.stop_gradient(v), weights), new, transpose_b=True)
  return weights / sigma[0, 0]


def spectral(assign, calls=1):
  def model(batch, is_training):
    features, labels = batch
    weights, u = tf.get_variable('weights', [small.NUM_FEATURES, 4]), state('u', [1, 4])
    for _ in range(calls):
      features = tf.matmul(features, divide(assign, u, weights))
      features = tf.pad(features, [[0, 0], [0, 1]])
    return small.classify(features, labels)

  return model


def read_after(u, new):
  with tf.control_dependencies([u.assign(new)]):
    return u.read_value()


def read_later(u, new):
  done = put(u.assign(new), tf.zeros_like(new))
  return u.read_value() + done


def add_before(u, new):
  with tf.control_dependencies([u.assign_add(new - u)]):
    return tf.identity(u.read_value())


def subtract_before(u, new):
  with tf.control_dependencies([u.assign_sub(u - new)]):
    return tf.identity(u.read_value())


def scaled(batch, is_training):
  """Reads what it has kept of a weight, through which no gradient goes."""
  weights, kept = tf.get_variable('weights', [small.NUM_FEATURES, 4]), state('u', [1, 4])
  means = tf.reduce_mean(tf.square(weights), 0, keepdims=True)
  return small.classify(tf.matmul(batch[0], weights) * read_after(kept, means), batch[1])


def in_a_branch(choose):
  """Returns a model whose write is in a branch that `choose(is_training)` takes."""
  def model(batch, is_training):
    features, labels = batch
    weights, u = tf.get_variable('weights', [small.NUM_FEATURES, 4]), state('u', [1, 4])
    taken = choose(is_training)
    branches = (lambda: tf.matmul(features, divide(read_after, u, weights)),
                lambda: tf.matmul(features, weights) * u)
    x = tf.cond(taken, *branches) if tf.is_tensor(taken) else branches[not taken]()
    return small.classify(x, labels)

  return model


def every_other_step(is_training):
  return tf.equal(tf.train.get_or_create_global_step().read_value() % 2, 0)


def moved_in_place(batch, is_training):
  """Batch normalisation by hand, whose averages the layer waits for."""
  features, labels = batch
  x = small.dense(features, 4, 'in')
  mean, variance = tf.nn.moments(x, [0])
  moving = state('moving_mean', [4])
  x = put(moving.assign_sub(0.1 * (moving.read_value() - mean)), x - mean)
  return small.classify(x * tf.rsqrt(variance + 1e-3), labels)


def centered(rows, update):
  """Center loss: the distance from a center that moves after the features."""
  def model(batch, is_training):
    features, labels = batch
    x = small.dense(features, 4, 'in')
    center = state('center', [small.NUM_CLASSES, 4])
    distance = tf.reduce_sum(tf.square(x - tf.gather(center, labels)), 1)
    with tf.control_dependencies([distance]):
      moved = update(center, tf.stop_gradient(rows(x)), rows(labels))
    return small.classify(x, labels) + put(moved, distance)

  return model


def assign_mean(center, x, labels):
  return center.assign(0.9 * center + 0.1 * tf.reduce_mean(x, 0))


def scatter(center, x, labels):
  sums = tf.math.unsorted_segment_mean(x, labels, small.NUM_CLASSES)
  return center.scatter_update(tf.IndexedSlices(sums, tf.range(small.NUM_CLASSES)))


def count(batch, is_training):
  features, labels = batch
  counted = state('counted', [])
  with tf.control_dependencies([counted.assign_add(1.0)]):
    x = small.dense(features, 4, 'in') * counted.read_value()
  return small.classify(x, labels)


MODELS = {
    'control': spectral(lambda u, new: put(u.assign(new), tf.stop_gradient(new))),
    'read after': spectral(read_after),
    'read later': spectral(read_later),
    'what assign returns': spectral(lambda u, new: tf.identity(u.assign(new))),
    'added': spectral(add_before),
    'subtracted': spectral(subtract_before),
    'twice': spectral(lambda u, new: put(u.assign(new), tf.stop_gradient(new)), calls=2),
    'weights': scaled,
    'branch': in_a_branch(lambda is_training: is_training),
    'branch by step': in_a_branch(every_other_step),
    'average': moved_in_place,
    'all rows': centered(towers.all_rows, assign_mean),
    'all rows, scattered': centered(towers.all_rows, scatter),
    'count': count,
    **(dict(slim=slim_norm(updates_collections=None)) if IS_TF1 else {})}
SETTINGS = {
    'two': dict(num_towers=2, mode='shard'),
    'clones': dict(num_towers=3, tower_build='clone', placement='balanced'),
    'replicas': dict(num_towers=3, tower_build='clone', placement='replicated', depth=0),
    'switched': dict(num_towers=3, validates=True, mode='next'),
    'tower': dict(num_towers=3, validation_tower=True, validates=True)}
POINTS = [(name, settings) for name in MODELS for settings in SETTINGS]
CHOSEN = [POINTS[number * (len(SETTINGS) + 1) % len(POINTS)] for number in range(len(MODELS))]


def train(name, **settings):
  """Returns losses, all variables and the loss of a validation where there is one."""
  with small.Run(model=MODELS[name], batch_size=7, train=small.random_examples(15),
                 batch_norm='sync', **settings) as run:
    losses = [run.train() for _ in range(5)]
    validated = run.validate()[0] if settings.get('validates') else {}
    after = run.variables()
    assert np.isfinite(losses).all()
    return losses, after, validated


def assert_same(found, expected):
  assert found[0] == pytest.approx(expected[0], abs=1e-5)
  small.assert_same_weights(found[1], expected[1])
  assert found[2] == pytest.approx(expected[2], abs=1e-5)


@pytest.mark.parametrize('name, settings', small.nightly_but(CHOSEN, POINTS))
def test_towers_are_one(name, settings):
  settings = SETTINGS[settings]
  alone = dict(num_towers=1, validates=settings.get('validates', False))
  assert_same(train(name, **settings), train(name, **alone))


@pytest.mark.nightly(but=['weights', 'added'])
@pytest.mark.parametrize('name', MODELS)
def test_one_tower_has_the_numbers_of_writes_in_place(name, monkeypatch):
  settings = dict(num_towers=1, validates=name == 'branch')
  found = train(name, **settings)
  monkeypatch.setattr(model_call, 'postpone_writes', lambda *given: None)
  expected = train(name, **settings)
  if name in ('twice', 'read later'):  # What does not wait may read what is written, or not.
    return
  assert_same(found, expected)


@pytest.mark.parametrize('num_towers', [1, 2])
def test_what_does_not_wait_reads_what_is_written_before_it(num_towers):
  assert_same(train('read later', num_towers=num_towers), train('read after', num_towers=1))


@pytest.mark.nightly(but='read after')
@pytest.mark.parametrize('name', ['read after', 'count', 'branch by step'])
def test_micro_batches_write_once_a_step(name):
  settings = dict(num_towers=2, accumulate=2)
  with small.Run(model=MODELS[name], batch_size=8, train=small.random_examples(16),
                 **settings) as run, small.Run(
                     model=MODELS[name], batch_size=8, train=small.random_examples(16),
                     num_towers=1) as one:
    for _ in range(4):
      assert run.train() == pytest.approx(one.train(), abs=1e-5)
    small.assert_same_weights(run.variables(), one.variables())


@pytest.mark.nightly(but='read after')
@pytest.mark.parametrize('name', ['read after', 'count', 'average'])
def test_a_refused_step_writes_nothing(name):
  assert {'u', 'counted', 'moving_mean'} & check_refused_step(model=MODELS[name], num_towers=2)


def test_averages_move_once_by_the_moments_of_the_first_tower():
  """As those in UPDATE_OPS do, with batch_norm=first."""
  with small.Run(model=moved_in_place, num_towers=2, batch_norm='first') as run:
    before = run.variables()
    run.train()
    x = small.random_examples(13).arrays[0][:4].dot(before['in/weights'])
    np.testing.assert_allclose(run.variables()['moving_mean'],
                               0.9 * before['moving_mean'] + 0.1 * x.mean(0), atol=1e-6)


def own_rows(x):
  return x


def in_a_loop(u, new):
  _, new = tf.while_loop(lambda turn, _: turn < 2, lambda turn, new: (
      turn + 1, put(u.assign(new), new)), (0, new))
  return tf.stop_gradient(new)


def twice_read(u, new):
  return read_after(u, 0.5 * read_after(u, new))


def drawn(u, new):
  return put(u.assign(new + tf.random.normal([1, 4])), tf.stop_gradient(new))


def trained(batch, is_training):
  u = state('u', [small.NUM_FEATURES], trainable=True)
  return small.classify(put(u.assign(u * 0.5), batch[0]) + u, batch[1])


@pytest.mark.nightly(but='own rows')
@pytest.mark.parametrize('model, name', [
    pytest.param(centered(own_rows, assign_mean), 'center', id='own rows'),
    pytest.param(centered(own_rows, scatter), 'center', id='scattered'),
    pytest.param(spectral(in_a_loop), 'u', id='loop'),
    pytest.param(spectral(twice_read), 'u', id='twice read'),
    pytest.param(spectral(drawn), 'u', id='drawn'),
    pytest.param(trained, 'u', id='trained')])
def test_other_writes_are_refused_with_the_line_to_write(model, name):
  with pytest.raises(UsageError, match=f'changes the variable {name} while .* of 2 towers.*'
                     r'x = towers.all_rows\(x\)'):
    small.program(model, validation=None)
