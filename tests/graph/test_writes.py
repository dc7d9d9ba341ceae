"""Writes: a change of a variable waits for the guard, is undone, or is refused by name."""

import functools
import importlib
import time

import numpy as np
import pytest

import towers
from tests.harness import faults, small
from tests.update import test_nan_guard
from towers.base.usage_error import UsageError
from towers.graph import writes
from towers.tensorflow_v1 import load_keras, tf

TRAIN = small.random_examples(16)
POISONED = faults.poison(TRAIN, test_nan_guard.ROW)


def average(name='average', **settings):
  """A variable that every model here reads in its forward pass."""
  return tf.get_variable(name, [small.NUM_FEATURES], initializer=tf.zeros_initializer(),
                         trainable=False, **settings)


def move(variable, mean, zero_debias):
  # As in programs without towers.
  moving_averages = importlib.import_module('tensorflow.python.training.moving_averages')
  return moving_averages.assign_moving_average(variable, mean, 0.9, zero_debias=zero_debias)


def count(variable, mean):
  """Adds the mean three times, in a while loop."""
  def body(number):
    with tf.control_dependencies([variable.assign_add(mean, read_value=False)]):
      return number + 1

  return tf.while_loop(lambda number: number < 3, body, [0])


def count_in_branch(variable, mean):
  """A loop in a branch in a loop."""
  return tf.while_loop(
      lambda number: number < 3, lambda number: number + tf.cond(
          number < 2, lambda: tf.minimum(count(variable, mean), 1), lambda: 1), [0])


# What models put into UPDATE_OPS, by a variable, the batch's mean and is_training.
UPDATES = {
    'moving average': lambda variable, mean, is_training: move(variable, mean, False),
    'moving average, debiased': lambda variable, mean, is_training: move(variable, mean, True),
    'assign': lambda variable, mean, is_training: variable.assign_add(mean),
    'group': lambda variable, mean, is_training: tf.group(
        variable.assign_add(mean), average('other').assign_add(mean)),
    'scatter': lambda variable, mean, is_training: variable.scatter_update(
        tf.IndexedSlices(variable[:2] + mean[:2], [0, 3])),
    'cond': lambda variable, mean, is_training: tf.cond(
        is_training, lambda: tf.identity(variable.assign_add(mean)), lambda: tf.identity(variable)),
    'loop': lambda variable, mean, is_training: count(variable, mean),
    'loop in cond': lambda variable, mean, is_training: tf.cond(
        is_training, lambda: count(variable, mean), lambda: 0),
    'loop in cond in loop': lambda variable, mean, is_training: count_in_branch(variable, mean),
    'function': lambda variable, mean, is_training: tf.function(
        lambda value: tf.identity(variable.assign_add(value)))(mean)}


def updated(update, **settings):
  """Returns a model with an update in UPDATE_OPS."""
  def model(batch, is_training):
    features, labels = batch
    variable = average(**settings)
    tf.add_to_collection(
        tf.GraphKeys.UPDATE_OPS, update(variable, tf.reduce_mean(features, 0), is_training))
    return small.classify(features - variable, labels)

  return model


def averaged_weights(batch, is_training):
  """Polyak averages of the weights."""
  del is_training
  found = small.classify(*batch)
  with tf.variable_scope('logits', reuse=True):
    weights = tf.get_variable('weights', [small.NUM_FEATURES, small.NUM_CLASSES])
  tf.add_to_collection(tf.GraphKeys.UPDATE_OPS,
                       tf.train.ExponentialMovingAverage(0.9).apply([weights]))
  return found


def layers_norm(batch, is_training):
  features, labels = batch
  x = tf.layers.batch_normalization(features, training=is_training, name='norm')
  return small.classify(x, labels)


def keras_norm():
  made = {}

  def model(batch, is_training):
    features, labels = batch
    graph = tf.get_default_graph()
    if graph not in made:
      made[graph] = load_keras().layers.BatchNormalization()
    norm = made[graph]
    x = norm(features, training=is_training)
    for update in norm.updates:
      tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    return small.classify(x, labels)

  return model


def slim_norm(**settings):
  def model(batch, is_training):
    slim = pytest.importorskip('tensorflow.contrib.slim')
    features, labels = batch
    return small.classify(slim.batch_norm(features, is_training=is_training, scope='norm',
                                          decay=0.9, **settings), labels)

  return model


MODELS = dict({name: updated(update) for name, update in UPDATES.items()}, **{
    'asked for as ref': updated(UPDATES['assign'], use_resource=False),
    'averaged weights': averaged_weights,
    'tf.layers': layers_norm,
    'slim': slim_norm(),
    'keras': keras_norm()})


def check_refused_step(**settings):
  """Takes a good step, a refused one and a good one; returns the names of changed variables."""
  with small.Run(train=POISONED, **dict(dict(validates=True), **settings)) as run:
    start = test_nan_guard.everything(run)
    _, after = test_nan_guard.skip_refused_step(run)
    return {name for name, value in after.items() if not np.array_equal(value, start[name])}


@pytest.mark.nightly(but='3-moving average')
@pytest.mark.parametrize('name', sorted(MODELS))
@pytest.mark.parametrize('num_towers', [1, 3])
def test_a_refused_step_changes_no_variable(name, num_towers):
  changed = check_refused_step(model=MODELS[name], num_towers=num_towers)
  assert any('verage' in name or 'moving' in name for name in changed)


@pytest.mark.nightly
@pytest.mark.parametrize('name', ['moving average, debiased', 'loop', 'tf.layers'])
@pytest.mark.parametrize('settings', [
    dict(num_towers=1, accumulate=2),
    dict(num_towers=3, accumulate=2, placement='replicated', tower_build='clone'),
    dict(num_towers=4, validation_tower=True)], ids=str)
def test_nor_with_micro_batches_replicas_or_a_validation_tower(settings, name):
  assert check_refused_step(model=MODELS[name], **settings)


def slowly_read(variable):
  """Reads a variable long after all ops that wait for nothing have run."""
  def wait(number):
    time.sleep(0.05)
    return number

  with tf.control_dependencies([tf.py_func(wait, [0.0], tf.float32)]):
    return variable.read_value()


@pytest.mark.nightly
@pytest.mark.parametrize('name', ['assign', 'cond', 'function', 'group', 'loop', 'moving average'])
@pytest.mark.parametrize('guard', [False, True])
def test_no_update_comes_before_the_forward_pass_is_over(name, guard, monkeypatch):
  if not guard:
    test_nan_guard.leave_guard_out(monkeypatch)

  def model(batch, is_training, read=slowly_read, update=UPDATES[name]):
    features, labels = batch
    variable = average()
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS,
                         update(variable, 100 + tf.reduce_mean(features, 0), is_training))
    return small.classify(features - read(variable), labels)

  def first_loss(**settings):
    with small.Run(model=functools.partial(model, **settings), num_towers=2, validates=True) as run:
      return run.train()

  assert first_loss() == first_loss(update=lambda *_: tf.no_op())


def in_place(update):
  """Returns a model whose loss waits for an update."""
  def model(batch, is_training):
    features, labels = batch
    variable = average()
    with tf.control_dependencies([update(variable, tf.reduce_mean(features, 0), is_training)]):
      features = tf.identity(features)
    return small.classify(features - variable, labels)

  return model


IN_PLACE = dict({name: in_place(update) for name, update in UPDATES.items()},
                slim=slim_norm(updates_collections=None))


@pytest.mark.nightly(but='assign')
@pytest.mark.parametrize('name', sorted(IN_PLACE))
def test_an_update_in_place_is_undone(name):
  is_switched = name in ('cond', 'loop in cond', 'slim')
  changed = check_refused_step(model=IN_PLACE[name], num_towers=1, validates=is_switched)
  assert any('verage' in name or 'moving' in name for name in changed)


def clips_weights(batch, is_training):
  del is_training
  features, labels = batch
  weights = tf.get_variable('weights', [small.NUM_FEATURES, small.NUM_CLASSES])
  tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, weights.assign(tf.clip_by_value(weights, -1, 1)))
  return tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=labels, logits=tf.matmul(features, weights))


def averages_a_tensor(batch, is_training):
  del is_training
  features, labels = batch
  for number in range(2):
    with tf.variable_scope(f'net/tower_{number}'):
      tf.get_variable('weights', [3 + number])
  with tf.variable_scope('norm'):
    average_op = tf.train.ExponentialMovingAverage(0.9).apply([tf.reduce_mean(features, 0)])
  tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, average_op)
  return small.classify(features, labels)


def updates_in_loop(variable, mean, is_training):
  del is_training
  updates = []

  def body(number):
    updates.append(variable.assign_add(mean, read_value=False))
    return number + 1

  tf.while_loop(lambda number: number < 3, body, [0])
  return updates[0]


def fills_a_queue(variable, mean, is_training):
  del variable, is_training
  return tf.group(tf.FIFOQueue(9, [tf.float32]).enqueue(mean))


def measures_totals(batch, is_training):
  losses, metrics = small.model(batch, is_training)
  _, total = tf.metrics.accuracy(batch[1], tf.cast(metrics['accuracy'], tf.int32))
  return losses, {'accuracy': total + tf.zeros_like(losses)}


ASSIGNS = in_place(UPDATES['assign'])


@pytest.mark.nightly(but='settings1-of 2 towers')
@pytest.mark.parametrize('settings, words', [
    (dict(model=ASSIGNS, num_towers=3),
     'op tower_0/AssignAddVariableOp changes the variable average while the loss is computed, so '
     'that it would run on each of 3 towers.*UPDATE_OPS.*updates_collections'),
    (dict(model=ASSIGNS, num_towers=2, tower_build='clone', placement='replicated'), 'of 2 towers'),
    (dict(model=in_place(UPDATES['loop']), num_towers=2), 'average while .* each of 2 towers'),
    (dict(model=in_place(UPDATES['function']), num_towers=2), 'average while .* each of 2 towers'),
    (dict(model=ASSIGNS, num_towers=1, accumulate=2), 'for every micro-batch on each of 1 towers'),
    (dict(model=in_place(UPDATES['loop']), num_towers=1, validates=True),
     'variable average whenever the loss or a metric .*, in validation too: .*tf.cond.is_train'),
    (dict(model=measures_totals, validates=True), 'accuracy/total whenever .*tf.metrics'),
    (dict(model=measures_totals, validation_tower=True), 'accuracy/total whenever .*tf.metrics'),
    (dict(model=updated(updates_in_loop)),
     r'UPDATE_OPS is part of a loop, .*while/AssignAddVariableOp, made in .*_writes.py, line \d+,.*'
     r'take it out .*UPDATE_OPS\).remove'),
    *((dict(model=updated(fills_a_queue), **settings),
       r'fills or empties .*fifo_queue_enqueue.*_writes.py, line \d+: with .*first tower')
      for settings in ({}, dict(num_towers=1, accumulate=2))),
    (dict(model=clips_weights, placement='replicated'),
     'changes the trainable variable weights on the first tower.*trainable=False')])
def test_writes_that_towers_would_repeat_are_refused_by_name(settings, words):
  with pytest.raises(UsageError, match=words):
    small.Run(**dict(dict(num_towers=2), **settings))


@pytest.mark.nightly
def test_averages_of_tensors_have_names_without_a_tower():
  with small.Run(model=averages_a_tensor, num_towers=3) as run:
    run.train()
    assert 'norm/norm/Mean/ExponentialMovingAverage' in {
        variable.op.name.rstrip('/') for variable in run.graph.get_collection('variables')}


@pytest.mark.nightly
def test_towers_that_share_weights_may_clip_them():
  with small.Run(model=clips_weights, num_towers=2) as run:
    run.train()


@pytest.mark.nightly
def test_reads_are_not_writes():
  with tf.Graph().as_default() as graph:
    variable, index = average(), tf.constant([1])
    ref = average('ref', use_resource=False)
    tf.gradients(tf.gather(variable, index) + tf.gather(ref, index), [variable, ref])
    tf.function(lambda: variable + 1)()
    tf.while_loop(lambda number: number < 3, lambda number: number + variable[0] + ref[0], [0.0])
    tf.cond(variable[0] > 0, lambda: variable[0], lambda: tf.identity(ref[0]))
    names = {write.op.name for write in writes.find_writes(graph)}
    assert names == {'average/Assign', 'ref/Assign'}


@pytest.mark.nightly
@pytest.mark.parametrize('name', ['tf.layers', 'group', 'loop', 'averaged weights'])
def test_the_search_does_not_walk_through_the_net(name, monkeypatch):
  walked = []

  def count(find):
    def counted(*args, **settings):
      found = find(*args, **settings)
      walked.extend(found)
      return found
    return counted

  for find in ('find_needed', 'find_dependents'):
    monkeypatch.setattr(writes, find, count(getattr(writes, find)))
  small.Run(model=MODELS[name], num_towers=2).session.close()
  assert walked and not [op for op in walked if op.type == 'MatMul']


def weight(index=0):
  return sorted(tf.trainable_variables(), key=lambda variable: variable.shape.ndims)[index]


# What nobody puts into UPDATE_OPS: the write, from the mean of a batch, whether the loss reads the
# number, and whether a step is meant to run the write, or somebody by hand.
LEFT_OUT = {
    'count': (lambda number, mean: number.assign_add(1), True, True),
    'constant, read': (lambda number, mean: number.assign(0.5), True, True),
    'mean': (lambda number, mean: number.assign_sub(0.1 * (number - mean)), False, True),
    'fed and mean': (
        lambda number, mean: number.assign(mean * tf.placeholder(tf.float32)), False, True),
    'average': (lambda number, mean: number.assign(
        0.9 * number + 0.1 * tf.reduce_mean(tf.trainable_variables()[0])), False, True),
    'decayed weight': (lambda number, mean: weight().assign(0.9 * weight()), False, True),
    'copied weight': (lambda number, mean: weight().assign(weight(1)[0]), False, False),
    'fed weight': (lambda number, mean: weight().assign(
        weight() + tf.placeholder(tf.float32, [])), False, False),
    'halved': (lambda number, mean: number.assign(number / 2), False, False),
    'constant': (lambda number, mean: number.assign(0.5), False, False),
    'fed': (lambda number, mean: number.assign(tf.placeholder(tf.float32, [])), False, False),
    'fed, read': (lambda number, mean: number.assign(tf.placeholder(tf.float32, [])), True, False)}


@pytest.mark.parametrize('name', LEFT_OUT)
def test_a_write_that_no_step_runs_is_named_unless_it_is_run_by_hand(name, capsys):
  write, is_read, is_named = LEFT_OUT[name]

  def model(batch, is_training):
    x, labels = batch
    number = tf.get_variable('number', [], trainable=False, initializer=tf.ones_initializer())
    losses = small.classify(x * number if is_read else x, labels)
    write(number, tf.reduce_mean(x))
    return losses

  small.program(model, train=TRAIN, num_towers=2)
  told = [line for line in capsys.readouterr().err.splitlines() if 'no step runs' in line]
  named = 'logits/biases' if 'weight' in name else 'number'
  assert [line.split(':')[1].split()[-1] for line in told] == [named] * is_named


def test_the_step_that_a_model_counts_for_another_loop_is_not_named(capsys):
  def model(batch, is_training):
    step = tf.train.get_or_create_global_step()
    step.assign(step + 1)
    return small.classify(*batch) * tf.cast(step + 1, tf.float32)

  small.program(model, train=TRAIN, num_towers=2)
  assert 'no step runs' not in capsys.readouterr().err


def test_a_rate_that_is_set_by_hand_is_not_named(capsys):
  with tf.Graph().as_default():
    rate = tf.get_variable('rate', initializer=0.5, trainable=False)
    halve = rate.assign(rate / 2)
    program = towers.Program(small.model, train=TRAIN, batch_size=8, num_towers=2, device='cpu',
                             optimizer=tf.train.GradientDescentOptimizer(rate))
  assert 'WARNING' not in capsys.readouterr().err
  with program.session() as session:
    session.train()
    assert session.run(halve) == session.run(program.learning_rate) == 0.25
    before = session.run('logits/biases')
    session.train()
    moved = session.run('logits/biases') - before
    assert session.run('rate') == 0.25 and moved.any()


@pytest.mark.parametrize('num_towers', [1, 2])
def test_writes_of_a_variable_run_in_the_order_in_which_the_model_makes_them(num_towers):
  def model(batch, is_training):
    kept = tf.get_variable('kept', [], initializer=tf.zeros_initializer(), trainable=False)
    late = tf.py_func(lambda: time.sleep(0.5) or np.float32(1), [], tf.float32)
    for value in (tf.reshape(late, []), tf.constant(2.0)):
      tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, kept.assign(value))
    return small.model(batch, is_training)

  with small.Run(model=model, num_towers=num_towers) as run:
    run.train()
    assert run.variables()['kept'] == 2
