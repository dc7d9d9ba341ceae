"""The coupling check: what couples examples is named or refused before the first step, no more."""

import functools
import logging
import re

import numpy as np
import pytest

import towers
from tests.coupling.zoo import ZOO
from tests.coupling.zoo.parts import ce, dense
from tests.harness import small
from tests.harness.in_process_cluster import InProcessCluster
from towers.coupling import check, fed_towers
from towers.session import engine
from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import batch_norm

IS_TF1 = tf.__version__.startswith('1.')
# The course that its loop takes on this batch is that of all its parts, where these are two.
SILENT = {('while_until_batch_converges', 2)}
# There is no second derivative on 1.14, and no batch before the first step.
RAISE = {'maml_inner_step': tf.errors.OpError if not IS_TF1 else LookupError,
         'variable_from_batch': towers.UsageError}


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
def test_what_couples_examples_is_named_and_nothing_else(name, settings, caplog, capfd):
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
  is_silent = (name, settings.get('num_towers', 2)) in SILENT
  assert len(named) == (case.kind == 'coupled' and not is_silent), named
  assert 'fails on a few rows' not in ''.join(capfd.readouterr())


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
  features, labels = small.random_examples(n).arrays
  return lambda: towers.from_arrays(dict(dict(x=features[:, :5], y=labels), **others))


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
  assert all('mixed by tower_0/MatMul' in text and 'tests/coupling/test_check.py' in text
             for text in named), named


def spy(monkeypatch):
  """Returns a list of the shares that towers are fed with from now on, by tower and their rows."""
  shares, feed = [], fed_towers.FedTowers._feed
  monkeypatch.setattr(fed_towers.FedTowers, '_feed', lambda self, share, total: (
      shares.append((share.tower, len(share.rows))), feed(self, share, total))[1])
  return shares


@pytest.mark.parametrize('then', [ce, pytest.param(contrast, marks=pytest.mark.nightly)])
@pytest.mark.parametrize('num_towers, batch_size, most', [(2, 32, 9), (8, 96, 12), (8, 24, 12)])
def test_no_tower_needs_more_rows_than_a_few_or_a_step_has(num_towers, batch_size, most, then,
                                                           caplog, monkeypatch):
  shares = spy(monkeypatch)
  try:
    named = judge(lambda batch, is_training: normed_by_kernels(batch, is_training, then),
                  xy(batch_size + 1), caplog, batch_size=batch_size, num_towers=num_towers)
  except towers.UsageError:  # Such a loss grows otherwise than the number of examples.
    named = [contrast]
  assert len(named) == (then is contrast)
  assert max(rows for _, rows in shares) == most
  assert max(rows for tower, rows in shares if tower) <= 5


@pytest.mark.parametrize('limits', [{}, dict(last_batch='drop')], ids=['keep', 'drop'])
def test_a_tower_that_computes_otherwise_is_found(limits, caplog):
  with tf.Graph().as_default():
    program = towers.Program(normed, train=xy(23)(), optimizer=sgd(), batch_size=14, num_towers=2,
                             variables='replicated', batch_norm='sync', device='cpu', **limits)
    with program.session() as session:
      rows = program.feed.start(session.tf_session, peeks=True)
      arguments = dict(num_parts=2, rows=rows, session=session.tf_session)
      assert not check.find_coupling(program.towers, **arguments)
      replica = next(variable for variable in program.towers[1].variables
                     if variable.op.name.endswith('o/w'))
      replica.load(session.run(replica) * 1.1, session.tf_session)
      [message] = check.find_coupling(program.towers, **arguments)
      assert 'tower_0/' in message


def test_a_draw_of_as_many_entries_as_there_are_rows_is_no_draw_by_rows(caplog, capfd):
  def model(batch, is_training):
    x = tf.image.random_crop(batch['x'], [tf.shape(batch['y'])[0], 5])  # It draws two zeros.
    return ce(dense(x, 4, 'o'), batch['y'])

  assert judge(model, xy(6), caplog, batch_size=4) == []
  assert 'not measured' not in ''.join(capfd.readouterr())


def test_draws_outside_of_the_scope_of_a_tower_are_measured_where_blocks_begin(caplog):
  def model(batch, is_training):
    with tf.name_scope('outside/'):
      x = tf.nn.dropout(batch['x'], rate=0.3)
    return ce(dense(x, 4, 'o'), batch['y'])

  assert judge(model, xy(24), caplog, num_towers=1, batch_size=8, accumulate=2) == []


@pytest.mark.parametrize('batch_size, num_towers', small.nightly_but(
    [(14, 3)], [(13, 3), (14, 3), (14, 4), (15, 3), (15, 2)]))
def test_rows_of_all_towers_are_measured_whatever_the_shares(batch_size, num_towers, caplog, capfd):
  def model(batch, is_training):
    x = dense(batch['x'], 4, 'o')
    return tf.reduce_mean(tf.squared_difference(x[:, None], towers.all_rows(x)[None]), [1, 2])

  assert judge(model, xy(60), caplog, batch_size=batch_size, num_towers=num_towers) == []
  assert 'not measured' not in ''.join(capfd.readouterr())


@pytest.mark.parametrize('has_places', [False, True], ids=['own', 'all'])
def test_labels_among_the_rows_of_all_towers_are_their_places(has_places, caplog):
  def model(batch, is_training):
    keys, places = towers.all_rows(dense(batch['x'], 4, 'k'), with_places=True)
    labels = places if has_places else tf.range(tf.shape(batch['x'])[0])
    return ce(tf.matmul(dense(batch['x'], 4, 'o'), keys, transpose_b=True), labels)

  messages = judge(model, xy(28), caplog)
  assert ['with_places=True' in message for message in messages] == [True] * (not has_places)


@pytest.mark.parametrize('size', [22, pytest.param(28, marks=pytest.mark.nightly)])
def test_a_draw_that_does_not_go_by_the_place_of_a_row_is_named(size, caplog, monkeypatch):
  feed = fed_towers.FedTowers._feed

  def at_the_first_place(self, share, total):
    fed = feed(self, share, total)
    fed[self.towers[share.tower].batch.row_offset.first] = 0
    return fed

  assert judge(drawing, xy(size), caplog, batch_norm='sync') == []
  monkeypatch.setattr(fed_towers.FedTowers, '_feed', at_the_first_place)
  [message] = judge(drawing, xy(size), caplog, batch_norm='sync')
  assert 'draws for an example does not follow from its place' in message
  assert 'tests/coupling/test_check.py' in message


def test_a_draw_of_rows_that_are_not_found_is_left_out(caplog, capfd):
  def model(batch, is_training):
    num_rows = tf.shape(batch['x'])[0]
    noise = dense(tf.random.normal([3 * num_rows, 5]), 5, 'n')[:num_rows]
    return ce(dense(batch['x'] + noise, 4, 'o'), batch['y'])

  assert judge(model, xy(22), caplog) == []
  assert 'the rows of what tower_0/random_normal/' in ''.join(capfd.readouterr())


def test_a_sum_over_what_is_drawn_by_rows_is_named_and_not_the_draw(caplog):
  def model(batch, is_training):
    losses = ce(dense(batch['x'], 4, 'o'), batch['y'])
    mask = tf.cast(tf.random_uniform(tf.shape(losses)) < 0.5, tf.float32)
    return tf.reduce_sum(mask * losses) / tf.maximum(tf.reduce_sum(mask), 1.0)

  [message] = judge(model, xy(22), caplog, batch_size=14)
  assert 'first mixed by tower_0/truediv' in message


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


def add_size(count, batch):
  return count.assign_add(tf.fill([8], tf.cast(tf.shape(batch['x'])[0], tf.float32)))


def put_rows(count, batch):  # At a tensor of the batch as it is.
  return tf.scatter_update(count, batch['y'], tf.zeros_like(batch['x'][:, 0]))


@pytest.mark.parametrize('settings', small.nightly_but(
    [dict(num_towers=2)], [dict(num_towers=2), dict(num_towers=1, accumulate=2)]), ids=str)
@pytest.mark.parametrize('size', [22, 28])  # 28: batches of one static size.
@pytest.mark.parametrize('update', [add_size, put_rows])
def test_an_update_by_the_number_of_examples_is_named(update, size, settings, caplog, capsys):
  def model(batch, is_training):
    count = tf.get_variable('count', [8], trainable=False, initializer=tf.zeros_initializer())
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update(count, batch))
    return ce(dense(batch['x'], 4, 'd'), batch['y'])

  [message] = judge(model, xy(size), caplog, **{**dict(batch_size=14), **settings})
  assert 'The variable count is changed by the examples' in message
  assert 'not measured' not in capsys.readouterr().out


@pytest.mark.nightly(but=['sum-22', 'divided twice-28'])
@pytest.mark.parametrize('size', [22, 28])  # 28: batches of one static size.
@pytest.mark.parametrize('model', [
    lambda b, _: tf.reduce_sum(ce(dense(b['x'], 4, 'd'), b['y'])),
    lambda b, _: ce(dense(b['x'], 4, 'd'), b['y']) / tf.cast(tf.shape(b['x'])[0], tf.float32),
    lambda b, _: tf.reduce_sum(tf.map_fn(tf.reduce_sum, dense(tf.nn.dropout(b['x'], rate=0.5),
                                                              4, 'd')))],
    ids=['sum', 'divided twice', 'behind a loop'])
def test_a_sum_where_a_mean_belongs_is_refused(model, size, caplog):
  with pytest.raises(towers.UsageError, match=(
      's loss, tower_0/.*, made in tests/coupling/test_check.py, line .*, is no mean over'
      '.* a step in 2 parts')):
    judge(model, xy(size), caplog)
  judge(model, xy(size), caplog, num_towers=1)


@pytest.mark.parametrize('settings', small.nightly_but(
    [dict(batch_size=19, num_towers=3), dict(batch_size=15, last_batch='drop')],
    [dict(batch_size=13), dict(batch_size=19, num_towers=3), dict(batch_size=39),
     dict(batch_size=15, last_batch='drop'), dict(batch_size=12), dict(batch_size=15),
     dict(batch_size=26, accumulate=2, last_batch='drop')]), ids=str)
@pytest.mark.parametrize('model, line', [
    (lambda b, _: tf.reduce_sum(ce(dense(b['x'], 4, 'd'), b['y'])), 'Sum'),
    (lambda b, _: 0.1 * tf.reduce_sum(ce(dense(b['x'], 4, 'd'), b['y'])), 'mul'),
    (lambda b, _: tf.reduce_sum(tf.cast(ce(dense(b['x'], 4, 'd'), b['y']), tf.float64)), 'Sum'),
    (lambda b, _: ce(dense(b['x'], 4, 'd'), b['y']) / tf.cast(tf.shape(b['x'])[0], tf.float32),
     'truediv'),
    (lambda b, _: tf.reduce_mean(ce(dense(b['x'], 4, 'd'), b['y'])), None),
    (lambda b, _: tf.reduce_mean(ce(tf.matmul(b['x'], tf.Variable(tf.random_normal(
        [*b['x'].shape.as_list()[1:], 4]))), b['y'])), None),
    (lambda b, _: ce(dense(b['x'], 4, 'd'), b['y']), None)],
    ids=['sum', 'a share of a sum', 'float64', 'divided twice', 'mean', 'mean by tf.Variable',
         'per example'])
def test_a_sum_is_refused_with_its_line_whatever_the_shares(model, line, settings, caplog):
  if line is None:
    assert not judge(model, xy(39), caplog, **settings)
    return
  with pytest.raises(towers.UsageError, match=(
      f's loss, tower_0/{line}, made in tests/coupling/test_check.py, line .*, is no mean over')):
    judge(model, xy(39), caplog, **settings)


def weighted(losses):
  return towers.Weighted(losses, 1 + tf.ones_like(losses))


@pytest.mark.parametrize('returned, is_told', [
    (lambda losses: losses, False), (lambda losses: [losses, losses], False),
    (lambda losses: [weighted(losses), losses], False),
    (lambda losses: [weighted(losses), tf.reduce_mean(losses)], True)],
    ids=['one', 'two', 'weighted', 'a mean'])
def test_losses_by_example_need_no_call_on_other_sizes(returned, is_told, caplog, capsys):
  def model(batch, is_training):
    return returned(ce(tf.reshape(dense(batch['x'], 4, 'd'), [7, 4]), batch['y']))

  assert not judge(model, xy(28), caplog, last_batch='drop')
  assert ('needs no other call' in ''.join(capsys.readouterr())) == is_told


def by_size(batch, take=lambda rows: rows):
  rows = tf.cast(take(tf.shape(batch['x'])[0]), tf.float32)
  return ce(dense(batch['x'], 4, 'd') / tf.sqrt(rows), batch['y'])


def by_number(batch):
  return ce(dense(batch['x'], 4, 'd') / batch['x'].shape.as_list()[0], batch['y'])


@pytest.mark.parametrize('settings', [dict(num_towers=2), dict(num_towers=1, accumulate=2)],
                         ids=str)
@pytest.mark.parametrize('losses', [
    by_size, functools.partial(by_size, take=lambda rows: rows // 2),
    functools.partial(by_size, take=lambda rows: rows - 1), by_number],
    ids=['size', 'half of it', 'less one', 'number'])
def test_losses_by_example_that_take_a_static_size_are_measured_on_others(
    losses, settings, monkeypatch, caplog):
  monkeypatch.setattr(check, '_SHORT_SECONDS', 0.0)
  assert judge(lambda batch, is_training: losses(batch), xy(28), caplog, **settings)


def test_a_function_of_python_that_draws_is_told_from_rounding(caplog, capsys):
  def model(batch, is_training):
    del is_training
    losses = ce(dense(batch['x'], 4, 'd'), batch['y'])
    noise = tf.py_func(lambda x: np.random.uniform(0.5, 1.5, len(x)), [batch['x']], tf.float64)
    return losses * tf.cast(tf.reshape(noise, tf.shape(losses)), tf.float32)

  assert not judge(model, xy(), caplog)
  assert re.search('makes other values of the same examples and draws, as tower_0/PyFunc, made in '
                   r'tests/coupling/test_check.py, line \d+ may;', ''.join(capsys.readouterr()))


def test_sums_of_micro_batches_are_no_updates_of_the_model(caplog, capsys):
  def model(batch, is_training):
    x = batch_norm(dense(batch['x'], 4, 'h'), is_training, name='norm')
    return ce(dense(x, 4, 'd'), batch['y'])

  assert not judge(model, xy(16), caplog, num_towers=3, batch_size=8, accumulate=2)
  assert 'not measured' not in ''.join(capsys.readouterr())


@pytest.mark.parametrize('size', small.nightly_but([22], [22, 28]))
def test_kernels_of_moments_in_a_loop_over_examples_are_measured_as_they_are(
    size, caplog, capsys):
  def model(batch, is_training):
    x = tf.reshape(dense(batch['x'], 12, 'h'), [-1, 3, 1, 1, 4])
    scale = tf.get_variable('scale', [4], initializer=tf.ones_initializer())
    x = tf.map_fn(lambda pictures: tf.nn.fused_batch_norm(pictures, scale, 0 * scale)[0], x)
    return ce(dense(tf.reshape(x, [-1, 12]), 4, 'd'), batch['y'])

  assert not judge(model, xy(size), caplog, batch_size=14)
  assert 'not measured' not in ''.join(capsys.readouterr())


def test_a_gradient_that_is_mixed_before_joined_moments_is_named(caplog):
  @tf.custom_gradient
  def unit(x):
    return tf.identity(x), lambda gradient: gradient / (tf.norm(gradient) + 1e-6)

  [message] = judge(lambda batch, is_training: ce(batch_norm(
      unit(dense(batch['x'], 4, 'd')), is_training, name='norm'), batch['y']), xy(), caplog,
                    batch_norm='sync')
  assert message.startswith('The gradient of d/')
  assert 'norm/Sqrt, in the gradient of tower_0/IdentityN, made in tests' in message


def test_gradients_that_are_mixed_where_they_add_up_are_named_by_a_line_of_the_model(caplog):
  def model(batch, is_training):
    del is_training
    x = dense(batch['x'], 4, 'd')
    mean = tf.reduce_mean(x, 0)
    return ce(x + tf.stop_gradient(mean) - mean, batch['y'])

  [message] = judge(model, xy(), caplog, last_batch='drop')
  assert message.startswith('The gradient of d/')
  assert 'in the gradient of tower_0/Mean, made in tests/coupling/test_check.py' in message


@pytest.mark.parametrize('shaken, first_seed, is_named', [
    (['turning', 'other'], 0, False), (['turning'], 0, False), (['other'], 3, False),
    ([], 0, True)], ids=['both', 'one', 'later', 'none'])
def test_gradients_that_jump_where_rounding_turns_a_relu_are_told_from_mixed_ones(
    shaken, first_seed, is_named, caplog, monkeypatch):
  def model(batch, is_training):
    losses, ones = ce(dense(batch['x'], 4, 'o'), batch['y']), tf.ones_like(batch['x'][:, :1])
    for name in ('turning', 'other'):
      rows = ones * tf.get_variable(name, [200], initializer=tf.random_normal_initializer())
      mean = towers.all_sum(tf.reduce_sum(rows, 0)) / towers.all_sum(tf.reduce_sum(ones))
      turned = tf.nn.relu(rows - tf.stop_gradient(mean))  # Of 0, but for rounding.
      losses += tf.reduce_sum(turned, 1)
    return losses

  # By luck the last bits of some weights turn none: those of others, and other bits, count too.
  shake = fed_towers.FedTowers.shake
  monkeypatch.setattr(fed_towers.FedTowers, 'shake', lambda self, side, seed: {
      read: value for read, value in shake(self, side, seed).items()
      if read.op.inputs[0].op.name in shaken and seed >= first_seed})
  assert ['The gradient of' in text for text in judge(model, xy(), caplog)] == [True] * is_named


def test_what_is_mixed_is_named_though_rounding_decides_on_what_follows(caplog, capsys):
  def model(batch, is_training, is_centred=True):
    x = dense(batch['x'], 4, 'd')
    return ce(tf.sin(1e7 * (x - tf.reduce_mean(x, 0) if is_centred else x)), batch['y'])

  [message] = judge(model, xy(), caplog)
  assert 'first mixed by tower_0/sub, made in tests/coupling/test_check.py' in message


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
      return [losses, len(program.graph.get_operations()), *values]

  measured = run()
  monkeypatch.setattr(engine, 'has_parts', lambda program: False)
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

  def shown(batch, is_training):
    tf.summary.scalar('sum', towers.all_sum(tf.reduce_sum(dense(batch['x'], 4, 'seen'))))
    return drawing(batch, is_training)

  measured = run(drawing)
  assert run(shown)[0] == measured[0]
  assert not [record for record in caplog.records if '2 parts' in record.getMessage()]
  run(lambda batch, is_training: normed(batch, is_training, contrast))
  assert [record.getMessage() for record in caplog.records if '2 parts' in record.getMessage()]
  monkeypatch.setattr(engine, 'has_parts', lambda program: False)
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


def numbered(batch, is_training, then=tf.reduce_mean):
  # Rows of a size that the model takes as a number, out of the shape of its batch.
  rows = tf.reshape(dense(batch['x'], 4, 'd'), [batch['x'].shape.as_list()[0], 4])
  return then(ce(tf.nn.dropout(rows, rate=0.3), batch['y']))


def collected(batch, is_training, then=tf.reduce_mean):
  tf.losses.add_loss(then(ce(dense(batch['x'], 4, 'd'), batch['y'])))
  return tf.losses.get_total_loss()  # Of all calls of the model in its graph.


@pytest.mark.parametrize('net, settings', [
    (numbered, dict(num_towers=2)), (numbered, dict(accumulate=2)), (collected, dict(accumulate=2)),
    pytest.param(numbered, dict(num_towers=4, last_batch='drop', batch_norm='sync'),
                 marks=pytest.mark.nightly)])
def test_a_net_that_takes_its_size_from_a_static_batch_is_measured(net, settings, caplog, capsys):
  settings = {**dict(num_towers=1, batch_size=28), **settings}
  assert not judge(net, xy(28), caplog, **settings)
  assert 'not measured' not in capsys.readouterr().out
  with pytest.raises(towers.UsageError, match='test_check.py, line .*, is no mean over'):
    judge(lambda *batch: net(*batch, then=tf.reduce_sum), xy(28), caplog, **settings)


@pytest.mark.parametrize('limits, model, data, reason', [
    (dict(_LONG_SECONDS=0.0), ZOO['gradient_reversal'].model, ZOO['gradient_reversal'].data,
     'a run more'),
    # Of an epoch so long that a share of it is more than what the preparation took.
    (dict(_LONG_SECONDS=0.0, _LONG_SHARE=1e9), normed, xy(), None),
    (dict(_OP_SECONDS=1.0), lambda batch, is_training: tf.reduce_mean(normed(batch, is_training)),
     xy(28), 'calling the model twice more'),
    (dict(_OP_SECONDS=1.0), normed, xy(28), None),  # Losses of examples are no mean of a batch.
    ({}, on_12_rows, xy(24), 'Whether the loss is their mean'),
    ({}, lambda b, _: tf.nn.relu(dense(b['x'], 1, 'd')[:, 0] - 99), xy(), 'that were tried is 0')],
                         ids=['runs', 'long epoch', 'call', 'call for losses', 'literal', '0'])
def test_what_is_not_measured_is_told(limits, model, data, reason, monkeypatch, caplog, capsys):
  calls = []

  def counted(batch, is_training):
    calls.append(batch)
    return model(batch, is_training)

  for name, limit in limits.items():
    monkeypatch.setattr(check if hasattr(check, name) else fed_towers, name, limit)
  assert not judge(counted, data, caplog, batch_size=24 if model is on_12_rows else 14)
  told = capsys.readouterr().out
  assert ('not measured' in told) == (reason is not None) and (reason or '') in told
  assert len(calls) == 2 + (model is on_12_rows)


@pytest.mark.parametrize('columns, rate', [
    (slice(0, 4), 0.8), (slice(1, 2), 0.9)])  # Of the latter, first rows of both towers keep all.
def test_what_is_mixed_by_draws_alone_is_named_on_towers_of_one_block(columns, rate, monkeypatch,
                                                                      caplog):
  def model(batch, is_training):
    h = dense(batch['x'], 4, 'h')
    kept = tf.cast(tf.random.uniform(tf.shape(h))[:, columns] < rate, tf.float32)
    return ce(h * kept / tf.reduce_mean(kept), batch['y'])

  monkeypatch.setattr(check, '_OP_SECONDS', 1.0)  # Batches of one static size are exchanged alone.
  [message] = judge(model, xy(16), caplog, batch_size=8)
  assert 'first mixed by tower_0/truediv, made in tests/coupling/test_check.py, line' in message


@pytest.mark.parametrize('num_towers', [1, 3])
def test_a_division_by_the_rows_of_a_padded_batch_is_refused(num_towers, caplog):
  def model(batch, is_training, divides=True):
    losses = ce(dense(batch['x'], 4, 'd'), batch['y'])
    return losses / tf.cast(tf.shape(losses)[0], tf.float32) if divides else losses

  settings = dict(batch_size=8, num_towers=num_towers, last_batch='pad')
  assert not judge(lambda *batch: model(*batch, divides=False), xy(), caplog, **settings)
  if num_towers == 1:
    return
  with pytest.raises(towers.UsageError, match='truediv, made in .*, line .*, is no mean over the'):
    judge(model, xy(), caplog, **settings)


PARTS = [dict(input_mode='shard'), dict(accumulate=2), dict(input_mode='next'),
         dict(input_mode='shard', num_towers=1)]


@pytest.mark.parametrize('counts', ['padded', 'real', 'fixed'])
@pytest.mark.parametrize('settings', PARTS, ids=str)
def test_padding_that_counts_is_named_where_parts_pad_to_sizes_of_their_own(
    settings, counts, caplog):
  def model(batch, is_training):
    x, y = batch
    weights = tf.cast(tf.not_equal(x[:, :, :1], -1), tf.float32)
    x = tf.layers.dense(x, 4, tf.tanh, name='d')
    return ce(tf.reduce_mean(x, 1) if counts == 'padded' else
              tf.reduce_sum(weights * x, 1) / tf.reduce_sum(weights, 1), y)

  def data():
    random = np.random.RandomState(0)
    sentences = [random.rand(size, 3).astype(np.float32) for size in random.randint(2, 9, 28)]
    return towers.padded(towers.from_arrays(sentences, np.arange(28, dtype=np.int32) % 4),
                         20 if counts == 'fixed' else 'batch', values=(-1.0, None))

  found = judge(model, data, caplog, **settings)
  is_named = counts == 'padded' and settings in PARTS[:2]
  assert [message[:26] for message in found] == ["pad_to='batch' pads each of"[:26]] * is_named


def test_rows_that_fill_a_batch_up_and_change_the_loss_are_refused(caplog):
  def model(batch, is_training):
    return ce(tf.nn.softmax(dense(batch['x'], 4, 'd'), axis=0), batch['y'])

  with pytest.raises(towers.UsageError, match='depends on them.*first mixed by tower_0/Softmax'):
    judge(model, xy(), caplog, num_towers=1, last_batch='pad')


@pytest.mark.parametrize('num_towers, has_tower', [(3, False), (3, True), (1, False)])
@pytest.mark.parametrize('num_validation, of_rows', [(13, False), (13, True), (24, False)])
def test_rows_that_fill_validation_up_and_change_it_are_named(
    num_validation, of_rows, num_towers, has_tower, caplog):
  def model(batch, is_training):
    x = dense(batch['x'], 4, 'd')
    if num_towers == 1 and is_training:  # It decides in Python.
      x *= 2
    rows = towers.all_rows(x) if of_rows else x
    join = (lambda x: x) if of_rows else towers.all_sum
    total, count = join(tf.reduce_sum(rows, 0)), join(tf.cast(tf.shape(rows)[0], tf.float32))
    return ce(x - total / count, batch['y'])

  judge(model, xy(), caplog, num_towers=num_towers, last_batch='carry', batch_size=12,
        validation_tower=has_tower, validation=xy(num_validation)())
  told = [record.getMessage() for record in caplog.records]
  assert [text for text in told if 'of validation up' in text] == told
  assert bool(told) == (num_validation == 13 and not of_rows)


@pytest.mark.parametrize('size', small.nightly_but([22], [22, 28]))  # 28: of one static size.
def test_shapes_that_broadcast_to_pairs_are_named(size, caplog):
  def model(batch, is_training, then=tf.reduce_mean):
    return then(tf.square(dense(batch['x'], 1, 'd') - tf.cast(batch['y'], tf.float32)))

  [message] = judge(model, xy(size), caplog)
  n = 7 if size == 28 else '?'
  assert f'which broadcasts the shapes [{n}, 1] and [{n}] to [{n}, {n}]: unless' in message
  assert 'mixed by tower_0/sub, made in tests/coupling/test_check.py' in message
  with pytest.raises(towers.UsageError, match=r'broadcast to \[batch, batch\], take x\[:, 0\]'):
    judge(lambda *batch: model(*batch, then=tf.identity), xy(size), caplog)


def test_a_penalty_of_examples_is_named_with_its_fix(caplog):
  def model(batch, is_training):
    x = dense(batch['x'], 4, 'd')
    penalty = 0.01 * tf.reduce_mean(tf.norm(x, axis=1))
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, penalty)
    return ce(x, batch['y'])

  [message] = judge(model, xy(), caplog)
  assert 'The penalty tower_0/mul, made in tests' in message and 'return it as a loss' in message
  assert 'The gradient' not in message


@pytest.mark.parametrize('size, op', [
    (22, 'Reshape'), (22, 'SparseSoftmax'), (28, 'SparseSoftmax')])
def test_a_batch_size_in_the_model_is_told_before_a_smaller_batch_fails(size, op, caplog, capsys):
  def model(batch, is_training):
    logits = dense(batch['x'], 4, 'd')
    if op == 'Reshape':
      return tf.reduce_mean(ce(tf.reshape(logits, [7, 4]), batch['y']))
    return ce(logits, batch['y'] + 4)  # No such classes.

  judge(model, xy(size), caplog)
  told = capsys.readouterr().out
  assert f'fails on a few rows of its first batch, in tower_0/{op}' in told
  assert ('last_batch=drop, carry or pad' in told) == (op == 'Reshape')


@pytest.mark.nightly(but=['mean-0-28', 'mean-123-28', 'each-0-28'])
@pytest.mark.parametrize('size', [22, 28])
@pytest.mark.parametrize('kind, labels, message', [
    ('mean', '0', 'At 1 among others in component y: The model\'s (loss|rare)'),
    ('mean', '123', 'At 0 among others in component y: The model\'s (loss|rare)'),
    ('sum', '0', 'At 1 among others in component y: The model\'s rare, .* is no mean over'),
    ('each', '0', ''), ('each', '123', '')],
                         ids=['mean-0', 'mean-123', 'sum', 'each-0', 'each-123'])
def test_labels_that_the_first_batch_does_not_have_are_tried(kind, labels, message, size, caplog):
  def model(batch, is_training):
    losses = ce(dense(batch['x'], 4, 'd'), batch['y'])
    rare = tf.cast(batch['y'] > 0, tf.float32)
    return {'all': losses, 'rare': dict(
        mean=tf.reduce_sum(losses * rare) / tf.maximum(tf.reduce_sum(rare), 1.0),
        sum=tf.reduce_sum(losses * rare), each=losses * rare)[kind]}

  found = judge(model, xy(size, y=np.resize(np.int32(list(labels)), size)), caplog)
  assert len(found) == bool(message) and re.search(message, ''.join(found))


def test_no_length_of_0_is_tried(caplog):
  def model(batch, is_training):
    words, lengths = batch
    seen = tf.py_func(lambda values: least.append(values.min()) or values, [lengths], tf.int32)
    seen.set_shape([None])
    mask = tf.sequence_mask(seen, tf.shape(words)[1], dtype=tf.float32)
    return ce(dense(tf.reduce_sum(words * mask, 1, True), 4, 'd'), lengths % 4)

  lengths, least = np.random.RandomState(0).randint(2, 7, 22).astype(np.int32), []
  rows = [np.ones(length, np.float32) for length in lengths]
  assert not judge(model, lambda: towers.padded(towers.from_arrays(rows, lengths)), caplog)
  assert min(least) == 2


def sure_ones(b, is_training, whose=lambda own, sure: tf.reduce_sum(own) / tf.maximum(
    tf.reduce_sum(sure), 1.0)):
  z = dense(b['x'], 4, 'd')
  most = tf.reduce_max(tf.nn.softmax(z), 1)
  sure = tf.cast(most > 0.93, tf.float32)  # At first no row is.
  return ce(z, b['y']) + whose(sure * z[:, 0], sure)


def table_of_zeros(b, is_training):
  rows = tf.gather(tf.get_variable('table', [4, 3], initializer=tf.zeros_initializer()), b['y'])
  return ce(dense(b['x'], 4, 'd') + dense(rows, 4, 'e') * tf.reduce_mean(rows, 0)[:1], b['y'])


def full_experts(b, is_training):
  gate = tf.one_hot(tf.argmax(dense(b['x'], 2, 'g'), 1), 2)
  is_in = tf.reduce_sum(tf.cumsum(gate, 0) * gate, 1) < 6.5
  return ce(dense(b['x'], 4, 'd') * tf.cast(is_in, tf.float32)[:, None], b['y'])


def kept_by_mean_loss(b, is_training):
  z = dense(b['x'], 4, 'd')
  share = tf.stop_gradient(tf.exp(-tf.reduce_mean(ce(z, b['y']))))
  return ce(z * tf.cast(tf.random.uniform(tf.shape(z)) < share, tf.float32), b['y'])


def weighed_by_count(b, is_training):
  # As of users, of whom each has few examples.
  _, place, counts = tf.unique_with_counts(tf.cast(1e4 * b['x'][:, 0], tf.int32))
  return ce(dense(b['x'], 4, 'd'), b['y']) / tf.cast(tf.gather(counts, place), tf.float32)


def growing_sum(b, is_training):
  share = tf.minimum(tf.cast(tf.train.get_global_step(), tf.float32) / 20, 1)
  return tf.reduce_mean(ce(dense(b['x'], 4, 'd'), b['y'])) + share * tf.reduce_sum(
      ce(dense(b['x'], 4, 'e'), b['y']))


def cancelling(b, is_training):
  z = dense(tf.tile(b['x'][:, None], [1, 5, 1]) * tf.reshape(b['x'], [-1, 5, 1]), 3, 'd')
  gain = tf.stop_gradient(tf.reduce_sum(z, 2))
  mean, variance = tf.nn.moments(gain, [1], keepdims=True)
  p = tf.nn.log_softmax(z)[:, :, 0]
  return tf.reduce_mean(
      tf.exp(p - tf.stop_gradient(p)) * (gain - mean) * tf.rsqrt(variance + 1e-6), 1)


def raised_by_a_callback(b, is_training):
  share = tf.get_variable('share', [], initializer=tf.zeros_initializer(), trainable=False)
  z = dense(b['x'], 4, 'o')
  return ce(z, b['y']) + share * tf.square(z[:, 0] - tf.reduce_mean(z[:, 0]))


def moved_by_a_gradient(b, is_training, of=tf.reduce_mean):
  def net(x):
    with tf.variable_scope('net', reuse=tf.AUTO_REUSE):
      return ce(dense(tf.nn.tanh(dense(x, 8, 'h')), 4, 'o'), b['y'])

  [gradient] = tf.gradients(of(net(b['x'])), b['x'])
  return net(tf.stop_gradient(b['x'] + 5 * gradient))


def normalised(b, is_training):
  """Batch normalisation, of which copies of an example are another in each tower."""
  images = tf.layers.conv2d(b['x'][:, :, None, None], 5, 1)
  return ce(dense(tf.nn.relu(tf.layers.flatten(tf.layers.batch_normalization(
      images, training=is_training, fused=True))), 4, 'd'), b['y'])


@pytest.mark.nightly(but=[
    '22-2-sure_ones', '28-1-normalised', '28-2-full_experts', '28-2-growing_sum', '22-2-cancelling',
    '22-2-raised_by_a_callback', '28-2-by_mean'])
@pytest.mark.parametrize('model, is_named', [
    (sure_ones, True), (table_of_zeros, True), (full_experts, True), (kept_by_mean_loss, True),
    (weighed_by_count, True), (growing_sum, True), (raised_by_a_callback, True),
    (cancelling, False), (normalised, False), (moved_by_a_gradient, True),
    (functools.partial(moved_by_a_gradient, of=tf.reduce_sum), False),
    (functools.partial(sure_ones, whose=lambda own, sure: own), False)],
    ids=['sure_ones', 'table_of_zeros', 'full_experts', 'kept_by_mean_loss', 'weighed_by_count',
         'growing_sum', 'raised_by_a_callback', 'cancelling', 'normalised', 'by_mean', 'by_sum',
         'each_sure_one'])
@pytest.mark.parametrize('num_towers', [1, 2])
@pytest.mark.parametrize('size', [22, 28])  # 28: batches of one static size.
def test_what_few_rows_hide_at_first_is_named(size, num_towers, model, is_named, caplog, capsys,
                                              monkeypatch):
  found, accumulate = [], 3 - num_towers
  for checks in (True, False):
    monkeypatch.setattr(engine, 'has_parts', lambda program, checks=checks: checks)
    with tf.Graph().as_default(), caplog.at_level(logging.WARNING, 'towers'):
      program = towers.Program(
          model, train=xy(size * accumulate)(), optimizer=sgd(), batch_size=14 * accumulate,
          accumulate=accumulate, num_towers=num_towers, device='cpu', seed=3)
      with program.session() as session:
        found.append(session.run(tf.global_variables()))
  messages = [record.getMessage() for record in caplog.records]
  assert ['do not equal one' in message for message in messages] == [True] * is_named
  assert 'not measured' not in capsys.readouterr().out
  assert all(map(np.array_equal, *found))  # A measurement leaves variables as they were.
