"""A tower's results come from its own batch; penalties count once, however models find losses."""

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.input.batch import Batch
from towers.placement.variables import VariableStore
from towers.tensorflow_v1 import tf
from towers.tower.towers import build_towers

SETTINGS = dict(optimizer='sgd', batch_size=12, train=small.random_examples(24))
DEVICES = ['/device:CPU:0', '/device:CPU:1']


def own_scope():
  return tf.get_default_graph().get_name_scope() + '/'


@small.with_losses
def total_loss(losses):
  """As programs of TF-Slim compute it."""
  tf.losses.add_loss(tf.reduce_mean(losses))
  return tf.losses.get_total_loss()


@small.with_losses
def collected_losses(losses):
  """As the CIFAR-10 tutorial computes it, weight decay in the same collection."""
  with tf.variable_scope('', reuse=True):
    decay = 0.05 * tf.nn.l2_loss(tf.get_variable('hidden/weights'))
  tf.add_to_collection('losses', decay)
  tf.add_to_collection('losses', tf.reduce_mean(losses))
  return tf.add_n(tf.get_collection('losses'))


def collected_metric(batch, is_training):
  losses, metrics = small.model(batch, is_training)
  tf.add_to_collection('seen', losses)
  return losses, dict(metrics, all=tf.add_n(tf.get_collection('seen')))


@small.with_losses
def updates_before_the_loss(losses):
  tf.add_to_collection('my_updates', tf.group(tf.identity(losses)))
  with tf.control_dependencies(tf.get_collection('my_updates')):
    return tf.identity(losses)


@small.with_losses
def of_all_updates(losses):
  tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.reduce_mean(losses))
  return tf.add_n(tf.get_collection(tf.GraphKeys.UPDATE_OPS))


def kept_in_python():
  kept = []
  return small.with_losses(lambda losses: kept.append(tf.reduce_mean(losses)) or tf.add_n(kept))


def kept_for_the_gradient():
  kept = []

  @tf.custom_gradient
  def scaled(x):
    kept.append(tf.reduce_mean(x))
    return tf.identity(x), lambda gradient: gradient * kept[0]

  return small.with_losses(scaled)


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize('num_towers', small.nightly_but([3], [2, 3]))
@pytest.mark.parametrize('make, what, fix', [
    (lambda: of_all_updates, 'loss', "get_collection('update_ops', scope)"),
    (kept_in_python, 'loss', 'in no collection'),
    (kept_for_the_gradient, 'gradients', 'in no collection')])
def test_results_that_come_from_another_tower_are_refused(make, what, fix, num_towers):
  with pytest.raises(UsageError) as error:
    small.Run(model=make(), num_towers=num_towers, **SETTINGS)
  message = str(error.value)
  assert message.startswith(f'The {what} of tower 1 is computed from the op tower_0/'), message
  assert fix in message


def test_one_tower_may_take_all_that_is_kept_but_no_validation_tower_beside_it():
  with small.Run(model=kept_in_python(), num_towers=1, **SETTINGS) as run:
    run.train()
  with pytest.raises(UsageError, match='loss of tower 1 is computed from the op tower_0/'):
    small.Run(model=kept_in_python(), num_towers=2, validation_tower=True, **SETTINGS)


@small.with_losses
def advised(losses):
  """As the message advises."""
  scope = own_scope()
  with tf.name_scope('loss'):
    tf.losses.add_loss(tf.reduce_mean(losses))
    return tf.add_n(tf.get_collection('losses', scope))


def harmless():
  """A model that shares constants between towers, and reads other towers for no result."""
  kept = []

  @small.with_losses
  def model(losses):
    if not kept:
      keys = tf.constant([0], tf.int64)
      table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys), -1)
      kept.extend([tf.constant([0.5]) * 2.0, table])
    tf.add_to_collection('losses', losses)
    tf.summary.scalar('all', tf.add_n([tf.reduce_mean(value) for value in tf.get_collection(
        'losses')]))
    with tf.name_scope('tower_0/layer/'):  # As a layer does that keeps the scope of its first call.
      found = kept[1].lookup(tf.zeros([1], tf.int64))
      return losses * kept[0] + tf.cast(found, tf.float32)
  return model


@pytest.mark.nightly(but=['total_loss-reuse', 'collected_metric-tower', 'collected_losses-clone'])
@pytest.mark.parametrize('way', [
    dict(tower_build='reuse'), dict(tower_build='clone'),
    dict(validation_tower=True)], ids=['reuse', 'clone', 'tower'])
@pytest.mark.parametrize('model', [
    lambda: advised, harmless, lambda: total_loss, lambda: collected_losses,
    lambda: collected_metric, lambda: updates_before_the_loss], ids=[
        'advised', 'harmless', 'total_loss', 'collected_losses', 'collected_metric', 'updates'])
def test_what_takes_nothing_of_other_towers_equals_one_tower(model, way):
  if model is harmless and 'tower_build' in way:
    way = dict(tower_build='reuse')  # Its table is not cloned.
  settings = dict(SETTINGS, validates=True)
  with small.Run(model=model(), num_towers=3, **way, **settings) as run, \
      small.Run(model=model(), num_towers=1, **settings) as one:
    for _ in range(3):
      assert run.train() == pytest.approx(one.train(), abs=1e-5)
    small.assert_same_weights(run.weights(), one.weights())
    assert run.validate()[0] == pytest.approx(one.validate()[0], abs=1e-5)


def test_batches_that_are_made_from_other_towers_are_not_refused():
  def first(x, is_training):
    return tf.identity(x * tf.get_variable('first', []), name='out')

  def second(x, is_training):
    return x * tf.get_variable('second', [])

  with tf.Graph().as_default() as graph:
    store = VariableStore(devices=DEVICES)
    build_towers(first, [Batch(tf.ones([4]), 4)] * 2, devices=DEVICES, store=store)
    crossed = [Batch(graph.get_tensor_by_name(f'tower_{tower}/out:0'), 4)
               for tower in (1, 0)]
    built = build_towers(second, crossed, devices=DEVICES, store=store)
    assert [tower.scope for tower in built] == ['tower_0_1/', 'tower_1_1/']


def regularized(losses_of):
  """The small model with a penalty of 0.5 w² on each variable, and the loss `losses_of(losses)`."""
  def model(batch, is_training):
    with tf.variable_scope('', regularizer=lambda weights: 0.5 * tf.reduce_sum(tf.square(weights))):
      losses, metrics = small.model(batch, is_training)
    tf.losses.add_loss(tf.reduce_mean(losses))
    return losses_of(losses), metrics
  return model


def explicit(losses_of):
  @small.with_losses
  def model(losses):
    with tf.variable_scope('', reuse=True):
      weights = tf.get_variable('hidden/weights')
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, tf.nn.l2_loss(weights, name='decay'))
    return losses_of(losses)
  return model


@pytest.mark.nightly(but=[
    'explicit-tower_0/decay-<lambda>1-2',
    'explicit-tower_0/decay-<lambda>0-2'])
@pytest.mark.parametrize('num_towers', [1, 2])
@pytest.mark.parametrize('losses_of', [
    lambda losses: tf.losses.get_total_loss() if own_scope() == 'tower_0/' else losses,
    lambda losses: losses + tf.losses.get_regularization_loss(), lambda losses: tf.reduce_mean(
        losses) + tf.add_n(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES))])
@pytest.mark.parametrize('make, name', [(regularized, 'that of hidden/biases'), (explicit,
    'tower_0/decay')])
def test_a_loss_that_holds_penalties_is_refused(make, name, losses_of, num_towers):
  with pytest.raises(UsageError) as error:
    small.Run(model=make(losses_of), num_towers=num_towers, **SETTINGS)
  message = str(error.value)
  assert f'REGULARIZATION_LOSSES, {name}, ' in message
  assert 'add_regularization_losses=False' in message


@pytest.mark.nightly(but='<lambda>1')
@pytest.mark.parametrize('losses_of', [
    lambda losses: tf.losses.get_total_loss(add_regularization_losses=False),
    lambda losses: with_print(losses, tf.losses.get_regularization_loss())])
def test_penalties_beside_the_loss_count_once_at_one_tower(losses_of):
  with small.Run(model=regularized(losses_of), num_towers=1,
                 **SETTINGS) as run, small.Run(num_towers=1, **SETTINGS) as plain:
    weights = run.weights()['hidden/weights']
    run.train(), plain.train()
    moved = run.weights()['hidden/weights'] - plain.weights()['hidden/weights']
    assert moved == pytest.approx(-0.1 * weights,
                                  abs=1e-5)  # The gradient of 0.5 w² is w; the rate is 0.1.


@pytest.mark.nightly(but='2-mean')
@pytest.mark.parametrize('loss', ['mean', 'weighted'])
@pytest.mark.parametrize('num_towers', [2, 3])
def test_a_penalty_on_an_embedding_counts_once(num_towers, loss, caplog):
  """Its gradient is dense, where those of the examples are rows."""
  def model(batch, is_training):
    features, labels = batch
    table = tf.get_variable('table', [7, 4], regularizer=lambda weights: tf.nn.l2_loss(weights))
    tf.summary.histogram('table', table)  # Which looks for all that a tower computes.
    rows = tf.cast(tf.abs(features[:, 0]) * 3, tf.int32) % 7
    logits = small.dense(tf.nn.embedding_lookup(table, rows), small.NUM_CLASSES, 'logits')
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return losses if loss == 'mean' else towers.Weighted(losses, 1.0 + tf.cast(labels, tf.float32))

  def train(num_towers):
    with small.Run(model=model, num_towers=num_towers, **SETTINGS) as run:
      return [run.train() for _ in range(3)], run.weights()

  one, several = train(1), train(num_towers)
  np.testing.assert_allclose(several[0], one[0], rtol=1e-5)
  small.assert_same_weights(several[1], one[1], tolerance=1e-5)
  assert not caplog.text


def with_print(losses, penalty):
  with tf.control_dependencies([tf.identity(penalty)]):
    return tf.identity(losses)


def test_what_a_clone_collected_is_hidden_too():
  @small.with_losses
  def model(losses):
    before = tf.get_collection('losses')[-1:]
    tf.add_to_collection('losses', tf.reduce_mean(losses))
    return tf.add_n([tf.reduce_mean(losses)] + before)

  # Batches of 3, 3 and 2: the second tower is a clone, the third none.
  settings = dict(model=model, train=small.random_examples(16))
  with small.Run(num_towers=3, tower_build='clone', **settings) as run, \
      small.Run(num_towers=1, **settings) as one:
    assert run.train() == pytest.approx(one.train(), abs=1e-5)
