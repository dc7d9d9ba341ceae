"""A clone is the tower that the model would build, to the bit, whatever things are called."""

import re

import hypothesis
import hypothesis.strategies as st
import pytest

from tensorflow_v1 import tf
from tests.harness import direct, small
from tests.harness.small import Run
from towers.base.usage_error import UsageError
from towers.tower.batch_norm_layer import batch_norm
from towers.tower.cloning.names import Names

# Of what the library names itself, and of what could be mistaken for it once a prefix is gone.
WORDS = ('x', 'hidden', 'images', 'LogicalNot', 'is_validating', 'Const', 'gradients', 'tower_0',
         'tower_1', 'outside', 'copies', 'join_reads', 'reads_1', 'labels', 'x_stateless', 'key')
KINDS = ('constant', 'placeholder', 'logical_not', 'scope')
LAYERS = ('tanh', 'dense', 'dropout', 'noise', 'branch', 'loop', 'not', 'outer', 'after',
          'gradient', 'collect')

paths = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map('/'.join)
outsides = st.lists(st.tuples(st.sampled_from(KINDS), paths), max_size=4)
layers = st.lists(st.tuples(st.sampled_from(LAYERS), paths), min_size=1, max_size=5)
programs = st.fixed_dictionaries(dict(
    outside=outsides, layers=layers, num_towers=st.integers(2, 4),
    placement=st.sampled_from(['host', 'replicated'])))


def make_outside(kind, name):
  """Makes something before the towers; returns a scalar that the model may read."""
  if kind == 'constant':
    return tf.constant(0.7, name=name)
  if kind == 'placeholder':
    return tf.placeholder_with_default(1.3, [], name=name)
  if kind == 'logical_not':
    return tf.logical_not(tf.placeholder_with_default(False, [], 'is_validating'), name=name)
  with tf.name_scope(name):
    return tf.identity(1.1, name='x')


def add_layer(kind, name, x, is_training, outside):
  """Adds to a model [batch, 4] an op, or some, whose names begin with `name`."""
  if kind == 'tanh':
    return tf.tanh(x, name=name)
  if kind == 'dense':
    with tf.variable_scope(name, reuse=tf.AUTO_REUSE):
      return x + tf.identity(tf.matmul(x, tf.get_variable('x', [4, 4])), name='x')
  if kind == 'outer':
    for one in outside:
      x = tf.multiply(x, tf.cast(one, tf.float32) + 0.5, name=name)
    return x
  if kind == 'after':
    with tf.control_dependencies(outside):
      return tf.identity(x, name=name)
  if kind == 'not':
    return tf.where(tf.logical_not(x > 0, name=name), x, 0.5 * x)
  if kind == 'collect':
    tf.add_to_collection('seen', tf.identity(x, name=name))
    return x
  if kind == 'noise':
    return x + 0.1 * tf.random.normal(tf.shape(x), name=name)
  with tf.name_scope(name):
    if kind == 'dropout':
      return tf.nn.dropout(x, rate=tf.where(is_training, 0.5, 0.0))
    if kind == 'branch':
      return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(x, name='x'),
                     lambda: tf.random.normal(tf.shape(x)))
    if kind == 'loop':
      return tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, tf.tanh(x, name='x')),
                           (0, x))[1]
    assert kind == 'gradient'
    return x + 0.1 * tf.gradients(tf.square(x), x, name='gradients')[0]


def build(tower_build, *, outside, layers, num_towers, placement):
  """Returns what towers compute between other things of the given names."""
  outer = []

  def model(batch, is_training):
    with tf.variable_scope('first', auxiliary_name_scope=False):
      x = small.dense(batch[0], 4, 'dense')
    for kind, name in layers:
      x = add_layer(kind, name, x, is_training, outer)
    return tf.reduce_sum(tf.square(x), 1)

  def prepare():
    outer.extend([make_outside(*one) for one in outside] or [tf.constant(0.5)])

  return direct.build(tower_build, model, num_towers=num_towers, placement=placement,
                      prepare=prepare)


def assert_same_outcome(program):
  """Holds a clone against the tower that the model builds, in values and in the names of ops."""
  try:
    reused = build('reuse', **program)
  except Exception:  # Towers that cannot share, or a name that TensorFlow refuses.
    hypothesis.reject()
  try:
    cloned = build('clone', **program)
  except UsageError as error:
    # Refused by name, and only where the name is at fault.
    inside = [path for _, path in program['layers']]
    if 'is in use before the tower' in str(error):
      assert any(path.startswith('tower_') for _, path in program['outside'])
    elif 'has the scope of its tower within its name' in str(error):
      assert any('/tower_0' in path for path in inside)
    else:
      assert 'begins with \'_\'' in str(error) and any(path.startswith('_') for path in inside)
    return False
  direct.assert_same_values(cloned, reused)
  # Gradients hold the scope twice, those of a clone once.
  names = {re.sub('(?<=/)tower_[0-9_]+/', '', op.name) for op in reused.graph.get_operations()}
  for name in direct.names_of_towers(cloned):
    if not name.split('/')[-1].isdigit():
      assert re.sub('(?<=/)tower_[0-9_]+/', '', name) in names
  return True


def settings(num_examples):
  # To make a failing program smaller takes minutes.
  return hypothesis.settings(max_examples=num_examples, deadline=None, derandomize=True,
                             phases=[hypothesis.Phase.generate],
                             suppress_health_check=list(hypothesis.HealthCheck))


@pytest.mark.nightly
@settings(10)
@hypothesis.given(programs)
def test_a_clone_is_the_tower_under_any_names(program):
  assert_same_outcome(program)


# Of each its outside, its layers and where variables stand.
COLLISIONS = {
    'a placeholder outside, an op inside': (
        [('placeholder', 'images')], [('tanh', 'images'), ('outer', 'x')], 'host'),
    'an op outside, an op inside': (
        [('logical_not', 'LogicalNot')],
        [('not', 'LogicalNot_1'), ('not', 'LogicalNot'), ('outer', 'x')], 'host'),
    'a variable and an op': ([], [('dense', 'hidden'), ('tanh', 'hidden/x')], 'host'),
    'a variable and an op, replicated': (
        [], [('dense', 'hidden'), ('tanh', 'hidden/x')], 'replicated'),
    'a copy and an op': ([], [('dense', 'x'), ('tanh', 'copies/tower_1/x/x')], 'replicated'),
    'the scope within the scope': (
        [], [('noise', 'tower_0/x'), ('noise', 'x'), ('tanh', 'x')], 'host'),
    'gradients in the forward pass': (
        [], [('tanh', 'gradients/x'), ('gradient', 'gradients'), ('tanh', 'gradients/tower_0/x'),
             ('gradient', 'tower_0')], 'host'),
    'the name of what is outside': (
        [('constant', 'x')], [('tanh', 'outside/x'), ('outer', 'x')], 'host'),
    'a key that seeds nothing': ([], [('tanh', 'x/_stateless/key'), ('dropout', 'x')], 'host'),
    'control inputs': (
        [('constant', 'x'), ('placeholder', 'hidden')],
        [('tanh', 'x'), ('after', 'hidden'), ('after', 'x')], 'host'),
    'a name that TensorFlow does not import': ([], [('tanh', '_x')], 'host'),
    'a scope called as a tower': (
        [('scope', 'tower_1'), ('constant', 'x')], [('noise', 'x'), ('outer', 'tower_1')], 'host'),
}


@pytest.mark.nightly(but=['control inputs', 'a variable and an op', 'the scope within the scope'])
@pytest.mark.parametrize('case', sorted(COLLISIONS))
def test_names_that_collide(case):
  outside, layers, placement = COLLISIONS[case]
  assert_same_outcome(dict(outside=outside, layers=layers, placement=placement, num_towers=3))


def with_batch_norm(batch, is_training):
  features, labels = batch
  x = tf.nn.relu(batch_norm(small.dense(features, 6, 'hidden'), is_training, name='norm'))
  logits = small.dense(x, small.NUM_CLASSES, 'logits')
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  return tf.where(tf.logical_not(labels > 1), losses, 0.5 * losses)


@pytest.mark.nightly
def test_a_program_whose_switch_is_called_as_an_op_of_the_model():
  """The model has a `tf.logical_not` of its own beside `tf.logical_not(is_validating)`."""
  losses = []
  for tower_build in ('clone', 'reuse'):
    with Run(model=with_batch_norm, num_towers=4, tower_build=tower_build,
             train=small.random_examples(16), validation=small.random_examples(8)) as run:
      assert run.graph.get_operation_by_name('LogicalNot').inputs[0].op.name == 'is_validating'
      losses.append([run.train() for _ in range(3)] + [run.validate()])
  assert losses[0] == losses[1]


def test_no_two_nodes_share_a_name_and_none_has_that_of_a_tensor_outside():
  short = ['x', 'outside/x', 'outside_/x', 'gradients/x_grad/y', 'gradients/tower_0/x_grad/y',
           'gradients_2/tower_0/z', 'gradients/tower_0/seed']
  names = Names(['tower_0/' + name for name in short], 'tower_0/',
                whole=['tower_0/gradients/tower_0/seed'])
  assert [names.get_op('tower_0/' + name) for name in short] == [
      'x', 'outside/x', 'outside_/x', 'gradients/x_grad/y', 'gradients/tower_0/x_grad/y',
      'gradients_2/z', 'gradients/tower_0/seed']
  assert names.get_input('x') == 'outside__/x:0'
  assert names.get_input('x:1') == 'outside__/x:1'
  assert names.outside == {'outside__/x:0': 'x:0', 'outside__/x:1': 'x:1'}

  inputs = ['tower_0/x', 'tower_0/x:1', '^tower_0/x']
  assert list(map(names.get_input, inputs)) == ['x', 'x:1', '^x']
  made = names.make('x')
  assert made != 'x' and names.make('x') not in ('x', made)
  names.stand_in('tower_0/x', 0, made)
  names.stand_in('tower_0/x', 1, 'x')
  assert list(map(names.get_input, inputs)) == [made, 'x', '^' + made]
