"""TensorFlow's own collective ops: what devices tell each other."""

from typing import Any

from tensorflow.python.ops import collective_ops

from tensorflow_v1.load import IS_1


def all_reduce(share: Any, *, group_size: int, group_key: int, instance_key: int, kind: str) -> Any:
  """Returns the sum of the shares of a group, on every device that one stands on.

  Args:
    share: on this device; of one shape and dtype in the whole group.
    group_size: how many shares, each on a device of its own.
    group_key: the same for all sums over these devices.
    instance_key: the same for all shares of one sum.
    kind: 'ring' or 'nccl'. TensorFlow 1.14 knows no choice for a single sum: there the session's
      config makes it.
  """
  hint = {} if IS_1 else {'communication_hint': kind}
  return collective_ops.all_reduce(share, group_size, group_key, instance_key, 'Add', 'Id', **hint)


def broadcast(value: Any, like: Any, *, group_size: int, group_key: int, instance_key: int) -> Any:
  """Returns the value of the one of a group that has it.

  Args:
    value: to hand out, or None to receive it.
    like: a tensor of its static shape and dtype.
    others: as for `all_reduce`.
  """
  group = (like.shape, like.dtype, group_size, group_key, instance_key)
  return collective_ops.broadcast_recv(
      *group) if value is None else collective_ops.broadcast_send(value, *group)
