"""Fusion of small tensors: biases, scales and depthwise kernels go to another device as one tensor.

  weights     a, b, c on the host    ──► joined, once ──► tower 3 ──► a, b, c
  gradients   a, b, c on each tower  ──► joined ──► host ──► one sum ──► a, b, c

Each tensor that goes to another device costs two ops and a message, however small it is, and most
variables of a deep net are small. Tensors are fused if their shapes differ in the longest axis
alone. They are joined along that axis, so that nothing has to be reshaped. No bit of them changes.
"""

from typing import Any, Dict, List, Optional, Sequence

from tensorflow_v1 import Gradient, Tensor, tf

# A larger tensor is worth a message of its own, since joining copies it.
_LARGEST_BYTES = 80 * 1024


def group_alike(tensors: Sequence[Optional[Gradient]], devices: Sequence[str]) -> List[List[int]]:
  """Returns the indices of the tensors of each group to join, of one dtype and device.

  Args:
    tensors: dense tensors, and None or `tf.IndexedSlices`, which are in no group.
    devices: for each tensor its device.

  Returns:
    groups of at least two.
  """
  groups: Dict[Any, List[int]] = {}
  for index, (tensor, device) in enumerate(zip(tensors, devices)):
    if tensor is not None and _is_small(tensor):
      axis = _longest_axis(tensor)
      sizes = tensor.shape.as_list()
      others = tuple(sizes[:axis] + sizes[axis + 1:])
      groups.setdefault((device, tensor.dtype, axis, others), []).append(index)
  return [group for group in groups.values() if len(group) > 1]


def join(tensors: Sequence[Tensor]) -> Tensor:
  """Returns the tensors of one group as one, on the device where it is called."""
  return tf.concat(tensors, _longest_axis(tensors[0]))


def part(joined: Tensor, like: Sequence[Tensor]) -> List[Tensor]:
  """Returns the tensors that `join` has joined, on the device where it is called.

  Args:
    joined: the result of `join`.
    like: tensors of the same shapes as those that were joined.
  """
  axis = _longest_axis(like[0])
  return tf.split(joined, [tensor.shape.as_list()[axis] for tensor in like], axis)


def _is_small(tensor):
  """Returns whether a tensor is dense, of known shape, no scalar, and small."""
  if not isinstance(tensor, tf.Tensor):
    return False
  if not tensor.shape.ndims or not tensor.shape.is_fully_defined():
    return False
  return tensor.shape.num_elements() * tensor.dtype.size <= _LARGEST_BYTES


def _longest_axis(tensor):
  """Returns the first of the longest axes."""
  sizes = tensor.shape.as_list()
  return sizes.index(max(sizes))
