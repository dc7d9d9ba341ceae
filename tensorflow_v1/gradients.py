"""Gradients that 1.14 lacks for resource variables, although it has them for others."""

import contextlib

from tensorflow.python.ops import gen_resource_variable_ops

from tensorflow_v1.load import tf


def _differentiate_gather_nd(op, grad):
  """Returns the gradients of `tf.gather_nd` of a variable; whole rows of it are sparse."""
  variable, indices = op.inputs
  shape = gen_resource_variable_ops.variable_shape(variable, out_type=indices.dtype)
  if indices.shape.ndims == 2 and indices.shape.as_list()[1] == 1:
    return tf.IndexedSlices(grad, tf.squeeze(indices, 1), shape), None
  return tf.scatter_nd(indices, grad, shape), None


with contextlib.suppress(KeyError):  # 2.x has it.
  tf.RegisterGradient('ResourceGatherNd')(_differentiate_gather_nd)
