"""A choice of each element by one flag, which both targets have by different ops."""

from tensorflow_v1.load import IS_1, tf
from tensorflow_v1.types import Tensor


def select(flag: Tensor, tensor: Tensor, number: float) -> Tensor:
  """Returns `tensor` where the scalar bool `flag` is true, else `number` in its place.

  Nothing of the tensor, such as NaN, gets into what is returned for false.
  """
  tensor = tf.convert_to_tensor(tensor)
  no = tf.constant(number, tensor.dtype)
  if not IS_1:
    return tf.raw_ops.SelectV2(condition=flag, t=tensor, e=no)
  # Its select takes two tensors of one shape.
  if tensor.shape.ndims != 0:
    no = tf.fill(tf.shape(tensor), no)
  return tf.raw_ops.Select(condition=flag, x=tensor, y=no)
