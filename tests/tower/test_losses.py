"""A loss or metric must have one value for each example: more or fewer are an error."""

import re

import pytest

import towers
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.input.batch import Batch
from towers.placement.variables import VariableStore
from towers.tensorflow_v1 import tf
from towers.tower.towers import build_towers

EVEN = dict(train=small.random_examples(16), validation=small.random_examples(8, 'validation'))


def with_metric(change):
  """The small model with another metric."""
  def model(batch, is_training):
    losses, metrics = small.model(batch, is_training)
    return losses, {'right': change(metrics['accuracy'])}
  return model


def one_value(values):
  return tf.reshape(tf.reduce_mean(tf.cast(values, tf.float32)), [1])


def forget_shape(values):
  return tf.boolean_mask(values, tf.ones_like(values, tf.bool))


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize('settings, batch', [
    ({}, 'every batch'), (dict(EVEN, num_towers=1), 'a batch of 8 examples'),
    (dict(EVEN, num_towers=4), 'a batch of 2 examples')], ids=['any', 'whole', 'part'])
@pytest.mark.parametrize('make, what, fix', [
    (small.with_losses, 'The loss of the model', 'tf.reshape(loss, [])'),
    (with_metric, 'The metric right', 'one value per example')], ids=['loss', 'metric'])
def test_one_value_for_a_batch_of_several_is_refused(make, what, fix, settings, batch):
  with pytest.raises(UsageError) as error:
    small.Run(model=make(one_value), **settings)
  assert str(error.value).startswith(f'{what} has 1 values for {batch}')
  assert fix in str(error.value)


def test_rows_beyond_the_number_of_examples_are_refused():
  with tf.Graph().as_default(), pytest.raises(UsageError, match='has 4 values for a batch of 3 '
                                                                'examples'):
    batch = Batch((tf.zeros([4, small.NUM_FEATURES]), tf.zeros([4], tf.int32)), 3)
    build_towers(small.model, [batch], devices=['/device:CPU:0'],
                 store=VariableStore(devices=['/device:CPU:0']))


@pytest.mark.nightly(but='16-2-settings4')
@pytest.mark.parametrize('examples, num_towers, settings',
                         [(13, 1, {}), (13, 2, dict(placement='replicated')),
                          (16, 4, dict(placement='first', tower_build='clone')),
                          (13, 3, dict(placement='balanced', tower_build='clone')),
                          (16, 2, dict(accumulate=2))])
def test_what_only_a_run_can_tell_is_refused_before_anything_is_updated(
    examples, num_towers, settings):
  model = small.with_losses(lambda losses: forget_shape(one_value(losses)))
  with small.Run(model=model, num_towers=num_towers, train=small.random_examples(examples),
                 **settings) as run:
    before = run.variables()
    with pytest.raises(towers.RunError) as error:
      run.train()
    rows = 8 // num_towers // settings.get('accumulate', 1)
    assert re.search(r'The loss of the model does not have one value for each .*one value per '
                     rf'example.* two numbers:\] \[1\] \[({rows}|{rows + 1})\]', str(error.value))
    small.assert_same_weights(run.variables(), before, tolerance=0)


def test_a_loss_of_too_few_values_in_one_batch_alone_is_refused_there():
  # An epoch of 13 is 8 and 5 examples.
  model = small.with_losses(
      lambda losses: tf.cond(tf.equal(tf.size(losses), 8), lambda: losses, lambda: losses[:2]))
  with small.Run(model=model, num_towers=1) as run:
    run.train()
    weights = run.weights()
    with pytest.raises(towers.RunError, match=r'\[2\] \[5\]'):
      run.train()
    small.assert_same_weights(run.weights(), weights, tolerance=0)


def test_a_metric_that_only_a_run_can_tell_ends_validation():
  model = with_metric(lambda right: forget_shape(one_value(right)))
  with small.Run(model=model, num_towers=2, validates=True) as run, pytest.raises(
      towers.RunError, match='The metric right does not have one value'):
    run.validate()


@pytest.mark.nightly(but='3-1')
@pytest.mark.parametrize('num_towers, accumulate', [(1, 2), (3, 1), (2, 2)])
def test_a_loss_of_unknown_length_trains_as_one_of_known_length(num_towers, accumulate):
  settings = dict(train=small.random_examples(17), batch_size=16, accumulate=accumulate,
                  validates=True)
  with small.Run(model=small.with_losses(forget_shape), num_towers=num_towers, **settings) as run, \
      small.Run(num_towers=1, **settings) as plain:
    for _ in range(4):
      assert run.train() == pytest.approx(plain.train(), abs=1e-5)
    small.assert_same_weights(run.weights(), plain.weights())
    assert run.validate()[0] == pytest.approx(plain.validate()[0], abs=1e-5)


@pytest.mark.nightly(but='3-clone')
@pytest.mark.parametrize('num_towers, build', [(1, 'reuse'), (3, 'reuse'), (3, 'clone')])
def test_an_edit_distance_is_a_metric_although_tensorflow_forgets_its_rank(num_towers, build):
  def sparse(labels):
    rows = tf.tile(labels[:, None], [1, 3])
    places = tf.where(rows > 0)
    return tf.SparseTensor(places, tf.gather_nd(rows, places), tf.shape(rows, out_type=tf.int64))

  def model(batch, is_training):
    losses, _ = small.model(batch, is_training)
    distances = tf.edit_distance(sparse(batch[1]), sparse(2 - batch[1]), normalize=False)
    ranks.append(distances.shape.ndims)
    return losses, {'errors': distances}

  examples, ranks = small.random_examples(13, 'validation'), []
  with small.Run(model=model, num_towers=num_towers, tower_build=build, validates=True,
                 validation=examples) as run:
    means, _ = run.validate()
  # Three words for 1 and 2, and none for 0.
  assert means['errors'] == pytest.approx(3 * (examples.arrays[1] != 1).mean()) and None in ranks


def test_a_metric_of_unknown_rank_is_refused_with_the_line_to_write():
  model = with_metric(lambda right: tf.py_func(lambda values: values, [right], tf.bool))
  with pytest.raises(UsageError, match=r'metric right has .* write value.set_shape\(\[None\]'), \
      small.Run(model=model, num_towers=2):
    pass


@pytest.mark.nightly(but='13-2-reuse')
@pytest.mark.parametrize('build', ['reuse', 'clone'])
@pytest.mark.parametrize('examples, checks_per_tower', [(13, 2), (16, 0)])
def test_a_check_is_one_op_and_none_where_shapes_tell(examples, checks_per_tower, build):
  settings = dict(EVEN, train=small.random_examples(examples),
                  validation=small.random_examples(examples, 'validation'))
  with small.Run(num_towers=2, tower_build=build, **settings) as run:
    checks = [op for op in run.graph.get_operations() if op.type == 'Assert' and op.name.startswith(
        'tower_')]
    assert len(checks) == 2 * checks_per_tower
    for op in checks:
      tower = int(op.name[len('tower_')])
      assert op.device == f'/device:CPU:{tower}' and op._get_control_flow_context() is None
      assert op.inputs[1].device in ('',
                                     towers.input.pipeline.HOST) or op.inputs[1].dtype == tf.string


@pytest.mark.nightly(but='3-False')
@pytest.mark.parametrize('num_towers, may_be_empty', [(3, False), (4, True)])
def test_values_are_cut_only_where_a_row_may_be_filler(num_towers, may_be_empty):
  with small.Run(num_towers=num_towers, validates=True) as run:
    types = [op.type for op in run.graph.get_operations() if op.name.startswith('tower_1/')]
  assert ('StridedSlice' in types) == may_be_empty
