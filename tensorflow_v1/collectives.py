"""TensorFlow's collective ops: all-reduce and broadcast between devices."""

from typing import Optional

from tensorflow.python.ops import collective_ops

from tensorflow_v1.load import IS_1
from tensorflow_v1.types import Tensor

# Whether an all-reduce can sum float16 and bfloat16.
SUMS_16_BITS = not IS_1


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
