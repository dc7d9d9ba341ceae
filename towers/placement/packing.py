"""Packing: tensors that go to another device together, as one.

  weights      a, b, c on the host    ──► packed, once ──► tower 3 ──► a, b, c
  gradients    a, b, c on each tower  ──► packed ──► host ──► one sum ──► a, b, c
  all-reduce   a, b, c on each tower  ──► packed ──► one collective ──► a, b, c on each tower

Each tensor that goes to another device costs two ops and a message, however small it is. Tensors
whose shapes differ in the longest axis alone are joined along it, so that nothing has to be
reshaped; others as vectors. No bit of them changes.
"""

from typing import Any, Dict, Hashable, List, Optional, Sequence, Tuple

from towers.tensorflow_v1 import Gradient, Tensor, tf

# A larger tensor is worth a message of its own, since joining copies it.
_LARGEST_BYTES = 80 * 1024


def plan_packs(sizes: Sequence[Tuple[Hashable, int]], pack_bytes: int) -> List[List[int]]:
  """Returns the indices of the tensors of each pack, the last tensor first.

  Of each tensor the kind, such as a dtype, and the bytes are given. A pack is of one kind, and no
  larger than `pack_bytes` unless its only tensor is; 0 packs nothing.
  """
  packs: List[List[int]] = []
  is_open: Dict[Any, Tuple[List[int], int]] = {}
  for index in reversed(range(len(sizes))):
    kind, size = sizes[index]
    indices, filled = is_open.get(kind, ([], 0))
    if not indices or filled + size > pack_bytes:
      indices, filled = [], 0
      packs.append(indices)
    indices.append(index)
    is_open[kind] = indices, filled + size
  return packs


def plan_alike(tensors: Sequence[Optional[Gradient]], devices: Sequence[str]) -> List[List[int]]:
  """Returns the indices of each pack of small tensors, at least two, that needs no reshape.

  A pack is of one dtype and device; None and `tf.IndexedSlices` are in no pack.
  """
  packs: Dict[Any, List[int]] = {}
  for index, (tensor, device) in enumerate(zip(tensors, devices)):
    if (isinstance(tensor, tf.Tensor) and tensor.shape.ndims
        and tensor.shape.is_fully_defined() and size_of(tensor) <= _LARGEST_BYTES):
      kind = (device, tensor.dtype, *_split_shape(tensor.shape))
      packs.setdefault(kind, []).append(index)
  return [pack for pack in packs.values() if len(pack) > 1]


def pack(tensors: Sequence[Tensor]) -> Tensor:
  """Returns tensors of one dtype and static shapes as one, on the device of the call."""
  if len(tensors) == 1:
    return tensors[0]
  axis = _find_axis([tensor.shape for tensor in tensors])
  if axis is not None:
    return tf.concat(tensors, axis)
  flat = tf.constant([-1])
  return tf.concat([tensor if tensor.shape.ndims == 1 else tf.reshape(tensor, flat)
                    for tensor in tensors], 0)


def unpack(packed: Tensor, shapes: Sequence[tf.TensorShape]) -> List[Tensor]:
  """Returns the tensors of these shapes that `pack` has joined, on the device of the call."""
  if len(shapes) == 1:
    return [packed]
  axis = _find_axis(shapes)
  if axis is not None:
    return tf.split(packed, [shape.as_list()[axis] for shape in shapes], axis)
  parts = tf.split(packed, [shape.num_elements() for shape in shapes])
  return [part if shape.ndims == 1 else tf.reshape(part, shape)
          for part, shape in zip(parts, shapes)]


def size_of(tensor: Any) -> int:
  """Returns the bytes of a tensor or variable of static shape."""
  return tensor.shape.num_elements() * tensor.dtype.base_dtype.size


def _find_axis(shapes):
  """Returns the axis in which alone shapes differ, their longest; else None."""
  if not all(shape.ndims for shape in shapes):
    return None
  alike = {_split_shape(shape) for shape in shapes}
  return alike.pop()[0] if len(alike) == 1 else None


def _split_shape(shape):
  """Returns the first of the longest axes, and the sizes of the others."""
  sizes = shape.as_list()
  axis = sizes.index(max(sizes))
  return axis, tuple(sizes[:axis] + sizes[axis + 1:])
