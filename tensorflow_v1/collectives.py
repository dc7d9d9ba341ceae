"""TensorFlow's collective ops: all-reduce and broadcast between devices."""

from typing import Any, Optional

from tensorflow.python.ops import collective_ops

from tensorflow_v1.load import IS_1, tf
from tensorflow_v1.types import DType, Tensor

# The largest group that can send its shares in 16 bits; None for any.
LARGEST_OF_16_BITS = 2 if IS_1 else None


def all_reduce(share: Tensor, *, group_size: int, group_key: int, instance_key: int,
               kind: str) -> Tensor:
  """Returns the sum of a group's shares, on the device of each share.

  Args:
    share: this device's; all shares of the group have the same shape and dtype.
    group_size: the number of shares, each on a device of its own.
    group_key: the same for all sums over these devices.
    instance_key: the same for all shares of one sum.
    kind: 'ring' or 'nccl'. On TensorFlow 1.14 the session's config decides, for all sums at once.
  """
  hint = {} if IS_1 else {'communication_hint': kind}
  return collective_ops.all_reduce(share, group_size, group_key, instance_key, 'Add', 'Id', **hint)


def all_reduce_16_bits(share: Tensor, dtype: DType, **group: Any) -> Tensor:
  """Returns the sum of a group's shares, sent in 16 bits; all get the same bits.

  TensorFlow 1.14 adds up no 16 bits: there the two of a group exchange their shares.

  Args:
    share: this device's; all shares of the group have the same static shape and dtype.
    dtype: float16 or bfloat16.
    **group: as for `all_reduce`; see `LARGEST_OF_16_BITS`.
  """
  sent = tf.cast(share, dtype)
  if not IS_1:
    return tf.cast(all_reduce(sent, **group), share.dtype)
  return tf.cast(sent, share.dtype) + tf.cast(exchange(sent, **group), share.dtype)


def exchange(share: Tensor, **group: Any) -> Tensor:
  """Returns the share of the other one in a group of two, to the bit; on hosts alone.

  Both send the bits of their shares as integers, and each takes its own off their sum: what is left
  are those of the other. TensorFlow 1.14 can neither gather nor broadcast from every worker.

  Args:
    share: this device's; both shares have the same static shape and dtype.
    **group: as for `all_reduce`.
  """
  size, width = share.shape.num_elements(), share.dtype.size
  bits = tf.reshape(share, [-1])
  if width < 4:
    bits = tf.reshape(tf.pad(bits, [[0, -size % (4 // width)]]), [-1, 4 // width])
  words = tf.bitcast(bits, tf.int32)
  received = tf.bitcast(all_reduce(words, **group) - words, share.dtype)
  return tf.reshape(tf.reshape(received, [-1])[:size] if width < 4 else received, share.shape)


def all_reduce_one_of(share: Tensor, *, shape_index: Tensor, group_size: int, group_key: int,
                      instance_key: int) -> Tensor:
  """Returns the sum of a group's shares, whose shape each step chooses from several.

  TensorFlow 1.14 takes any shape under a key. 2.x remembers the first, so there each shape has a
  key of its own.

  Args:
    share: this device's; all shares of a step have the same shape, which is not empty.
    shape_index: an int32 scalar, the same for all shares of a step, another for each shape.
    group_size: as for `all_reduce`, and so are the keys.
    group_key: of these devices.
    instance_key: the first of as many as there are shapes.
  """
  if IS_1:
    return all_reduce(share, group_size=group_size, group_key=group_key,
                      instance_key=instance_key, kind='ring')
  return collective_ops.all_reduce_v2(share, group_size, group_key, instance_key + shape_index,
                                      'Add', 'Id', communication_hint='ring')


def broadcast(value: Optional[Tensor], like: Tensor, *, group_size: int, group_key: int,
              instance_key: int) -> Tensor:
  """Sends a value to the rest of the group, or receives it; returns the value.

  Args:
    value: to send, or None to receive.
    like: a tensor with the value's static shape and dtype.
    group_size: the number of devices, as for `all_reduce`, and so are the keys.
    group_key: of these devices.
    instance_key: of this value.
  """
  group = (like.shape, like.dtype, group_size, group_key, instance_key)
  if value is None:
    return collective_ops.broadcast_recv(*group)
  return collective_ops.broadcast_send(value, *group)
