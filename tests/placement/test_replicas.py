"""Replicas: every law of shared variables holds, no tower reads another's, and all are the same.

That N towers are one tower with them as well is one of the placements in `test_towers_equal_one`.
"""

import functools
import re

import numpy as np
import pytest

from tests.harness import small
from tests.tower.batch_norm import test_moving_averages
from tests.update import test_nan_guard
from towers.placement.replicas import REPLICAS
from towers.process.run_error import RunError
from towers.tensorflow_v1 import tf


def assert_same_replicas(run):
  copies = run.program.replicas
  values = test_nan_guard.everything(run)
  for name, tower in zip(copies.names, copies.towers):
    np.testing.assert_array_equal(values[f'copies/tower_{tower}/{name}'], values[name],
                                  err_msg=name)
  run.opened.check_replicas()


def embedded(batch, is_training):
  """Sparse and dense gradients, a variable that has both kinds, and one that is not trained."""
  features, labels = batch
  table = tf.get_variable('table', [small.NUM_CLASSES + 2, small.NUM_FEATURES])
  both = tf.Variable(tf.ones([small.NUM_FEATURES, 2]), name='both')
  looked_up = tf.gather(table, labels) * tf.reduce_sum(tf.gather(both,
                                                                 [0, 1])) * tf.reduce_sum(both)
  return test_moving_averages.model((features + 0.01 * looked_up, labels), is_training)


# Kinds of batch norm that are no tower's on the whole batch, and gradients of both kinds.
CASES = {
    'sparse, clipped, accumulated': dict(
        model=embedded, batch_norm='sync', batch_size=12, accumulate=3, clip_norm=0.3,
        train=small.random_examples(24)),
    'batch norm, mean': dict(model=test_moving_averages.model, batch_norm='mean', mode='next'),
    'batch norm, first': dict(model=test_moving_averages.model, mode='shard', depth=2)}


def take_steps(placement, **settings):
  settings = dict(dict(num_towers=3, learning_rate=0.05, validates=True), **settings)
  with small.Run(placement=placement, **settings) as run:
    losses = [run.train() for _ in range(3)]
    means, count = run.validate()
    if run.program.replicas is not None:
      assert_same_replicas(run)
    return dict(means, losses=losses, count=count), run.variables()


@pytest.mark.nightly
@pytest.mark.parametrize('case', CASES)
def test_they_train_as_shared_variables_do(case):
  told, variables = take_steps('replicated', **CASES[case])
  expected_told, expected_variables = take_steps('first', **CASES[case])
  for name, value in expected_told.items():
    np.testing.assert_allclose(told[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
  small.assert_same_weights(variables, expected_variables)


@pytest.mark.parametrize('build', small.nightly_but(['clone'], ['reuse', 'clone']))
def test_no_tower_reads_from_another(build):
  with small.Run(model=embedded, num_towers=3, placement='replicated', tower_build=build,
                 optimizer='adam') as run:
    ops = run.graph.get_operations()
    device_of = {op.name: op.device for op in ops if op.type == 'VarHandleOp'}
    copied = set(run.program.replicas.names)
    towers_read = set()
    for op in ops:
      tower = op.name.split('/')[0]
      for name in [value.op.name for value in op.inputs] if tower.startswith('tower_') else ():
        if name in copied or name.startswith('copies/'):
          # A read without a device of its own is on the variable's device.
          assert device_of[name] == (op.device or device_of[name]) == '/device:CPU:' + tower[-1], (
              op.name)
          assert name.startswith(f'copies/{tower}/') or tower == 'tower_0', op.name
          towers_read.add(tower)
    assert towers_read == {'tower_0', 'tower_1', 'tower_2'}
    updated = [re.search(r'/update_(copies/tower_./)?(.*)/ResourceApply', op.name).groups()
               for op in ops if op.type.startswith('ResourceApply')]
    of_towers = [[name for copy, name in updated if copy == tower]
                 for tower in (None, 'copies/tower_1/', 'copies/tower_2/')]
    assert of_towers[0] == of_towers[1] == of_towers[2] != []
    run.train()
    assert_same_replicas(run)


def test_a_replica_that_differs_is_named_and_nothing_is_saved(tmp_path):
  with small.Run(num_towers=3, placement='replicated') as run, run.graph.as_default():
    run.train()
    run.opened.check_replicas()
    names = ['copies/tower_2/hidden/biases', 'copies/tower_1/hidden/biases', 'hidden/biases']
    by_name = {variable.op.name: variable
               for variable in tf.global_variables() + tf.get_collection(REPLICAS)}
    value = run.session.run(by_name[names[0]])
    by_name[names[0]].load(np.nextafter(value, 10), run.session)
    with pytest.raises(RunError, match='After step 1 tower 2 has another hidden/biases than tower '
                                       '0 .1 of 16 replicas'):
      run.opened.check_replicas()
    # NaN does not equal itself, but its bits do.
    for name in names:
      by_name[name].load(np.full_like(value, np.nan), run.session)
    run.opened.check_replicas()


def test_one_gradient_alone_can_be_fetched():
  with small.Run(num_towers=3, placement='replicated', depth=0) as run:
    gradient, _ = run.program.gradients.gradients[0]
    assert np.isfinite(run.session.run(gradient)).all()


@pytest.mark.parametrize('tower_build, is_resource', [('reuse', None), ('clone', False)])
def test_replicas_of_a_layer_that_holds_its_variables_stay_the_same(tower_build, is_resource):
  held = []

  def model(batch, is_training):
    features, labels = batch
    held[:] = held[:] if held and held[0].graph is tf.get_default_graph() else [
        tf.get_variable('held', [small.NUM_FEATURES, small.NUM_CLASSES], use_resource=is_resource)]
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels,
                                                          logits=tf.matmul(features, held[0]))

  with small.Run(num_towers=2, placement='replicated', model=model, tower_build=tower_build,
                 train=small.random_examples(16),
                 validation=small.random_examples(16, 'validation')) as run:
    run.train()
    assert_same_replicas(run)
    small.assert_moved(run.initial_weights, run.weights())


def test_one_tower_has_no_replicas_and_no_collectives():
  with small.Run(num_towers=1, placement='replicated') as run:
    assert run.program.replicas is None and run.program.gradients.all_reduce is None
    run.train()
    assert not [op for op in run.graph.get_operations() if op.type.startswith('Collective')]


def other_weights():
  random = np.random.RandomState(5)
  shapes = {'hidden/biases': [4], 'hidden/weights': [5, 4], 'logits/biases': [3],
            'logits/weights': [4, 3]}
  return {name: random.randn(*shape).astype(np.float32) for name, shape in shapes.items()}


def save_other_weights(folder):
  """Writes a checkpoint of these weights in another graph; returns its path."""
  with tf.Graph().as_default(), tf.Session() as session:
    variables = [tf.get_variable(name, initializer=value)
                 for name, value in other_weights().items()]
    session.run(tf.global_variables_initializer())
    return tf.train.Saver(variables).save(session, str(folder / 'other'))


def restore_when_finalized(run, variables, path):
  saver = tf.train.Saver(variables)
  run.graph.finalize()
  saver.restore(run.session, path)


def load(run, variables, path):
  for name, value in other_weights().items():
    variables[name].load(value, run.session)


def by_ops(build):
  """Returns a function that writes by the ops `build(variable, its value, the other value)`."""
  def write(run, variables, path):
    before = run.session.run(variables)
    run.session.run([build(variables[name], before[name], value)
                     for name, value in other_weights().items()])
  return write


def initialize_with_copies(run, variables, path):
  """Assigns, and then runs the local initializers again."""
  WRITES['assign'](run, variables, path)
  run.session.run(tf.local_variables_initializer())


WRITES = {
    'load': load, 'finalized': restore_when_finalized, 'initialize': initialize_with_copies,
    'restore': lambda run, variables, path: tf.train.Saver(variables).restore(run.session, path),
    'assign': by_ops(lambda variable, _, value: variable.assign(value)),
    'add': by_ops(lambda variable, before, value: variable.assign_add(value - before)),
    'scatter': by_ops(lambda variable, _, value: tf.scatter_update(
        variable, list(range(len(value))), value))}


def losses_after(write, path, **settings):
  """Returns the losses of the steps after a write."""
  with small.Run(**settings) as run, run.graph.as_default():
    run.train()
    variables = {variable.op.name: variable for variable in tf.trainable_variables()}
    write(run, variables, path)
    small.assert_same_weights(run.weights(), other_weights(), tolerance=1e-6)
    losses = [run.train() for _ in range(2)]
    if run.program.replicas is not None:
      assert_same_replicas(run)
    return losses


@functools.lru_cache(maxsize=None)
def losses_of_one_tower():
  return losses_after(load, None, num_towers=1)


@pytest.mark.nightly(but='load')
@pytest.mark.parametrize('way', WRITES)
def test_every_write_of_weights_writes_all_replicas(way, tmp_path):
  path = save_other_weights(tmp_path)
  losses = losses_after(WRITES[way], path, num_towers=3, placement='replicated')
  np.testing.assert_allclose(losses, losses_of_one_tower(), rtol=0, atol=1e-5)


def test_initial_values_from_a_checkpoint_reach_all_replicas(tmp_path):
  path = save_other_weights(tmp_path)

  def model(batch, is_training):
    returned = small.model(batch, is_training)
    if not tf.get_variable_scope().reuse:
      tf.train.init_from_checkpoint(path, {'/': '/'})
    return returned

  losses = []
  for num_towers, placement in ((1, 'host'), (3, 'replicated')):
    with small.Run(model=model, num_towers=num_towers, placement=placement) as run:
      small.assert_same_weights(run.initial_weights, other_weights(), tolerance=0)
      losses.append(run.train())
  assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_a_write_that_replicas_cannot_follow_fails_and_changes_nothing():
  with small.Run(num_towers=3, placement='replicated') as run, run.graph.as_default():
    run.train()
    before = test_nan_guard.everything(run)
    biases = tf.trainable_variables()[-1]
    in_branch = tf.cond(tf.constant(True), lambda: biases.assign(biases + 1.0).op, tf.no_op)
    message = 'logits/biases, of which every tower has a replica'
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
      run.session.run(in_branch)
    test_nan_guard.assert_unchanged(test_nan_guard.everything(run), before)
    run.train()
    assert_same_replicas(run)
