"""TensorFlow's collective ops: all-reduce and broadcast between devices."""

from typing import Optional

from tensorflow.python.ops import collective_ops

from towers.tensorflow_v1.load import IS_1
from towers.tensorflow_v1.types import Tensor

# Whether an all-reduce can sum float16 and bfloat16.
SUMS_16_BITS = not IS_1


def all_reduce(share: Tensor, *, group_size: int, group_key: int, instance_key: int,
               kind: str) -> Tensor:
  """Returns the sum of a group's shares, of one shape and dtype, on the device of each share.

  `group_key` is of the devices, and `instance_key` of this one sum over them. `kind` is 'ring' or
  'nccl'; on TensorFlow 1.14 the session's config decides, for all sums at once.
  """
  hint = {} if IS_1 else {'communication_hint': kind}
  return collective_ops.all_reduce(share, group_size, group_key, instance_key, 'Add', 'Id', **hint)


def all_reduce_one_of(share: Tensor, *, shape_index: Tensor, group_size: int, group_key: int,
                      instance_key: int) -> Tensor:
  """Returns the sum of a group's shares, whose shape each step chooses from several.

  TensorFlow 1.14 takes any shape under a key. 2.x remembers the first, so there each shape has a
  key of its own: the first is `instance_key`, and `shape_index`, an int32 scalar, counts from it.
  """
  if IS_1:
    return all_reduce(share, group_size=group_size, group_key=group_key,
                      instance_key=instance_key, kind='ring')
  return collective_ops.all_reduce_v2(share, group_size, group_key, instance_key + shape_index,
                                      'Add', 'Id', communication_hint='ring')


def broadcast(value: Optional[Tensor], like: Tensor, *, group_size: int, group_key: int,
              instance_key: int) -> Tensor:
  """Sends a value to the rest of the group, or receives it if it is None; returns the value.

  `like` has its static shape and dtype; the group and the keys are as those of `all_reduce`.
  """
  group = (like.shape, like.dtype, group_size, group_key, instance_key)
  if value is None:
    return collective_ops.broadcast_recv(*group)
  return collective_ops.broadcast_send(value, *group)
