"""Law 1, measured: before the first step what couples examples is named or refused, and no more."""

import logging

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.checks.zoo import ZOO
from tests.checks.zoo.parts import ce, dense
from tests.harness import small
from tests.harness.in_process_cluster import InProcessCluster
from towers.checks import fed_tower, law
from towers.tower.batch_norm_layer import batch_norm
from towers.training.stepping import steps

IS_TF1 = tf.__version__.startswith('1.')
# The course that its loop takes on this batch is that of all its parts.
SILENT = {'while_until_batch_converges'}
# TensorFlow itself raises: no second derivative on 1.14, and a batch before there is any.
RAISE = {'maml_inner_step': tf.errors.OpError if not IS_TF1 else LookupError,
         'variable_from_batch': towers.RunError}


def sgd():
  return tf.train.MomentumOptimizer(0.05, 0.9)


def judge(model, data, caplog, optimizer=None, **settings):
  """Opens a program and returns what it is warned of."""
  settings = {**dict(batch_size=14, num_towers=2, device='cpu', seed=3), **settings}
  with tf.Graph().as_default(), caplog.at_level(logging.WARNING, 'towers'):
    program = towers.Program(model, train=data(), optimizer=(optimizer or sgd)(), **settings)
    num_ops = len(program.graph.get_operations())
    caplog.clear()
    with program.session() as session:
      del session
      added = len(program.graph.get_operations()) - num_ops
  assert added < 12, 'the initializers alone'
  return [record.getMessage() for record in caplog.records
          if 'do not equal one' in record.getMessage()]


# At each commit one model of each kind.
OF_EACH_KIND = {case.kind: name for name, case in ZOO.items() if not case.tf1}.values()


@pytest.mark.parametrize('settings', [
    {}, pytest.param(dict(num_towers=3, tower_build='clone', input_mode='next', staging_depth=0,
                          batch_size=20),
                     marks=pytest.mark.nightly)], ids=['2', '3 clones'])
@pytest.mark.parametrize('name', small.nightly_but(OF_EACH_KIND, sorted(ZOO)))
def test_what_couples_examples_is_named_and_nothing_else(name, settings, caplog):
  case = ZOO[name]
  if case.tf1 and not IS_TF1:
    pytest.skip('contrib is of TensorFlow 1')
  if name in RAISE and (IS_TF1 or name != 'maml_inner_step'):
    with pytest.raises(RAISE[name]):
      judge(case.model, case.data, caplog, case.opt, **settings)
    return
  try:
    named = judge(case.model, case.data, caplog, case.opt, **settings)
  except towers.UsageError as refused:
    if case.kind != 'coupled' and 'tower_build' in str(refused):
      return  # What clones cannot copy.
    named = [str(refused)]
  assert len(named) == (case.kind == 'coupled' and name not in SILENT), named


def normed(batch, is_training, then=ce):
  x = batch_norm(dense(batch['x'], 5, 'd'), is_training, name='norm')
  return then(dense(x, 4, 'o'), batch['y'])


def normed_by_kernels(batch, is_training, then=ce):
  images = tf.reshape(dense(batch['x'], 6, 'd'), [-1, 1, 2, 3])
  x = batch_norm(tf.nn.relu(batch_norm(images, is_training, name='one')), is_training, name='two')
  return then(dense(tf.reshape(x, [-1, 6]), 4, 'o'), batch['y'])


def normed_by_hand(batch, is_training, then=ce):
  del is_training
  x = dense(batch['x'], 5, 'd')
  mean, variance = tf.nn.moments(x, [0])
  for name, moment in (('moving_mean', mean), ('moving_variance', variance)):
    kept = tf.get_variable(name, [5], trainable=False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, kept.assign(0.9 * kept + 0.1 * moment))
  return then(dense((x - mean) * tf.rsqrt(variance + 1e-3), 4, 'o'), batch['y'])


def contrast(logits, labels):
  return ce(tf.matmul(logits, logits, transpose_b=True), tf.range(tf.shape(labels)[0]))


def xy(n=22, **others):
  return lambda: towers.from_arrays(dict(x=small.random_examples(n).arrays[0][:, :5],
                                         y=small.random_examples(n).arrays[1], **others))


@pytest.mark.nightly(but=['2-False-normed-sync-ce', '1-True-normed_by_kernels-mean-contrast',
                          '1-False-normed_by_hand-first-ce'])
@pytest.mark.parametrize('then', [ce, contrast])
@pytest.mark.parametrize('layer, batch_norm', [
    (normed, 'first'), (normed, 'sync'), (normed_by_kernels, 'mean'), (normed_by_kernels, 'sync'),
    (normed_by_hand, 'first')])
@pytest.mark.parametrize('switched', [False, True])
@pytest.mark.parametrize('accumulate', [1, 2])
def test_batch_normalisation_is_not_named_and_what_follows_is(layer, batch_norm, then, switched,
                                                              accumulate, caplog):
  named = judge(lambda batch, is_training: layer(batch, is_training, then), xy(), caplog,
                batch_norm=batch_norm, validation=xy()() if switched else None,
                batch_size=14 * accumulate, accumulate=accumulate)
  assert len(named) == (then is contrast)
  assert all('mixed by tower_0/MatMul' in text and 'tests/checks/test_law.py' in text
             for text in named), named


@pytest.mark.parametrize('last_batch', ['keep', 'drop'])
@pytest.mark.parametrize('then', [ce, contrast])
def test_a_net_whose_layers_fill_memory_is_judged_on_few_rows(then, last_batch, caplog,
                                                              monkeypatch):
  monkeypatch.setattr(fed_tower, '_MOST_BYTES', 0)
  monkeypatch.setattr(fed_tower, '_FEWEST_ROWS', 3)
  sizes, run = set(), fed_tower.FedTower.run
  monkeypatch.setattr(fed_tower.FedTower, 'run', lambda self, index, *rest, **shakes: (
      sizes.add(len(index)), run(self, index, *rest, **shakes))[1])
  named = judge(lambda batch, is_training: normed_by_kernels(batch, is_training, then), xy(),
                caplog, last_batch=last_batch)
  assert len(named) == (then is contrast)
  assert sizes <= {3, 6} and 3 in sizes


def test_a_draw_of_as_many_entries_as_there_are_rows_leaves_the_scale_out(caplog, capfd):
  def model(batch, is_training):
    x = tf.image.random_crop(batch['x'], [tf.shape(batch['y'])[0], 5])  # It draws two zeros.
    return ce(dense(x, 4, 'o'), batch['y'])

  assert judge(model, xy(6), caplog, batch_size=4) == []
  assert 'cannot be called on other rows' in ''.join(capfd.readouterr())


def counting(batch, is_training):
  # A function of numpy per example, a mean loss, and an update that no example has a part in.
  [cosines] = tf.py_func(lambda x: [np.cos(x)], [batch['x']], [tf.float32])
  cosines.set_shape(batch['x'].shape)
  count = tf.get_variable('count', [], trainable=False, initializer=tf.zeros_initializer())
  tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, count.assign_add(1.0))
  return tf.reduce_mean(ce(dense(cosines, 4, 'o'), batch['y']))


@pytest.mark.parametrize('settings', [
    dict(accumulate=2), dict(accumulate=2, last_batch='pad')], ids=['full', 'padded'])
def test_what_a_step_keeps_beside_an_update_is_no_part_of_the_model(settings, caplog):
  assert not judge(counting, xy(32), caplog, batch_size=16, **settings)


@pytest.mark.nightly(but=['sum-22', 'divided twice-28'])
@pytest.mark.parametrize('size', [22, 28])  # 28: batches of one static size.
@pytest.mark.parametrize('model', [
    lambda b, _: tf.reduce_sum(ce(dense(b['x'], 4, 'd'), b['y'])),
    lambda b, _: ce(dense(b['x'], 4, 'd'), b['y']) / tf.cast(tf.shape(b['x'])[0], tf.float32),
    lambda b, _: tf.reduce_sum(tf.map_fn(tf.reduce_sum, dense(tf.nn.dropout(b['x'], rate=0.5),
                                                              4, 'd')))],
    ids=['sum', 'divided twice', 'behind a loop'])
def test_a_sum_where_a_mean_belongs_is_refused(model, size, caplog):
  with pytest.raises(towers.UsageError, match='s loss is no mean over the examples.*twice as many'):
    judge(model, xy(size), caplog)
  judge(model, xy(size), caplog, num_towers=1)


def drawing(batch, is_training):
  x = dense(batch['x'], 5, 'first') * tf.random.uniform(tf.shape(batch['x']), 0.5, 1.5)
  x = tf.layers.dropout(x, 0.4, training=is_training) if IS_TF1 else tf.nn.dropout(x, rate=0.4)
  return normed(dict(batch, x=x), is_training)


def elements(n=22):
  arrays = xy(n)().arrays
  return towers.Examples(n, lambda x, y: tf.data.Dataset.from_tensor_slices(dict(x=x, y=y)),
                         arrays=arrays)


@pytest.mark.parametrize('mode, depth, batch_norm, data', [
    # Batches of one static size, for which the model is called beside.
    ('next', 0, 'sync', xy(24)),
    pytest.param('split', 1, 'first', xy(), marks=pytest.mark.nightly),
    pytest.param('shard', 2, 'first', elements, marks=pytest.mark.nightly),
    pytest.param('split', 0, 'first', elements, marks=pytest.mark.nightly),
    pytest.param('next', 2, 'first', xy(), marks=pytest.mark.nightly),
    pytest.param('shard', 1, 'sync', xy(), marks=pytest.mark.nightly)])
def test_a_run_does_not_notice(mode, depth, batch_norm, data, monkeypatch):
  def run():
    with tf.Graph().as_default():
      program = towers.Program(drawing, train=data(), validation=data(), optimizer=sgd(),
                               batch_size=8, num_towers=2, input_mode=mode, staging_depth=depth,
                               batch_norm=batch_norm, device='cpu', seed=3)
      with program.session() as session:
        losses = [session.train() for _ in range(5)]
        values = session.run(tf.global_variables() + tf.local_variables())
      if steps.has_parts(program):
        assert not program.towers[0].call_beside.cache_info().currsize
      return [losses, len(program.graph.get_operations()), *values]

  measured = run()
  monkeypatch.setattr(steps, 'has_parts', lambda program: False)
  for ours, expected in zip(measured, run()):
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize('batch_norm', ['sync', pytest.param('first', marks=pytest.mark.nightly)])
def test_two_workers_do_not_notice_and_are_judged_too(batch_norm, monkeypatch, caplog):
  def run(model):
    with InProcessCluster(num_workers=2, num_towers=1, batch_norm=batch_norm,
                          model=lambda batch, is_training: model(
                              dict(x=batch[0], y=batch[1]), is_training)) as cluster:
      losses = [cluster.train() for _ in range(4)]
      return losses, cluster.each(lambda run: run.weights())

  measured = run(drawing)
  assert not [record for record in caplog.records if '2 parts' in record.getMessage()]
  run(lambda batch, is_training: normed(batch, is_training, contrast))
  assert [record.getMessage() for record in caplog.records if '2 parts' in record.getMessage()]
  monkeypatch.setattr(steps, 'has_parts', lambda program: False)
  losses, weights = run(drawing)
  assert losses == measured[0]
  for ours, expected in zip(weights, measured[1]):
    assert all(np.array_equal(ours[name], expected[name]) for name in expected)


@pytest.mark.parametrize('low', [0, 0.995])  # The latter is less than single values are rounded.
def test_a_mean_by_a_mask_is_named_though_both_halves_of_a_batch_have_as_many(low, caplog):
  def model(batch, is_training):
    losses = ce(dense(batch['x'], 4, 'd'), batch['y'])
    return tf.reduce_sum(losses * batch['mask']) / tf.reduce_sum(batch['mask'])

  mask = np.tile(np.float32([1, low, 1, low, low, 1, 1]), 4)
  [message] = judge(model, xy(28, mask=mask), caplog, shuffle=False)
  assert 'first mixed by tower_0/truediv' in message


def on_12_rows(batch, is_training):
  del is_training
  return tf.reduce_sum(ce(tf.reshape(dense(batch['x'], 4, 'd'), [12, 4]), batch['y']))


@pytest.mark.parametrize('limits, model, data, reason', [
    (dict(_LONG_SECONDS=0.0), ZOO['softmax_over_batch'].model, ZOO['softmax_over_batch'].data,
     '4 more forward runs'),
    (dict(_OP_SECONDS=1.0), lambda batch, is_training: tf.reduce_mean(normed(batch, is_training)),
     xy(28), 'calling the model once more'),
    (dict(_OP_SECONDS=1.0), normed, xy(28), None),  # Losses of examples are no mean of a batch.
    ({}, on_12_rows, xy(24), 'the model cannot be called on other rows')],
                         ids=['runs', 'call', 'call for losses', 'literal'])
def test_what_is_not_measured_is_told(limits, model, data, reason, monkeypatch, caplog, capsys):
  calls = []

  def counted(batch, is_training):
    calls.append(batch)
    return model(batch, is_training)

  for name, limit in limits.items():
    monkeypatch.setattr(law, name, limit)
  assert not judge(counted, data, caplog, batch_size=24 if model is on_12_rows else 14)
  told = capsys.readouterr().out
  assert f'was not measured, since {reason}' in told if reason else 'not measured' not in told
  assert len(calls) == 2 + (model is on_12_rows)
