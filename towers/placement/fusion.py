"""Parcels: what is small and alike, biases, scales, kernels of depthwise convolutions, travels
between devices as one.

  weights     a, b, c on the host    ──► joined, once ──► tower 3 ──► a, b, c
  gradients   a, b, c on each tower  ──► joined ──► host ──► one sum ──► a, b, c

Every tensor that goes to another device costs two ops and a message, however small it is, and most
variables of a deep net are small. Alike are those whose sizes differ along their longest axis
alone, the one that they are joined along: so nothing has to be reshaped. No bit of them changes.
"""

from typing import Any, Dict, List, Sequence

from tensorflow_v1 import tf

# A larger one is worth a message of its own, and joining it a copy.
_LARGEST_BYTES = 80 * 1024


def group_alike(tensors: Sequence[Any], devices: Sequence[str]) -> List[List[int]]:
  """Returns the numbers of those that are to travel together: of one dtype and device, and two at
  least.

  Args:
    tensors: or None, or `tf.IndexedSlices`, which travel alone.
    devices: for each its device.
  """
  groups: Dict[Any, List[int]] = {}
  for number, (tensor, device) in enumerate(zip(tensors, devices)):
    if isinstance(tensor,
                  tf.Tensor) and tensor.shape.ndims and tensor.shape.is_fully_defined() and (
                      tensor.shape.num_elements() * tensor.dtype.size <= _LARGEST_BYTES):
      axis = _longest_axis(tensor)
      sizes = tensor.shape.as_list()
      groups.setdefault((device, tensor.dtype, axis, tuple(sizes[:axis] + sizes[axis + 1:])),
                        []).append(number)
  return [group for group in groups.values() if len(group) > 1]


def join(tensors: Sequence[Any]) -> Any:
  """Returns tensors of one group as one, on the device where it is called."""
  return tf.concat(tensors, _longest_axis(tensors[0]))


def part(joined: Any, like: Sequence[Any]) -> List[Any]:
  """Returns what `join` has joined, on the device where it is called; `like` have the sizes of
  each.
  """
  axis = _longest_axis(like[0])
  return tf.split(joined, [tensor.shape.as_list()[axis] for tensor in like], axis)


def _longest_axis(tensor):
  """Returns the first of those that are longest."""
  sizes = tensor.shape.as_list()
  return sizes.index(max(sizes))
