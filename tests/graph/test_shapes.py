"""Shapes: sizes go through a graph once the rows of its batch are known."""

import pytest

from tensorflow_v1 import tf
from towers.graph.shapes import Shapes


def find_shapes(build, rows=7):
  """Returns the shapes of the tensors that `build` returns, of a batch `[rows, 5, 16]`."""
  with tf.Graph().as_default() as graph:
    tensors = build(tf.placeholder(tf.float32, [None, 5, 16]))
    shapes = Shapes(rows)
    for op in graph.get_operations():
      shapes.add(op)
    return [shapes.find(tensor) for tensor in tensors], shapes.unknown


@pytest.mark.parametrize('build, expected', [
    (lambda x: [x, x + 1], [[7, 5, 16], [7, 5, 16]]),
    (lambda x: [tf.reshape(x, [-1, 16]), tf.reshape(x, [-1, 4, 4])], [[35, 16], [35, 4, 4]]),
    (lambda x: [tf.matmul(tf.reshape(x, [-1, 16]), tf.ones([16, 3]))], [[35, 3]]),
    (lambda x: [tf.reshape(tf.reshape(x, [-1, 16]), tf.shape(x))], [[7, 5, 16]]),
    (lambda x: [tf.reshape(x, [tf.shape(x)[0], tf.placeholder_with_default(20, []), 4])],
     [[7, 20, 4]]),
    (lambda x: [tf.concat([x, x, x], 0), tf.concat([x, x], 2)], [[21, 5, 16], [7, 5, 32]]),
    (lambda x: tf.gradients(x * tf.reshape(tf.reduce_sum(x, [1, 2]), [-1, 1, 1]), x),
     [[7, 5, 16]]),
    (lambda x: tf.gradients(tf.square(tf.reduce_mean(x, 1)), x), [[7, 5, 16]])])
def test_sizes_follow_the_rows(build, expected):
  assert find_shapes(build) == (expected, [])


def test_a_gradient_that_is_summed_has_the_shape_of_its_value():
  def build(x):
    bias = tf.ones([16])
    tf.gradients(x + bias, bias)
    return [op.outputs[0] for op in x.graph.get_operations() if op.type == 'Sum']

  found, unknown = find_shapes(build)
  # On 1.14 another one, over no axis, is that of x.
  assert [16] in [[size for size in shape if size != 1] for shape in found]
  assert not unknown


def test_what_depends_on_values_is_named_and_has_no_elements():
  found, unknown = find_shapes(lambda x: [tf.placeholder(tf.float32)])
  assert found == [[0]] and len(unknown) == 1
