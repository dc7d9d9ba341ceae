"""Draws by place: what a model draws for an example does not depend on towers, workers, input mode
and micro-batches, and nothing moves it. So N towers are one tower with dropout as well.

Here is each kind of draw; dropout, a loop and a draw for all are in `tests.test_towers_equal_one`,
and over workers in `tests.reduce.test_workers_equal_one`.
"""

import functools
import itertools
import logging
import os
import weakref

import numpy as np
import pytest

import towers
from tests.harness.small import nightly_but
from towers.placement import philox
from towers.tensorflow_v1 import load_keras, tf
from towers.tower import forward_pass
from towers.tower.drawing import draws

NUM_STEPS = 10
x = np.random.RandomState(0).randn(30, 3).astype(np.float32)


def turns(number, body, *shapes):
  return lambda h: tf.while_loop(
      lambda turn, _: turn < number, lambda turn, h: (turn + 1, body(h)), (0, h),
      shape_invariants=(tf.TensorShape([]), *map(tf.TensorShape, shapes)) if shapes else None)[1]


def dropout(rate):
  return lambda h: tf.nn.dropout(h, rate=rate)


def branch(draw, h):
  return tf.cond(tf.equal(tf.reduce_sum(tf.zeros([2])), 0), lambda: draw(h), lambda: h)


def recurrent(h):
  cell = tf.nn.rnn_cell.DropoutWrapper(tf.nn.rnn_cell.GRUCell(5), output_keep_prob=0.5)
  steps = tf.transpose(tf.stack([h, 2 * h, -h]), [1, 0, 2])
  return tf.nn.dynamic_rnn(cell, steps, dtype=tf.float32)[0][:, -1]


def beside(row):
  with tf.colocate_with(row):  # As tf.image's ops are with an image.
    return tf.identity(row)


def noise_on_weights(h):
  """Draws of which the first axis is that of features, or as long as a tower's rows by chance."""
  return tf.matmul(h, tf.eye(5) + 0.1 * tf.random.normal([5, 5])) + tf.reduce_mean(
      tf.random.normal([6])) + tf.random.normal([1, 5])


def steps_first(h):
  """Returns activations `[3, batch, 5]`, the time before the rows."""
  return tf.stack([h, 2 * h, -h])


def flat_steps(h, draw):
  """Draws for `[time * batch, 5]`."""
  return tf.reduce_mean(tf.reshape(draw(tf.reshape(steps_first(h), [-1, 5])),
                                   [3, -1, 5]), 0)


def flat_rows(h, draw):
  """Draws for `[batch * time, 5]`."""
  rows = tf.reshape(tf.transpose(steps_first(h), [1, 0, 2]), [-1, 5])
  return tf.reduce_mean(tf.reshape(draw(rows), [-1, 3, 5]), 1)


def windows(h):
  """Draws for `[time * batch, 5]`, between reshapes to the number of rows, perhaps the time."""
  size = tf.shape(h)[0]
  steps = tf.transpose(tf.reshape(tf.tile(h, [1, 3]), [size, -1, 5]), [1, 0, 2])
  flat = tf.reshape(steps, [-1, 5])
  return tf.reduce_mean(tf.reshape(dropout(0.5)(flat), [-1, size, 5]), 0)


def attention(h):
  """Draws for weights `[to, from, batch, heads]`."""
  steps = steps_first(h)
  weights = dropout(0.5)(tf.nn.softmax(tf.einsum('ibd,jbd->ijb', steps, steps), 1)[..., None])
  return tf.reduce_mean(tf.einsum('ijb,jbd->ibd', weights[..., 0], steps), 0)


def heads(h):
  """Draws for heads that stand one after the other on the axis of the rows."""
  parts = tf.concat(tf.split(h[:, :4], 2, axis=1), 0)
  return tf.concat([*tf.split(dropout(0.5)(parts), 2, axis=0), h[:, 4:]], 1)


def masked(h, draw=lambda h: dropout(0.5)(h)):
  """Draws for rows that a mask keeps; a tower may have none."""
  places = tf.where(h[:, 0] > 0.3)
  kept = draw(tf.gather_nd(h, places))
  return h + tf.scatter_nd(places, kept, tf.shape(h, out_type=tf.int64))


def tokens(h):
  """Draws for the values of a ragged tensor, of 0 to 3 tokens for each row."""
  lengths = tf.cast(tf.floor(2 + 1.99 * h[:, 0]), tf.int64)
  ragged = tf.RaggedTensor.from_tensor(tf.transpose(steps_first(h), [1, 0, 2]), lengths=lengths)
  return tf.math.unsorted_segment_sum(dropout(0.5)(ragged.values), ragged.value_rowids(),
                                      tf.shape(h)[0])


def sized(h):
  """Draws in a loop for a number of rows that is computed before it."""
  size = tf.reduce_prod(tf.reshape(tf.shape(h)[0], [1]))

  def body(h):
    drawn = h * tf.random.uniform([tf.reduce_prod(tf.reshape(size, [1])), 1])
    drawn.set_shape(h.shape)
    return drawn
  return turns(2, body)(h)


def sized_outside(h):
  """Draws in a branch for numbers of steps and of rows that are computed before it."""
  steps = steps_first(h)
  sizes = tf.shape(steps)[0], tf.shape(steps)[1], 1
  return h * tf.cond(tf.placeholder_with_default(True, []), lambda: tf.nn.dropout(
      steps, rate=0.5, noise_shape=sizes), lambda: steps)[0]


def stateless(draw=tf.random.stateless_normal, *, shape, **settings):
  return draw(shape, seed=tf.stack([tf.train.get_or_create_global_step(), 7]), **settings)


def neighbours(h):
  """Takes two of the four neighbours of three nodes for each row, in one order for all."""
  table = tf.constant(np.random.RandomState(1).randn(2, 4).astype(np.float32))
  nodes = tf.reshape(tf.cast(h[:, :3] > 0, tf.int32), [-1])
  shuffled = tf.transpose(tf.random.shuffle(tf.transpose(tf.gather(table, nodes))))
  return h * tf.reduce_sum(tf.reshape(shuffled[:, :2], [-1, 6]), 1, keepdims=True)


def flat_choices(h):
  """Draws for two choices of each row, around which all ops but the draw's flatten their steps."""
  flat = tf.tanh(tf.reshape(tf.stack([h, -h, 2 * h, -2 * h], 1), [-1, 5]))
  choices = dropout(0.5)(tf.reshape(flat, [-1, 2, 5]))
  return tf.reduce_mean(tf.reshape(tf.reshape(choices, [-1, 5]), [-1, 4, 5]), 1)


def random_size(h):
  """Draws for numbers of steps that are drawn for all rows, and have a limit."""
  for number in (tf.minimum(4, 1 + tf.cast(5 * tf.random.uniform([]), tf.int32)),
                 tf.random.uniform([], 1, 4, tf.int32)):
    flat = dropout(0.5)(tf.reshape(tf.tile(h[None], [number, 1, 1]), [-1, 5]))
    h = tf.reduce_mean(tf.reshape(flat, [number, -1, 5]), 0)
  return h


@tf.custom_gradient
def own_gradient(h):
  """Draws in a gradient, and takes what was drawn beside the value."""
  kept = tf.random.uniform(tf.shape(h))
  return tf.identity(h), lambda slope: slope * (kept + tf.random.uniform(tf.shape(slope)))


_kept = weakref.WeakKeyDictionary()


def outside(h):
  """Draws in ops that are not named after their tower: in a layer that all towers call, whose ops
  the first one names, in a getter of weights, and in a scope of its own."""
  layer = _kept.get(h.graph) or _kept.setdefault(h.graph, tf.layers.Dropout(0.5))
  with tf.variable_scope(tf.get_variable_scope(), custom_getter=lambda get, *args, **settings: (
      dropout(0.3)(get(*args, **settings)))):
    h = layer(h, training=True) * tf.get_variable('scale', [5], initializer=tf.ones_initializer())
  with tf.name_scope('outside/'):
    noise = tf.random.normal([tf.compat.dimension_value(h.shape[0]) or tf.shape(h)[0], 5])
  return h + noise


# From activations [batch, 5] to others.
DRAWS = {
    'dropout': dropout(0.5),
    'dropouts': lambda h: dropout(0.5)(dropout(0.5)(h)),
    'dropout of rows': lambda h: tf.nn.dropout(h, rate=0.5, noise_shape=[tf.shape(h)[0], 1]),
    'keras': lambda h: load_keras().layers.Dropout(0.5)(h, training=True),
    'normal': lambda h: h + tf.random.normal(tf.shape(h)),
    'doubles': lambda h: h + tf.cast(tf.random.normal(tf.shape(h), dtype=tf.float64), tf.float32),
    'truncated': lambda h: h + tf.random.truncated_normal(tf.shape(h)),
    'integers': lambda h: h * tf.cast(tf.random.uniform(tf.shape(h), 0, 3, tf.int32), tf.float32),
    'time first': lambda h: tf.reduce_mean(tf.nn.dropout(
        dropout(0.5)(tf.stack([h, 2 * h, -h])), rate=0.5, noise_shape=[1, tf.shape(h)[0], 1]), 0),
    'several rows': lambda h: h * tf.reshape(tf.random.uniform([5 * tf.shape(h)[0]]), [-1, 5]),
    'noise on weights': noise_on_weights,
    'steps beside features': lambda h: tf.concat([h[:, :3] + tf.reshape(tf.transpose(
        tf.random.normal([3, tf.shape(h)[0]])), [-1, 3]), h[:, 3:]], 1),
    'third axis': attention,
    'as many steps as rows': lambda h: tf.reduce_mean(dropout(0.5)(tf.stack([h] * 12)), 0),
    'time first in a loop': lambda h: tf.reduce_mean(turns(2, dropout(0.2))(steps_first(h)), 0),
    'flat steps': lambda h: flat_steps(h, dropout(0.5)),
    'windows': windows,
    'flat rows': lambda h: flat_rows(h, dropout(0.5)),
    'numbers of flat rows': lambda h: flat_rows(h, lambda rows: rows + tf.reshape(
        tf.random.normal([tf.size(rows)]), [-1, 5])),
    'steps of flat rows': lambda h: flat_rows(h, lambda rows: tf.scan(
        lambda before, none: dropout(0.3)(before + none), tf.zeros([2, tf.shape(rows)[0], 1]),
        rows)[-1]),
    'noise of flat steps': lambda h: h + tf.reduce_mean(tf.reshape(
        tf.random.normal([3 * tf.shape(h)[0], 5]), [3, -1, 5]), 0),
    'heads on the rows': heads,
    'flat choices': flat_choices,
    'random size': random_size,
    'own gradient': own_gradient,
    'two in one': lambda h: tf.add_n(tf.split(dropout(0.5)(tf.concat([h, -h], 0)), 2)),
    'tiled': lambda h: tf.add_n(tf.split(dropout(0.5)(tf.tile(h, [3, 1])), 3)),
    'masked': masked,
    'masked steps': lambda h: masked(h, lambda kept: tf.reduce_mean(
        dropout(0.5)(tf.stack([kept, 2 * kept, -kept])), 0)),
    'tokens': tokens,
    'stateless': lambda h: h + stateless(shape=tf.shape(h)),
    'stateless steps': lambda h: h + tf.reduce_mean(stateless(shape=tf.shape(steps_first(h))), 0),
    'stateless integers': lambda h: h * tf.cast(stateless(
        tf.random.stateless_uniform, shape=tf.shape(h), minval=0, maxval=3, dtype=tf.int32),
        tf.float32),
    'stateless for all': lambda h: h + stateless(shape=[5]),
    'map_fn of flat steps': lambda h: flat_steps(h, lambda rows: tf.map_fn(dropout(0.5), rows)),
    'map_fn of flat rows': lambda h: flat_rows(h, lambda rows: tf.map_fn(dropout(0.5), rows)),
    'categorical': lambda h: h * tf.cast(tf.random.categorical(h, 5), tf.float32),
    'random crop': lambda h: tf.image.random_crop(h, [tf.shape(h)[0], 2]),
    'shuffled features': lambda h: tf.transpose(tf.random.shuffle(tf.transpose(h))),
    'shuffled neighbours': neighbours,
    'branch': lambda h: branch(dropout(0.5), h),
    'loop': turns(3, dropout(0.2)),
    'loop in a loop': turns(2, turns(3, dropout(0.1))),
    'loops over any rows': turns(2, turns(3, dropout(0.1), [None, 5]), [None, 5]),
    'sized before a loop': sized,
    'sized before a branch': sized_outside,
    'branch in a loop': turns(3, lambda h: branch(dropout(0.2), h)),
    'dynamic_rnn': recurrent,
    'map_fn': lambda h: tf.map_fn(dropout(0.5), h),
    'map_fn of the input': lambda h: h * tf.map_fn(
        lambda row: beside(row)[0] + tf.random.uniform([5]), tf.get_collection('rows')[-1]),
    'map_fn of a loop': lambda h: tf.map_fn(turns(2, dropout(0.2)), h),
    'outside': outside}
# What a commit tries at once, each kind by itself at night.
TOGETHER = ('flat choices', 'keras', 'time first', 'integers', 'noise on weights', 'branch',
            'several rows', 'loops over any rows', 'dynamic_rnn', 'third axis', 'random crop',
            'map_fn of a loop')
MORE = ('sized before a loop', 'sized before a branch', 'flat steps', 'heads on the rows', 'tokens',
        'masked steps', 'stateless', 'stateless steps', 'map_fn of flat steps',
        'shuffled neighbours', 'numbers of flat rows', 'steps of flat rows')
DRAWS['together'] = lambda h: functools.reduce(lambda h, name: DRAWS[name](h), TOGETHER, h)
DRAWS['more'] = lambda h: functools.reduce(lambda h, name: tf.tanh(DRAWS[name](h)), MORE, h)
# (towers, mode, settings): batches of 12 with a last one of 6, and towers without any example.
POINTS = [
    (1, 'split', dict(accumulate=4)),
    (2, 'shard', dict(accumulate=2, variables='replicated', tower_build='clone')),
    (3, 'next', dict(accumulate=3, last_batch='pad')),
    (4, 'next', dict(last_batch='carry')),  # Of one static size.
    (5, 'shard', dict(staging_depth=0)),
    (6, 'next', dict(last_batch='carry', accumulate=2)),  # Of one row.
    (8, 'split', dict(tower_build='clone')),
]


def make_model(name):
  def model(batch, is_training):
    del is_training
    [rows] = batch
    tf.add_to_collection('rows', rows)
    h = tf.tanh(tf.matmul(rows, tf.get_variable('w', [3, 5])))
    return tf.reduce_sum(tf.square(DRAWS[name](h) - 1), 1)
  return model


def build(name, num_towers=1, mode='split', **settings):
  return towers.Program(
      make_model(name), train=towers.from_arrays(x), validation=towers.from_arrays(x, name='v'),
      batch_size=12, num_towers=num_towers, input_mode=mode,
      optimizer=tf.train.GradientDescentOptimizer(0.01), device='cpu', **settings)


def train(name, *point, **settings):
  """Returns the weights before and after some steps, and the losses."""
  with tf.Graph().as_default(), build(name, *point, **settings).session() as session:
    read = functools.partial(session.run, tf.trainable_variables())
    before = read()
    losses = [session.train() for _ in range(NUM_STEPS)]
    return before, read(), losses


@functools.lru_cache(maxsize=None)
def one_tower(name, **settings):
  return train(name, **settings)


@pytest.mark.nightly(but=['together-2', 'more-3', 'windows-4', 'noise on weights-6',
                          'own gradient-3',
                          'own gradient-4', 'random size-3', 'outside-2', 'outside-4', 'outside-6',
                          'outside-8'])
@pytest.mark.parametrize('name, point', itertools.product(DRAWS, POINTS),
                         ids=lambda value: value if isinstance(value, str) else str(value[0]))
def test_towers_draw_what_one_tower_draws(name, point, caplog):
  num_towers, mode, settings = point
  before, after, losses = one_tower(
      name, last_batch='carry' if settings.get('last_batch') == 'carry' else 'keep')
  assert np.abs(after[0] - before[0]).max() > 1e-3
  _, weights, others = train(name, num_towers, mode, **settings)
  np.testing.assert_allclose(weights[0], after[0], rtol=0, atol=1e-5)
  np.testing.assert_allclose(others, losses, rtol=1e-5)
  assert len({round(float(loss), 3) for loss in losses}) > 5
  assert 'neither found nor counted' not in caplog.text


@pytest.mark.parametrize('name', [
    'dropouts', 'dropout of rows', 'keras', 'doubles', 'several rows', 'time first', 'branch'])
def test_what_meets_rows_of_one_static_size_needs_no_other_call_of_the_model(
    name, monkeypatch):
  monkeypatch.setattr(forward_pass, 'call_in_scratch', lambda *_, **__: pytest.fail('called'))
  with tf.Graph().as_default():
    build(name, 4, 'next', last_batch='carry')


@pytest.mark.parametrize('num_towers', [2, 3])
def test_draws_of_rows_that_python_takes_apart_are_found_beside_a_known_number_of_all_rows(
    num_towers, caplog):
  def model(batch, is_training):
    h = tf.tanh(tf.matmul(batch[0], tf.get_variable('w', [3, 5])))
    drawn = tf.random.uniform(h.shape)
    h = tf.stack([row * numbers for row, numbers in zip(tf.unstack(h), tf.unstack(drawn))])
    of_all = towers.all_rows(h)
    return tf.reduce_mean(tf.reshape(of_all, [of_all.shape.as_list()[0], 5]) ** 2)

  def train(num_towers):
    with tf.Graph().as_default(), towers.Program(
        model, train=towers.from_arrays(x), batch_size=12, num_towers=num_towers, device='cpu',
        optimizer=tf.train.GradientDescentOptimizer(0.1), last_batch='drop').session() as session:
      return [session.train() for _ in range(NUM_STEPS)]

  np.testing.assert_allclose(train(num_towers), train(1), rtol=1e-5)
  assert 'neither found nor counted' not in caplog.text


@pytest.mark.nightly(but='dropout')
@pytest.mark.parametrize('name', ['dropout', 'noise on weights', 'categorical', 'dynamic_rnn'])
def test_nothing_moves_what_is_drawn(name, tmp_path):
  _, _, losses = train(name, 2)
  with tf.Graph().as_default():
    program = build(name, 2)
    with program.session() as session:
      for step in range(4):
        assert session.train() == losses[step]
        session.validate()
        session.run(program.towers[1].loss)
      session.save(str(tmp_path))
  with tf.Graph().as_default(), build(name, 2).session() as session:
    session.restore(str(tmp_path))
    assert [session.train() for _ in range(4, NUM_STEPS)] == losses[4:]


@pytest.mark.parametrize('num_towers, mode, settings', nightly_but([(3, 'shard', {})], [
    (2, 'split', dict(variables='replicated')), (3, 'shard', {}),
    (8, 'next', dict(validation_tower=True))]))
def test_what_is_measured_and_predicted_draws_alike(num_towers, mode, settings):
  def measure(num_towers, *point, **settings):
    with tf.Graph().as_default(), build('map_fn of the input', num_towers, *point, **settings
                                        ).session() as session:
      return (session.validate()['loss'], session.evaluate(towers.from_arrays(x[:17]))['loss'],
              session.predict(x, lambda h: DRAWS['map_fn'](dropout(0.5)(h))))

  for ours, expected in zip(measure(num_towers, mode, **settings), measure(1)):
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


@pytest.mark.parametrize('num_towers, mode, settings', nightly_but(
    [(2, 'shard', dict(accumulate=3)), (2, 'split', dict(accumulate=3, validation_tower=True))], [
        (1, 'split', dict(accumulate=2)), (1, 'split', dict(accumulate=4, last_batch='pad')),
        (2, 'shard', dict(accumulate=3)), (2, 'split', dict(accumulate=2, staging_depth=0)),
        (2, 'split', dict(accumulate=3, validation_tower=True)),
        (3, 'next', dict(accumulate=2, validation_tower=True))]))
def test_validation_in_micro_batches_draws_alike(num_towers, mode, settings):
  def measure(num_towers, mode, **settings):
    with tf.Graph().as_default(), build('dropout', num_towers, mode, **settings
                                        ).session() as session:
      measured = [session.validate()['loss']]
      session.train()
      return [*measured, session.validate()['loss'], session.train()]

  np.testing.assert_allclose(measure(num_towers, mode, **settings), measure(1, 'split'), rtol=1e-5)


@pytest.mark.skipif(not hasattr(tf, 'enable_control_flow_v2'), reason='1.14 has none to enable')
@pytest.mark.nightly(but='dynamic_rnn')
@pytest.mark.parametrize('name', ['branch', 'branch in a loop', 'dynamic_rnn', 'map_fn'])
def test_control_flow_v2_draws_the_same(name):
  _, weights, _ = one_tower(name)
  tf.enable_control_flow_v2()
  try:
    _, others, _ = train(name, 3, 'shard')
  finally:
    tf.disable_control_flow_v2()
  np.testing.assert_allclose(others[0], weights[0], rtol=0, atol=1e-5)


def test_rows_and_steps_draw_other_numbers():
  def model(batch, is_training):
    noise = tf.random.uniform([tf.shape(batch[0])[0], 7])
    tf.add_to_collection('noise', noise)
    return tf.reduce_sum(noise, 1) * tf.get_variable('w', []) + tf.reduce_sum(batch[0], 1)

  with tf.Graph().as_default():
    program = towers.Program(model, train=towers.from_arrays(x), batch_size=12, num_towers=3,
                             optimizer=tf.train.GradientDescentOptimizer(0.0), device='cpu')
    with program.session() as session:
      drawn = []
      for _ in range(2):
        drawn += [np.concatenate(session.run(tf.get_collection('noise')))]
        session.train()
  values = np.concatenate(drawn)
  assert values.min() >= 0 and values.max() < 1
  assert len(np.unique(values)) > 0.99 * values.size


@pytest.mark.parametrize('num_towers, mode', nightly_but([(3, 'shard')], [
    (2, 'split'), (2, 'next'), (3, 'shard')]))
def test_towers_with_the_rows_of_all_draw_what_one_tower_draws(num_towers, mode):
  def model(batch, is_training):
    h = steps_first(tf.matmul(batch[0], tf.get_variable('w', [3, 5])))
    h = tf.reshape(dropout(0.5)(tf.reshape(h, [-1, 5])), [3, -1, 5])
    of_all = towers.all_rows(tf.reduce_mean(h, 0))
    return tf.reduce_mean(tf.square(h), [0, 2]) + tf.reduce_mean(tf.square(of_all))

  def train(num_towers, mode):
    with tf.Graph().as_default():
      program = towers.Program(
          model, train=towers.from_arrays(x), batch_size=12, num_towers=num_towers,
          input_mode=mode, optimizer=tf.train.GradientDescentOptimizer(0.01), device='cpu',
          last_batch='carry')  # The model is called again for another number of rows.
      with program.session() as session:
        return [session.train() for _ in range(NUM_STEPS)]

  np.testing.assert_allclose(train(num_towers, mode), train(1, 'split'), rtol=1e-5)


def shuffled(gather, h):
  rows, places = gather(h)
  return h * tf.gather(tf.random.shuffle(rows), places)


@pytest.mark.parametrize('settings', nightly_but([dict(last_batch='carry')], [
    dict(last_batch='carry'), dict(input_mode='shard'), dict(last_batch='pad', input_mode='next')]))
def test_a_shuffle_of_the_rows_of_all_towers_is_that_of_one(settings, monkeypatch, caplog):
  monkeypatch.setitem(DRAWS, 'shuffled', lambda h: shuffled(
      lambda rows: towers.all_rows(rows, with_places=True), h))
  settings = dict(settings)
  mode = settings.pop('input_mode', 'split')
  _, [one], losses = train('shuffled', 1, **settings)
  _, [weights], others = train('shuffled', 3, mode, **settings)
  np.testing.assert_allclose(weights, one, rtol=0, atol=1e-5)
  np.testing.assert_allclose(others, losses, rtol=1e-5)
  assert not [text for text in caplog.messages if 'shuffle' in text.lower()]
  monkeypatch.setitem(DRAWS, 'shuffled', lambda h: shuffled(
      lambda rows: (rows, tf.range(tf.shape(rows)[0])), h))
  with tf.Graph().as_default():
    build('shuffled', 1, last_batch=settings.get('last_batch', 'keep'))
  assert not caplog.messages
  with tf.Graph().as_default():
    build('shuffled', 3, mode, **settings)
  line = shuffled.__code__.co_firstlineno + 2
  assert (f'test_draws.py, line {line} shuffles the rows of a batch, of which a tower has only its '
          'own: shuffle those of all, rows, places = towers.all_rows(x, with_places=True)'
          ) in caplog.text


def up_to_the_longest(gather, h):
  """Draws for each of the times of a batch whose examples are cut at the longest."""
  [rows] = tf.get_collection('rows')[-1:]
  lengths = 1 + tf.cast(4 * tf.abs(rows[:, 0]), tf.int32)
  longest = 1 + tf.cast(tf.reduce_max(gather(lengths - 1)), tf.int32)
  size = rows.shape[0] if rows.shape[0].value else tf.shape(rows)[0]
  mask = tf.sequence_mask(lengths, longest, tf.float32)[..., None]
  times = tf.tile(h[:, None], [1, 20, 2])[:, :longest]
  kept = dropout(0.5)(mask * times)
  kept = turns(1, tf.tanh)(kept)
  sizes = tf.shape(kept)
  kept = branch(lambda h: tf.nn.dropout(
      h, rate=0.5, noise_shape=[sizes[0], 1, sizes[2]]), kept)
  flat = tf.reshape(dropout(0.5)(tf.reshape(kept, [size * longest, 10])), [-1, longest, 10])
  limit = tf.minimum(longest, 4)
  first = dropout(0.5)(tf.reshape(tf.transpose(flat[:, :limit], [1, 0, 2]), [-1, 10]))
  first = tf.reduce_mean(tf.reshape(first, [limit, size, 10]), 0)
  # Nothing reads it, and it takes no longest example but one of a single entry.
  tf.nn.bias_add(tf.matmul(flat, flat, transpose_b=True), tf.zeros([1]))
  means = tf.reduce_sum(flat[..., :5] * mask, 1) / tf.cast(lengths, tf.float32)[:, None]
  return means + first[:, :5]


@pytest.mark.nightly(but=['3-shard-keep', '2-split-carry'])
@pytest.mark.parametrize('last_batch', ['keep', 'carry'])
@pytest.mark.parametrize('num_towers, mode', [(3, 'shard'), (2, 'split'), (4, 'next')])
def test_draws_up_to_the_longest_of_all_towers_are_those_of_one(num_towers, mode, last_batch,
                                                                monkeypatch, caplog):
  monkeypatch.setitem(DRAWS, 'longest', functools.partial(up_to_the_longest, towers.all_rows))
  _, weights, losses = train('longest', num_towers, mode, last_batch=last_batch)
  assert 'neither found nor counted' not in caplog.text
  _, after, ones = train('longest', 1, last_batch=last_batch)
  np.testing.assert_allclose(losses, ones, rtol=1e-5)
  np.testing.assert_allclose(weights[0], after[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize('last_batch, dtype', [('keep', tf.int32), ('carry', tf.float32)])
def test_each_draw_up_to_the_longest_of_a_tower_is_named(last_batch, dtype, monkeypatch, caplog):
  monkeypatch.setitem(DRAWS, 'longest', functools.partial(
      up_to_the_longest, functools.partial(tf.cast, dtype=dtype)))
  train('longest', 2, last_batch=last_batch)
  [message] = [record.message for record in caplog.records if 'neither found' in record.message]
  assert message.count('tower_0/dropout') == 3
  assert 'tf.reduce_max(towers.all_rows(lengths))' in message


@pytest.mark.parametrize('settings', nightly_but([dict(input_mode='shard')], [
    dict(input_mode='split'), dict(input_mode='next'), dict(input_mode='shard'),
    dict(accumulate=2)]), ids=str)
def test_draws_along_what_a_tower_pads_alone_are_named(settings, caplog):
  def model(batch, is_training):
    weights = tf.get_variable('weights', [4], initializer=tf.ones_initializer())
    longer = tf.pad(dropout(0.5)(batch[0]), [[0, 0], [1, 0], [0, 0]], constant_values=1)
    flat = dropout(0.5)(tf.reshape(longer, [-1, 4]))
    rows, longest = tf.unstack(tf.shape(batch[0])[:2])
    half = tf.random.uniform([rows, tf.cast(0.5 * tf.cast(longest, tf.float32), tf.int32)])
    return tf.reduce_sum(half, 1) + tf.reduce_sum(tf.reshape(flat, tf.shape(longer)) * weights,
                                                  [1, 2])

  def measure(num_towers, **settings):
    rows = [np.ones([1 + number % 7, 4], np.float32) for number in range(12)]
    with tf.Graph().as_default(), towers.Program(
        model, train=towers.padded(towers.from_arrays(rows), pad_to='batch'), batch_size=6,
        num_towers=num_towers, device='cpu', optimizer=tf.train.GradientDescentOptimizer(0.0),
        **settings).session() as session:
      return [session.train() for _ in range(4)]

  losses = measure(2, **settings)
  if 'shard' in settings.values() or 'accumulate' in settings:
    assert caplog.text.count('neither found nor counted: tower_0/dropout') == 1
  else:
    assert 'neither found nor counted' not in caplog.text
    assert losses == pytest.approx(measure(1), rel=1e-6)


def of_unique(h):
  """Draws for as many rows as the batch has different ones."""
  values, places = tf.unique(tf.cast(5 * h[:, 0], tf.int32))
  return h + tf.gather(tf.random.normal([tf.size(values), 5]), places)


def map_fn_of_unique(h):
  values, places = map(tf.stop_gradient, tf.unique(tf.floor(5 * h[:, 0])))
  return h + tf.gather(tf.map_fn(lambda value: value + tf.random.normal([5]), values), places)


def without_order(h):
  """Draws for `[time * batch]` rows of which none but the first are used."""
  return h + tf.random.normal([3 * tf.shape(h)[0], 5])[:tf.shape(h)[0]]


def by_seed_of_the_batch(h):
  seed = tf.cast(h[0, :2], tf.int32)
  return h + tf.random.stateless_normal(tf.shape(h), seed=seed)


def in_a_function(h):
  draw = tf.function(lambda h: h + tf.random.stateless_normal(tf.shape(h), seed=[1, 2]))
  return tf.reshape(draw(h), tf.shape(h))


def of_ragged_lengths(h):
  lengths = tf.cast(tf.floor(2 + 1.99 * h[:, 0]), tf.int64)
  ragged = tf.RaggedTensor.from_row_lengths(tf.ones([tf.reduce_sum(lengths)]), lengths)
  kept = tf.nn.dropout(ragged.values, rate=0.5)
  return h + tf.math.unsorted_segment_sum(kept, ragged.value_rowids(), tf.shape(h)[0])[:, None]


UNKNOWN = {'of ragged lengths': of_ragged_lengths, 'of unique': of_unique,
           'without order': without_order,
           'by seed of the batch': by_seed_of_the_batch, 'in a function': in_a_function,
           'map_fn of unique': map_fn_of_unique}


@pytest.mark.nightly(but=['of unique-keep', 'of ragged lengths-keep', 'in a function-keep',
                          'without order-carry'])
@pytest.mark.parametrize('last_batch', ['keep', 'carry'])
@pytest.mark.parametrize('name', UNKNOWN)
def test_what_is_neither_found_nor_counted_is_named_with_its_line(name, last_batch, monkeypatch,
                                                                  caplog):
  monkeypatch.setitem(DRAWS, name, UNKNOWN[name])
  train(name, 2, last_batch=last_batch)
  [message] = [record.message for record in caplog.records if 'may depend on the number of towers'
               in record.message]
  line = UNKNOWN[name].__code__.co_firstlineno
  assert any(f'test_draws.py, line {number}' in message for number in range(line, line + 5))
  assert 'draw for rows that the data pads, as by towers.padded' in message
  caplog.clear()
  train(name, 1, last_batch=last_batch)
  assert 'number of towers' not in caplog.text


@pytest.mark.parametrize('kind', ['open', 'sized', 'session'])
def test_static_draws_are_found_in_open_reshapes_or_another_call(kind, monkeypatch, caplog):
  def flat(h):
    if kind == 'session':
      tf.Session().run(tf.global_variables_initializer())
    elif not any(op.name.startswith('inputs_') for op in h.graph.get_operations()):
      raise ValueError('as layers do that were made in another graph')
    size = -1 if kind == 'open' else 3 * tf.compat.dimension_value(h.shape[0])
    kept = dropout(0.5)(tf.reshape(steps_first(h), [size, 5]))
    return tf.reduce_mean(tf.reshape(kept, [3, -1, 5]), 0)

  monkeypatch.setitem(DRAWS, 'flat', flat)
  _, _, losses = train('flat', 2, last_batch='carry')
  named = caplog.text.count('neither found nor counted: tower_0/dropout')
  assert named == (kind == 'sized')
  if not named:
    assert losses == pytest.approx(train('flat', 1, last_batch='carry')[2], rel=1e-5)


def test_draws_that_nothing_needs_are_not_named(monkeypatch, caplog):
  monkeypatch.setitem(DRAWS, 'aside', lambda h: (of_unique(h), shuffled(
      lambda rows: (rows, tf.range(tf.shape(rows)[0])), h), h)[-1])
  with tf.Graph().as_default():
    build('aside', 2)
  assert not caplog.messages


def sampled(h):
  labels = tf.zeros([tf.shape(h)[0], 1], tf.int64)
  candidates, _, _ = tf.random.log_uniform_candidate_sampler(labels, 1, 1, True, 90)
  _, _, hits = tf.nn.compute_accidental_hits(labels, candidates, 1)
  return h * tf.cast(candidates, tf.float32) + tf.reduce_sum(hits)


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize('name, make', [
    ('RandomGamma', lambda h: h * tf.random.gamma(tf.shape(h), 2.0)),
    ('LogUniformCandidateSampler', sampled),
    ('RandomPoissonV2', lambda h: h * tf.random.poisson(1.0, tf.shape(h)))])
def test_what_cannot_be_drawn_by_place_is_named(name, make, caplog, monkeypatch):
  monkeypatch.setitem(DRAWS, name, make)
  with caplog.at_level(logging.WARNING, 'towers'):
    _, weights, _ = train(name, 2)
  [told] = [record.message for record in caplog.records if 'Draws change' in record.message]
  assert f'those of {name} tower_0/' in told and told.count(name) <= 2
  assert f'made in {os.path.relpath(__file__)}, line ' in told
  np.testing.assert_array_equal(weights, train(name, 2)[1])
  is_alike = np.allclose(weights, train(name, 1)[1], rtol=1e-4)
  assert ('number of towers' in told) != is_alike


@pytest.mark.skipif(philox.HAS_COUNTER, reason='this TensorFlow cuts nothing out')
def test_a_draw_too_large_to_cut_is_seeded_by_tower(caplog, monkeypatch):
  monkeypatch.setattr(draws, '_MOST_NUMBERS', 10)
  with caplog.at_level(logging.WARNING, 'towers'):
    train('dropout', 2)
  assert 'those of RandomUniform tower_0/' in caplog.text
