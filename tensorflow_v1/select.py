"""A choice of each element by one flag, which both targets have by different ops."""

from tensorflow_v1.load import IS_1, tf
from tensorflow_v1.types import Tensor

# A constant keeps its memory on the device, and an op in its place is launched in each step.
_LARGEST_CONSTANT = 1 << 20


def select(flag: Tensor, tensor: Tensor, number: float) -> Tensor:
  """Returns `tensor` where the scalar bool `flag` is true, else `number` in its place.

  Nothing of the tensor, such as NaN, gets into what is returned for false.
  """
  tensor = tf.convert_to_tensor(tensor)
  if not IS_1:
    return tf.raw_ops.SelectV2(condition=flag, t=tensor, e=tf.constant(number, tensor.dtype))
  # Its select takes two tensors of one shape.
  size = tensor.shape.num_elements()
  if size is not None and size <= _LARGEST_CONSTANT:
    no = tf.constant(number, tensor.dtype, tensor.shape)
  else:
    no = tf.fill(tf.shape(tensor), tf.constant(number, tensor.dtype))
  return tf.raw_ops.Select(condition=flag, x=tensor, y=no)
