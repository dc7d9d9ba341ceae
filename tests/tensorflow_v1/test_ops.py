"""A variable's gradients are those of its value."""

import numpy as np
import pytest

from towers.tensorflow_v1 import control_flow_v1, tf


@pytest.mark.parametrize('indices', [[[1], [0], [1]], [[1, 2], [0, 0], [1, 2]], [[[1], [2]]]],
                         ids=str)
def test_gathering_of_a_variable_is_gathering_of_its_value(indices):
  with tf.Graph().as_default(), tf.Session() as session:
    start = np.arange(12, dtype='float32').reshape([3, 4])
    variable = tf.get_variable('table', initializer=start, use_resource=True)
    gathered = [tf.gather_nd(source, indices) for source in (variable, variable.read_value())]
    own, expected = [tf.convert_to_tensor(tf.gradients(values ** 2, variable)[0])
                     for values in gathered]
    session.run(tf.global_variables_initializer())
    np.testing.assert_array_equal(*session.run([own, expected]))


@pytest.mark.parametrize('dtype, size', [(tf.float32, 5), (tf.float64, None)])
@pytest.mark.parametrize('read', [
    lambda table, places: tf.matmul(tf.ones([5, 3], table.dtype), table), tf.gather,
    lambda table, places: tf.gather(table, places) * tf.reduce_sum(table)],
                         ids=['whole', 'rows', 'both'])
def test_a_branch_in_a_loop_reads_a_variable_as_its_value(read, dtype, size):
  with tf.Graph().as_default(), tf.Session() as session:
    start = tf.cast(np.arange(12).reshape([3, 4]), dtype)
    variable = tf.get_variable('table', initializer=start, use_resource=True)
    places = tf.placeholder_with_default([0, 1, 1, 2, 0], [size])

    def loop(source):
      def body(turn, total):
        return turn + 1, tf.cond(tf.equal(turn % 2, 0), lambda: 2 * total + read(source, places),
                                 lambda: total * total)
      return tf.while_loop(lambda turn, _: turn < 4, body, (0, tf.ones([5, 4], dtype)))[1]

    with control_flow_v1():
      own, expected = [tf.convert_to_tensor(tf.gradients(loop(source), variable)[0])
                       for source in (variable, variable.read_value())]
    session.run(tf.global_variables_initializer())
    np.testing.assert_array_equal(*session.run([own, expected]))
