"""Slots made at once are those that an optimizer makes, and nothing else in the graph differs."""

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.placement.devices import build_devices, build_session_config
from towers.tensorflow_v1 import tf
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
  config = build_session_config(build_devices(2, 'cpu'))
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


class Own(tf.train.Optimizer):
  """Momentum as repositories write it, whose variables `make(gradient, weight)` makes."""

  def __init__(self, make):
    super().__init__(False, 'own')
    self.make, self.made = make, []

  def apply_gradients(self, grads_and_vars, global_step=None, name=None):
    updates = []
    for gradient, weight in grads_and_vars:
      momentum = self.make(gradient, weight)
      self.made.append(momentum)
      change = 0.9 * momentum + gradient
      updates += [momentum.assign(change), weight.assign(weight - 0.1 * change)]
    return tf.group(*updates)


MAKERS = {
    'product': lambda gradient, weight: tf.Variable(weight * 0),
    'copied twice': lambda gradient, weight: tf.Variable(tf.Variable(weight + 1) - weight - 1),
    'array': lambda gradient, weight: tf.Variable(np.zeros(weight.shape.as_list(), np.float32)),
    'named': lambda gradient, weight: tf.get_variable(
        weight.op.name + '/m', weight.shape, initializer=tf.zeros_initializer())}
LAYOUTS = [(kind, num_towers, placement) for kind in MAKERS for num_towers, placement in [
    (1, 'host'), (3, 'host'), (2, 'balanced'), (3, 'replicated')]]


def take_own_steps(kind, num_towers, placement, steps, folder=None):
  """Returns the weights after some steps and the optimizer, or those of TensorFlow's momentum."""
  optimizer = Own(MAKERS[kind]) if kind else tf.train.MomentumOptimizer(0.1, 0.9)
  program = small.program(num_towers=num_towers, variables=placement, optimizer=optimizer)
  with program.session() as session, program.graph.as_default():
    weights = tf.trainable_variables()
    assert len(weights) == 4
    if folder and session.step == 0 and any(folder.iterdir()):
      session.restore(str(folder))
    for _ in range(steps):
      session.train()
    if folder:
      session.save(str(folder))
    return {weight.op.name: value for weight, value in zip(weights, session.run(weights))}


@pytest.mark.nightly(but=['product-3-host', 'array-3-replicated'])
@pytest.mark.parametrize('kind, num_towers, placement', LAYOUTS)
def test_variables_that_apply_gradients_makes_are_slots(kind, num_towers, placement, tmp_path):
  expected = take_own_steps(None, 1, 'host', 3)
  small.assert_same_weights(take_own_steps(kind, num_towers, placement, 3), expected)
  # By name, so that a run goes on with other numbers of towers.
  take_own_steps(kind, num_towers, placement, 2, tmp_path)
  small.assert_same_weights(take_own_steps(kind, 2, 'host', 1, tmp_path), expected)


class Averaging(tf.train.MomentumOptimizer):
  """Keeps the averages of its weights, which start as these do."""

  def apply_gradients(self, grads_and_vars, global_step=None, name=None):
    pairs = list(grads_and_vars)
    with tf.control_dependencies([super().apply_gradients(pairs, global_step, name)]):
      return tf.train.ExponentialMovingAverage(0.5).apply([weight for _, weight in pairs])


@pytest.mark.nightly(but='3-replicated')
@pytest.mark.parametrize('num_towers, placement', [(1, 'host'), (3, 'host'), (3, 'replicated')])
def test_averages_that_apply_gradients_makes_start_at_the_weights(num_towers, placement):
  program = small.program(num_towers=num_towers, variables=placement, optimizer=Averaging(0.1, 0.9))
  with program.session() as session, program.graph.as_default():
    names = [weight.op.name for weight in tf.trainable_variables()]
    expected = session.run(names)
    for _ in range(3):
      session.train()
      expected = [(old + new) / 2 for old, new in zip(expected, session.run(names))]
    for name, average in zip(names, expected):
      np.testing.assert_allclose(session.run(f'{name}/ExponentialMovingAverage'), average,
                                 rtol=0, atol=1e-6, err_msg=name)


def test_variables_that_apply_gradients_makes_stay_as_they_are_in_a_refused_step():
  features = np.full([8, 5], np.nan, np.float32)
  train = towers.from_arrays((features, np.zeros(8, np.int32)))
  optimizer = Own(MAKERS['product'])
  program = small.program(train=train, validation=None, optimizer=optimizer)
  with program.session() as session, program.graph.as_default():
    kept = [*tf.trainable_variables(), *optimizer.made]
    before = session.run(kept)
    with pytest.raises(towers.RunError, match='not finite'):
      session.train()
    for value, expected in zip(session.run(kept), before):
      np.testing.assert_array_equal(value, expected)


def test_an_initial_value_of_the_batch_is_refused():
  message = r'initial value .*made in .*test_slots.py, line \d+.*tf.zeros\(weight.shape\)'
  with pytest.raises(towers.UsageError, match=message):
    small.program(optimizer=Own(lambda gradient, weight: tf.Variable(gradient * 0)))


class OwnRule(tf.train.GradientDescentOptimizer):
  """Makes a variable for each weight, without its name."""

  def _resource_apply_dense(self, gradient, weight):
    momentum = tf.Variable(np.zeros(weight.shape.as_list(), np.float32))
    return weight.assign_sub(0.1 * momentum.assign_add(gradient))


def test_a_slot_that_could_be_any_towers_is_refused():
  with pytest.raises(towers.UsageError, match=r'Variable, made in .*, line \d+.*variables=host'):
    small.program(optimizer=OwnRule(0.1), variables='replicated')
