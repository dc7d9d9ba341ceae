"""Finite: whether the loss and all gradients are, by one sum on each device.

A sum is finite only if all of its terms are, and so is the sum of sums. A sum of finite terms
overflows only near the largest float, where training has failed anyway.

  on a GPU   a, b, c ──► packed ──► one sum      each op costs microseconds, whatever its size
  else       a ──► sum, b ──► sum, c ──► sum     a copy costs more than an op; XLA fuses these

Where an all-reduce has packed gradients, its buffers are summed and not their parts.
"""

import functools
from typing import Any, Dict, List, NamedTuple, Sequence

from towers.graph.ordered_sum import add_all
from towers.placement.host import HOST, is_gpu
from towers.placement.packing import pack, unpack
from towers.tensorflow_v1 import DType, Tensor, tf

# Copying a larger tensor takes longer than the ops that it saves.
_LARGEST_PACKED_BYTES = 16000000


class Unit(NamedTuple):
  """Tensors, the `parts`, that are checked as one: the tensor that holds them on their device."""
  tensor: Tensor
  parts: List[Tensor]

  def split(self, tensor: Tensor) -> Dict[str, Tensor]:
    """Returns by name what stands for each part in `tensor`, which stands for the unit's."""
    whole = _find_part(self.parts[0]).op
    if whole.type != 'SplitV' or whole.inputs[0] is not self.tensor:
      pieces = unpack(tensor, [part.shape for part in self.parts])
    else:
      pieces = tf.raw_ops.SplitV(value=tensor, size_splits=whole.inputs[1], axis=whole.inputs[2],
                                 num_split=len(whole.outputs))
    return {part.name: piece if piece.shape.is_fully_defined() and piece.shape == part.shape
            else tf.reshape(piece, part.shape) for part, piece in zip(self.parts, pieces)}


def find_units(tensors: Sequence[Tensor], is_compiled: bool) -> List[Unit]:
  """Returns the units that hold tensors of one device, on that device."""
  by_name = {tensor.name: tensor for tensor in tensors}
  by_part = {_find_part(tensor).name: tensor for tensor in by_name.values()}
  units: List[Unit] = []
  small: Dict[DType, List[Tensor]] = {}
  for tensor in by_name.values():
    split, size = _find_part(tensor).op, tensor.shape.num_elements()
    if split.type == 'SplitV' and all(part.name in by_part for part in split.outputs):
      if by_part[split.outputs[0].name] is tensor:
        units.append(Unit(split.inputs[0], [by_part[part.name] for part in split.outputs]))
    # The rows of a sparse gradient are of any number.
    elif (is_gpu(tensor.device) and not is_compiled and size
          and size * tensor.dtype.size <= _LARGEST_PACKED_BYTES):
      small.setdefault(tensor.dtype, []).append(tensor)
    else:
      units.append(Unit(tensor, [tensor]))
  return units + [Unit(pack(alike), alike) for alike in small.values()]


def _find_part(tensor):
  """Returns the part of a split tensor that a tensor is, or was before it got its shape."""
  source = tensor.op.inputs[0] if tensor.op.type == 'Reshape' else tensor
  return source if source.op.type == 'SplitV' and source.device == tensor.device else tensor


def sum_units(units: Sequence[Unit]) -> Dict[DType, Tensor]:
  """Returns by dtype the sum of all elements, a scalar on the device where it is called."""
  axes: Dict[int, Tensor] = {}
  totals: Dict[DType, List[Tensor]] = {}
  for tensor, _ in units:
    if tensor.dtype in (tf.float16, tf.bfloat16):
      tensor = tf.cast(tensor, tf.float32)
    rank = tensor.shape.ndims
    if rank and rank not in axes:
      # One constant for all tensors of a rank: otherwise each needs an op more.
      axes[rank] = tf.constant(list(range(rank)))
    total = tensor if rank == 0 else tf.reduce_sum(tensor, axes[rank] if rank else None)
    totals.setdefault(total.dtype, []).append(total)
  return {dtype: add_all(found) for dtype, found in totals.items()}


def build_all_finite(values: Sequence[Any], is_compiled: bool = False) -> Tensor:
  """Returns a scalar bool on the host: whether all tensors and IndexedSlices but None are finite.

  Each device sends a single number to the host. `is_compiled` is whether XLA compiles there.
  """
  by_device: Dict[str, List[Tensor]] = {}
  for value in values:
    if value is not None:
      tensor = value.values if isinstance(value, tf.IndexedSlices) else value
      by_device.setdefault(tensor.device, []).append(tensor)
  totals: Dict[DType, List[Tensor]] = {}
  for device, tensors in by_device.items():
    with tf.device(device):
      for dtype, total in sum_units(find_units(tensors, is_compiled)).items():
        totals.setdefault(dtype, []).append(total)
  with tf.device(HOST):
    finite = [tf.is_finite(add_all(found)) for found in totals.values()]
    return functools.reduce(tf.logical_and, finite) if finite else tf.constant(True)
