"""A variable's gradients are those of its value."""

import numpy as np
import pytest

from towers.tensorflow_v1 import tf


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
