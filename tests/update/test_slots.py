"""Slots made at once are those that an optimizer makes, and nothing else in the graph differs."""

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.harness import small
from towers.update.slots import make_slots

OPTIMIZERS = {
    'sgd': lambda: tf.train.GradientDescentOptimizer(0.1),
    'momentum': lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    'adam': lambda: tf.train.AdamOptimizer(0.1),
    # Slots that do not start with zeros; and one kind that does not, two that do.
    'adagrad': lambda: tf.train.AdagradOptimizer(0.1),
    'rmsprop': lambda: tf.train.RMSPropOptimizer(0.1, centered=True),
    'ftrl': lambda: tf.train.FtrlOptimizer(0.1),
    'adadelta': lambda: tf.train.AdadeltaOptimizer(0.1)}


def train(name, at_once):
  """Returns all variables after three steps, and their devices."""
  config = towers.build_session_config(towers.build_devices(2, 'cpu'))
  with tf.Graph().as_default(), tf.Session(config=config) as session:
    with tf.device('/device:CPU:1'):
      weights = tf.get_variable('weights', [3, 2], initializer=tf.ones_initializer())
    with tf.variable_scope('layer'):
      biases = tf.get_variable('biases', [2], initializer=tf.ones_initializer())
      number = tf.get_variable('number', [], initializer=tf.ones_initializer())
    loss = tf.reduce_sum(tf.square(tf.matmul([[1.0, 2.0, 3.0]], weights) + biases)) * number
    # Two optimizers in one graph have different names.
    for optimizer in (OPTIMIZERS[name](), OPTIMIZERS[name]()):
      gradients = optimizer.compute_gradients(loss)
      if at_once:
        make_slots(optimizer, [variable for _, variable in gradients])
      train_op = optimizer.apply_gradients(gradients)
    session.run(tf.global_variables_initializer())
    for _ in range(3):
      session.run(train_op)
    variables = tf.global_variables()
    assert [variable.op.name for variable in tf.trainable_variables()] == [
        'weights', 'layer/biases', 'layer/number']
    return {variable.op.name: (variable.device, variable.dtype, value)
            for variable, value in zip(variables, session.run(variables))}


@pytest.mark.nightly(but=['sgd', 'momentum'])
@pytest.mark.parametrize('name', sorted(OPTIMIZERS))
def test_slots_made_at_once_are_those_of_the_optimizer(name):
  made, expected = train(name, True), train(name, False)
  assert sorted(made) == sorted(expected)
  for variable, (device, dtype, value) in expected.items():
    assert made[variable][:2] == (device, dtype)
    np.testing.assert_array_equal(made[variable][2], value, err_msg=variable)


@pytest.mark.parametrize('placement', small.nightly_but(['balanced'], small.PLACEMENTS))
def test_slots_stand_with_their_variables_and_cost_one_import(placement, monkeypatch):
  imports = []
  monkeypatch.setattr('towers.update.slots.tf.import_graph_def',
                      lambda *args, make=tf.import_graph_def, **kwargs: (
                          imports.append(kwargs), make(*args, **kwargs))[1])
  with small.Run(num_towers=3, placement=placement, optimizer='adam') as run:
    # Another import resizes what a tower computes, and takes inputs.
    assert [kwargs['name'] or kwargs['input_map'] for kwargs in imports].count({}) == 1
    made = [op.name for op in run.graph.get_operations() if '/Adam' in op.name]
    assert 1 <= sum(name.endswith('/Initializer/zero') for name in made) <= 3  # One a device.
    devices = {op.name: op.device for op in run.graph.get_operations() if op.type == 'VarHandleOp'}
    for name in run.weights():
      assert devices[name] == devices[name + '/Adam'] == devices[name + '/Adam_1']
