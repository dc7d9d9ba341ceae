"""A clone is the tower that the model would build, whatever things are called."""

import pytest

from tests.harness import small
from tests.tower.test_clone import assert_same_values, compute
from towers.tensorflow_v1 import tf

# Makers of something before the towers, by name; a scalar that the model may read.
OUTSIDE = {
    'constant': lambda name: tf.constant(0.7, name=name),
    'placeholder': lambda name: tf.placeholder_with_default(1.3, [], name=name),
    'logical_not': lambda name: tf.logical_not(
        tf.placeholder_with_default(False, [], 'is_validating'), name=name),
    'op': lambda name: tf.identity(1.1, name=name + '/x')}


def add_layer(kind, name, x, outside):
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
  if kind == 'noise':
    return x + 0.1 * tf.random.normal(tf.shape(x), name=name)
  with tf.name_scope(name):
    if kind == 'dropout':
      return tf.nn.dropout(x, rate=0.5)
    assert kind == 'gradient'
    return x + 0.1 * tf.gradients(tf.square(x), x, name='gradients')[0]


# What is outside, the layers, and where variables stand.
COLLISIONS = {
    'a placeholder outside, an op inside': (
        [('placeholder', 'images')], [('tanh', 'images'), ('outer', 'x')], 'host'),
    'an op outside, an op inside': (
        [('logical_not', 'LogicalNot')],
        [('not', 'LogicalNot_1'), ('not', 'LogicalNot'), ('outer', 'x')], 'host'),
    'a name that no scope begins with': ([], [('tanh', '_x')], 'host'),
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
    'a scope called as a tower': (
        [('op', 'tower_1'), ('constant', 'x')], [('noise', 'x'), ('outer', 'tower_1')], 'host')}


def build(tower_build, outside, layers, variables):
  outer = []

  def model(batch, is_training):
    with tf.variable_scope('first', auxiliary_name_scope=False):
      x = small.dense(batch[0], 4, 'dense')
    for kind, name in layers:
      x = add_layer(kind, name, x, outer)
    return tf.reduce_sum(tf.square(x), 1)

  return compute(tower_build, model, lambda: small.random_examples(24), batch_size=12,
                 variables=variables, num_towers=3, prepare=lambda: outer.extend(
                     [OUTSIDE[kind](name) for kind, name in outside] or [tf.constant(0.5)]))


@pytest.mark.nightly(but='control inputs')
@pytest.mark.parametrize('case', sorted(COLLISIONS))
def test_names_that_collide(case):
  cloned, built = [build(tower_build, *COLLISIONS[case]) for tower_build in ('clone', 'reuse')]
  assert_same_values(cloned, built)
  if case not in ('a scope called as a tower', 'gradients in the forward pass'):
    assert set(cloned.names) <= set(built.names)
