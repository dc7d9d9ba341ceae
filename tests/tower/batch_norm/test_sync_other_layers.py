"""Layers of others under batch_norm=sync: N towers are the one tower on which nothing is replaced.

What cannot be joined is refused by name, and what needs no joining keeps its ops.
"""

import logging
import weakref

import numpy as np
import pytest

import towers
from tests.harness import small
from tests.harness.in_process_cluster import InProcessCluster
from towers.base.usage_error import UsageError
from towers.input import pipeline
from towers.tensorflow_v1 import load_keras, tf
from towers.tower.batch_norm.layer import batch_norm

IS_TF1 = tf.__version__.startswith('1.')
NUM_STEPS = 5
SHAPE = (2, 3, 4)  # Height, width and channels.


def normed(normalize, shape=SHAPE):
  """Returns a model with a layer that has its input from weights, and feeds others."""
  def model(batch, is_training):
    features, labels = batch
    x = tf.reshape(small.dense(features, int(np.prod(shape)), 'in'), [-1, *shape])
    x = tf.reshape(tf.tanh(normalize(x, is_training)), [-1, int(np.prod(shape))])
    return small.classify(small.dense(x, 5, 'hidden'), labels)

  return model


def by_layers(**settings):
  return lambda x, is_training: tf.layers.batch_normalization(
      x, training=is_training, momentum=0.8, **settings)


_kept = weakref.WeakKeyDictionary()


def by_keras(x, is_training):
  """A layer object that all towers call: those after the first name their ops after the first."""
  make = load_keras().layers.BatchNormalization
  layer = _kept.get(x.graph) or _kept.setdefault(x.graph, make(momentum=0.8, name='kept'))
  y = layer(x, training=is_training)
  for update in layer.get_updates_for(x):
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
  return y


def by_slim(x, is_training, **settings):
  from tensorflow.contrib import slim
  return slim.batch_norm(x, is_training=is_training, decay=0.8, scale=True, **settings)


def move(mean, variance):
  """Moves averages as those who write their own layer do; returns them."""
  moving = [tf.get_variable(f'moving_{name}', moment.shape, trainable=False,
                            initializer=tf.ones_initializer())
            for name, moment in (('mean', mean), ('variance', variance))]
  for variable, moment in zip(moving, (mean, variance)):
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS,
                         variable.assign_sub(0.2 * (variable.read_value() - moment)))
  return [variable.read_value() for variable in moving]


def by_hand(x, is_training, axes=(0, 1, 2)):
  """Takes moments in float32, as the averages are: those of half precision cannot move them."""
  moments = list(tf.nn.moments(tf.cast(x, tf.float32), list(axes)))
  averages = move(*moments)
  if tf.is_tensor(is_training):
    moments = tf.cond(is_training, lambda: moments, lambda: averages)
  elif not is_training:
    moments = averages
  moments = [tf.cast(moment, x.dtype) for moment in moments]
  return tf.nn.batch_normalization(x, *moments, None, tf.get_variable('scale', x.shape[-1:]), 1e-3)


def by_averages(x, is_training):
  """Moments that wait for averages of them, which a branch moves, as in a much copied answer."""
  with tf.variable_scope('norm'):
    moments = tf.nn.moments(x, [0, 1, 2])
    moving = tf.train.ExponentialMovingAverage(0.8)
    is_training = tf.convert_to_tensor(is_training)
    moved = tf.cond(is_training, lambda: moving.apply(moments), tf.no_op)

    def take():
      with tf.control_dependencies([moved]):
        return list(map(tf.identity, moments))

    moments = tf.cond(is_training, take, lambda: [moving.average(moment) for moment in moments])
    return tf.nn.batch_normalization(x, *moments, None, None, 1e-3)


def of_noise(x, is_training):
  """What a generator normalises: no example, but drawn for each."""
  return x + by_layers()(tf.random.stateless_normal(tf.shape(x), [1, 2])[:, :, :, :4], is_training)


def by_a_kernel(x, is_training):
  scale, offset = tf.get_variable('scale', [4]), tf.get_variable('offset', [4])
  y, *moments = tf.nn.fused_batch_norm(x, scale, offset)
  return y + 0.1 * move(*moments)[0]


def penalized(layer):
  """Differentiates a layer twice."""
  def penalize(x, is_training):
    y = tf.tanh(layer(x, is_training))
    return y + tf.gradients(tf.reduce_sum(tf.square(y)), x)[0]

  return normed(penalize)


def in_a_branch(batch, is_training):
  """The whole net in each branch, as those write it who have two."""
  def build(trains):
    with tf.variable_scope('net', reuse=tf.AUTO_REUSE):
      return normed(by_layers(name='norm'))(batch, trains)

  if not tf.is_tensor(is_training):
    return build(is_training)
  build(False)  # Makes the variables.
  return tf.cond(is_training, lambda: build(True), lambda: build(False))


def by_placeholders(batch, is_training):
  """A class builds its net on placeholders, of which one chooses the branch of its layer."""
  features, labels = [tf.placeholder(part.dtype, [None, *part.shape[1:]]) for part in batch]
  trains = tf.placeholder(tf.bool, [])
  losses = normed(by_layers())((features, labels), trains)
  return towers.fed({features: batch[0], labels: batch[1], trains: is_training}, losses)


def make_net(*sizes, in_sequence=False):
  """Returns a model of Keras that is built on inputs of the sizes, before any tower calls it."""
  keras = load_keras()
  layers = [keras.layers.Dense(24), keras.layers.BatchNormalization(momentum=0.8),
            keras.layers.Reshape(SHAPE), keras.layers.BatchNormalization(momentum=0.8),
            keras.layers.Flatten(), keras.layers.Dense(3, activation='softmax')]
  if in_sequence:
    return keras.Sequential([keras.layers.InputLayer(sizes), *layers])
  inputs = [keras.Input([size]) for size in sizes]
  x = keras.layers.Concatenate()(inputs) if len(sizes) > 1 else inputs[0]
  for layer in layers:
    x = layer(x)
  return keras.Model(inputs if len(sizes) > 1 else inputs[0], x)


def of_keras(*sizes, preprocess=None, **settings):
  return towers.KerasModel(lambda: make_net(*sizes, **settings), preprocess=preprocess,
                           loss='sparse_categorical_crossentropy')


def by_a_kept_net(batch, is_training):
  """A functional model that the first tower builds within its own name scope."""
  (features, labels), graph = batch, tf.get_default_graph()
  net = _kept.get(graph) or _kept.setdefault(graph, make_net(5))
  outputs = net(features, training=is_training)
  for update in net.get_updates_for(features):
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs)


def beside_a_placeholder(x, is_training):
  """Each call puts a placeholder of the first through the layer too, as one does to predict."""
  layers, graph = load_keras().layers, x.graph
  layer, placeholder = _kept.get(graph) or _kept.setdefault(graph, (
      layers.BatchNormalization(momentum=0.8, name='kept'), tf.placeholder(tf.float32, x.shape)))
  layer(placeholder, training=is_training)
  y = layer(x, training=is_training)
  for update in layer.get_updates_for(x):
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
  return y


LAYERS = {
    'placeholders': by_placeholders,
    'fused': normed(by_layers()),
    'fused twice': normed(lambda x, is_training: by_layers(name='two')(
        tf.nn.relu(by_layers(name='one')(x, is_training)), is_training)),
    'not fused': normed(by_layers(fused=False)),
    'channels first': normed(by_layers(axis=1, fused=False)),
    'rows': normed(by_layers(), [6]),
    'of two axes': normed(by_layers(axis=[1, 3])),
    'renorm': normed(by_layers(renorm=True, fused=False)),
    'frozen': normed(lambda x, is_training: by_layers()(x, False)),
    'keras': normed(by_keras),
    'by hand': normed(by_hand),
    'by hand, each place': normed(lambda x, is_training: by_hand(x, is_training, axes=[0])),
    'averages': normed(by_averages),
    'kernel': normed(by_a_kernel),
    'noise': normed(of_noise),
    'second derivatives': penalized(by_layers()),
    'second derivatives, by hand': penalized(by_hand),
    'branch': in_a_branch,
    **({'slim': normed(by_slim), 'slim, rows': normed(by_slim, [6]),
        'slim, not fused': normed(lambda *given: by_slim(*given, fused=False)),
        'slim, zero debias': normed(lambda *given: by_slim(*given, zero_debias_moving_mean=True))}
       if IS_TF1 else {})}
# Built on placeholders that nothing feeds.
NETS = {
    'functional': of_keras(5),
    'sequence': of_keras(5, in_sequence=True),
    'two inputs': of_keras(2, 3, preprocess=lambda x: [x[:, :2], x[:, 2:]]),
    'kept net': by_a_kept_net,
    'kept placeholder': normed(beside_a_placeholder)}


def train(model, **settings):
  """Returns losses, all variables, and the means of a validation where there is one."""
  settings = {**dict(train=small.random_examples(15), batch_size=7, batch_norm='sync'), **settings}
  with small.Run(model=model, **settings) as run:
    losses = [run.train() for _ in range(NUM_STEPS)]
    validates = settings.get('validates')
    return losses, run.variables(), run.validate()[0] if validates else {}


def assert_same(found, expected, tolerance=1e-5):
  assert found[0] == pytest.approx(expected[0], abs=tolerance)
  small.assert_same_weights(found[1], expected[1], tolerance)
  assert found[2] == pytest.approx(expected[2], abs=tolerance)


# The third batch has one example, which leaves two of three towers without any.
SETTINGS = {
    'switched': dict(num_towers=2, validates=True),
    'three': dict(num_towers=3, validates=True, mode='shard'),
    'trains': dict(num_towers=3, mode='next'),
    'clones': dict(num_towers=3, validates=True, tower_build='clone'),
    'replicas': dict(num_towers=2, tower_build='clone', placement='replicated', mode='next'),
    # Five rows, and no other axis is as long.
    'static': dict(num_towers=2, batch_size=10, last_batch='drop', depth=0),
    'pieces': dict(num_towers=2, validates=True, accumulate=2, batch_size=8),
    'tower': dict(num_towers=3, validation_tower=True, validates=True, placement='balanced')}
# Neither works on one tower either: of renorm in pieces the measurement refuses the loss, and a
# layer object reads its own variables, not a snapshot.
POINTS = [(layer, settings) for layer in LAYERS for settings in SETTINGS
          if (layer, settings) not in [('renorm', 'pieces'), ('keras', 'tower')]]
# Each layer once, with each of the settings in turn.
CHOSEN = [POINTS[number * (len(SETTINGS) + 1) % len(POINTS)] for number in range(len(LAYERS))]
# Each tower calls the net that the first has built.
SETTINGS['calls'] = dict(num_towers=2, validates=True, tower_build='reuse')
CHOSEN += [('functional', 'clones'), ('functional', 'calls'), ('kept placeholder', 'trains'),
           ('second derivatives', 'three')]
POINTS += [(net, settings) for net in NETS for settings in SETTINGS if settings != 'tower']


@pytest.mark.parametrize('layer, settings', small.nightly_but(CHOSEN, POINTS))
def test_towers_are_the_one_on_which_nothing_is_replaced(layer, settings, monkeypatch):
  monkeypatch.setattr(pipeline, 'fill_empty', small.fill_with_nan)
  settings, model = SETTINGS[settings], {**LAYERS, **NETS}[layer]
  alike = {name: settings[name] for name in ('validates', 'accumulate', 'batch_size', 'last_batch')
           if name in settings}
  expected = train(model, num_towers=1, **{**alike, 'batch_norm': 'first'})
  assert_same(train(model, **settings), expected)
  assert any('moving' in name.lower() for name in expected[1])


def by_the_batch(in_python):
  """A model that takes the batch's moments in validation too."""
  def model(batch, is_training):
    return normed(lambda x, _: by_layers()(x, True))(batch, bool(in_python and is_training))
  return model


def measure(model, folder, **settings):
  """Returns what a run measures of a split in three ways."""
  split = small.random_examples(11, 'validation', seed=1)
  with small.program(model, validation=split, **settings).session() as session:
    session.train()
    session.save(folder)
    found = [session.validate(), session.evaluate(split)]
  beside = {name: settings[name] for name in ('num_towers', 'batch_norm')}
  found.append(towers.evaluate(folder, model, split, batch_size=8, device='cpu', best=False,
                               **beside))
  return [measured['loss'] for measured in found]


@pytest.mark.parametrize('settings', [{}, dict(validation_tower=True)], ids=['switch', 'tower'])
@pytest.mark.parametrize('in_python', [False, True], ids=['tensor', 'python'])
def test_what_is_measured_by_moments_of_the_batch_is_joined(in_python, settings, tmp_path):
  model = by_the_batch(in_python)
  expected = measure(model, str(tmp_path / 'one'), num_towers=1, batch_norm='first')
  found = measure(model, str(tmp_path / 'three'), num_towers=3, batch_norm='sync', **settings)
  assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize('accumulate', [1, 2])
def test_moments_of_a_micro_batch_are_named_as_such(accumulate, caplog):
  train(LAYERS['fused'], num_towers=3, accumulate=accumulate, batch_size=8, tower_build='clone')
  assert [record.getMessage() for record in caplog.records if 'micro' in record.getMessage()] == [
      'Values of all towers, of towers.all_sum, towers.all_rows or the moments that '
      'batch_norm=sync joins, are those of a micro-batch, of which a step has 2: without '
      'accumulate they are those of the whole batch.'] * (accumulate - 1)


@pytest.mark.nightly(but=['not fused-16', 'fused-16'])
@pytest.mark.parametrize('num_examples', [16, 18])  # 16: batches of one static size.
@pytest.mark.parametrize('layer', ['fused', 'not fused', 'channels first', 'keras', 'by hand'])
def test_one_tower_in_micro_batches_is_not_told_to_take_what_it_has(layer, num_examples, caplog):
  train(LAYERS[layer], num_towers=1, accumulate=2, batch_size=8,
        train=small.random_examples(num_examples))
  # Kernels normalise batches as a setting of theirs says.
  is_by_kernel = layer in ('fused', 'keras')
  assert ('use batch_norm=sync with accumulate=1;' in caplog.text) == (not is_by_kernel)


def list_all(model, **settings):
  """Returns what a program consists of: all ops, with what they are given."""
  graph = small.program(model, **settings).graph
  return [(op.type, op.name, op.device, list(op.node_def.input)) for op in graph.get_operations()]


@pytest.mark.nightly(but='fused')
@pytest.mark.parametrize('layer', ['fused', 'not fused', 'by hand'])
def test_a_tower_alone_has_its_own_ops(layer):
  one = dict(num_towers=1)
  assert (list_all(LAYERS[layer], batch_norm='sync', **one)
          == list_all(LAYERS[layer], batch_norm='first', **one))


def of_weights(x, is_training):
  weights = tf.get_variable('weights', [1, 1, 4, 4])
  mean, variance = tf.nn.moments(weights, [0, 1, 2])
  return tf.nn.conv2d(x, (weights - mean) * tf.rsqrt(variance + 0.1), [1, 1, 1, 1], 'SAME')


def of_each_example(x, is_training):
  for axes in ([1, 2], [1, 2, 3], [-1]):
    mean, variance = tf.nn.moments(x, axes, keep_dims=True)
    x = (x - mean) * tf.rsqrt(variance + 0.1)
  return x


@pytest.mark.parametrize('layer', [of_weights, of_each_example])
def test_what_is_no_moment_of_the_batch_keeps_its_ops(layer):
  model = normed(layer)
  assert list_all(model, batch_norm='sync') == list_all(model, batch_norm='first')


@pytest.mark.nightly(but='not fused')
@pytest.mark.parametrize('layer', ['fused', 'not fused', 'by hand'])
def test_half_precision_is_as_near_as_with_the_own_layer(layer):
  own = normed(lambda x, is_training: batch_norm(x, is_training, name='norm', momentum=0.8,
                                                 epsilon=1e-3))

  def differ(model):
    found, one = [train(model, num_towers=num_towers, precision='mixed', batch_norm=kind)
                  for num_towers, kind in ((3, 'sync'), (1, 'first'))]
    return max(abs(np.subtract(*losses)) for losses in zip(found[0], one[0])), max(
        abs(value - one[1][name]).max() for name, value in found[1].items())

  for ours, theirs in zip(differ(LAYERS[layer]), differ(own)):
    assert ours <= 2 * theirs + 1e-4


@pytest.mark.nightly(but='fused')
@pytest.mark.parametrize('layer', ['fused', 'not fused', 'by hand', 'second derivatives'])
def test_workers_are_one_tower(layer):
  settings = dict(model=LAYERS[layer], train=small.random_examples(15), batch_size=7,
                  validates=True)
  with InProcessCluster(num_workers=2, num_towers=2, batch_norm='sync', **settings) as cluster:
    losses = [cluster.train() for _ in range(NUM_STEPS)]
    found = losses, cluster.runs[0].variables(), cluster.each(small.Run.validate)[0][0]
  with small.Run(num_towers=1, **settings) as one:
    losses = [one.train() for _ in range(NUM_STEPS)]
    expected = losses, one.variables(), one.validate()[0]
  assert_same(found, expected)


@pytest.mark.nightly(but='fused-2')
@pytest.mark.parametrize('num_towers', [2, 3])
@pytest.mark.parametrize('layer', ['fused', 'not fused', 'by hand', 'kernel'])
def test_the_measurement_names_no_layer_that_is_joined(layer, num_towers, caplog):
  program = small.program(LAYERS[layer], num_towers=num_towers, batch_norm='sync')
  with caplog.at_level(logging.WARNING, 'towers'), program.session() as session:
    session.train()
  assert not [record for record in caplog.records if 'do not equal one' in record.getMessage()]


def in_a_loop(x, is_training):
  return tf.while_loop(lambda turn, _: turn < 2, lambda turn, x: (
      turn + 1, x - tf.nn.moments(x, [0, 1, 2])[0]), (0, x))[1]


def kernel_in_a_loop(x, is_training):
  return tf.while_loop(lambda turn, _: turn < 2, lambda turn, x: (
      turn + 1, tf.nn.fused_batch_norm(x, tf.ones([4]), tf.zeros([4]))[0]), (0, x))[1]


def time_major(x, is_training):
  x = tf.transpose(x, [1, 0, 2, 3])
  return tf.transpose(x - tf.nn.moments(x, [0])[0], [1, 0, 2, 3])


def time_of_examples(x, is_training):
  """Has as many times as would be two batches of a tower."""
  times = tf.transpose(tf.reshape(x, [-1, 12, 2]), [1, 0, 2])
  return tf.reshape(tf.transpose(times - tf.nn.moments(times, [0])[0], [1, 0, 2]), tf.shape(x))


def in_groups(x, is_training):
  groups = tf.reshape(x, [3, -1, *SHAPE])
  return tf.reshape(groups - tf.nn.moments(groups, [0, 2, 3], keep_dims=True)[0], [-1, *SHAPE])


def by_weights(x, is_training):
  moments = tf.nn.weighted_moments(x, [0, 1, 2], tf.square(x))
  move(*moments)
  return x - moments[0]


def by_means(x, is_training):
  mean = tf.reduce_mean(x, [0, 1, 2])
  move(mean, tf.reduce_mean(tf.square(x - mean), [0, 1, 2]))
  return x - mean


def by_another_branch(x, is_training):
  return tf.cond(tf.reduce_sum(x) > 0, lambda: x - tf.nn.moments(x, [0, 1, 2])[0], lambda: x)


REFUSED = {
    'loop': (in_a_loop, 'moments of .*axes.*a loop'),
    'kernel in a loop': (kernel_in_a_loop, 'moments of .*a loop'),
    'time major': (time_major, 'moments of transpose|axis 0'),
    'time, as long': (time_of_examples, 'keep an axis'),
    'groups': (in_groups, 'axis'),
    'virtual batches': (by_layers(virtual_batch_size=3), 'axis'),
    'one virtual batch': (by_layers(virtual_batch_size=6), 'axis'),
    'weighted': (by_weights, 'moving_mean is moved by moments of each tower'),
    'means': (by_means, 'moving_mean is moved by moments of each tower'),
    'branch': (by_another_branch, 'chooses by the examples of a tower')}
OPEN, STATIC = dict(last_batch='keep'), dict(last_batch='drop')


@pytest.mark.nightly(but=['virtual batches-static', 'one virtual batch-static', 'groups-open',
                          'time, as long-static', 'loop-open', 'weighted-open', 'branch-open'])
@pytest.mark.parametrize('settings', [OPEN, STATIC], ids=['open', 'static'])
@pytest.mark.parametrize('name', REFUSED)
def test_what_cannot_be_joined_is_refused_by_name(name, settings):
  layer, words = REFUSED[name]
  with pytest.raises(UsageError, match=words):
    small.program(normed(layer), train=small.random_examples(25), batch_norm='sync',
                  batch_size=12, validation=None, **settings)
