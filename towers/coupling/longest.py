"""Longest: axes that are as long as the longest example of a batch.

  string_split ──► sparse_to_dense [n, longest] ──► embedding [n, longest, d] ──► mean [n, d]

Each row is of one example, but a tower has only its own examples, and divides by the length of the
longest of these. What is summed over such an axis, with a mask, is that of one tower.
"""

from typing import Collection, Iterator, List, Optional, Set, Tuple

from tensorflow_v1 import Operation, Tensor, get_constant_array
from towers.coupling.arithmetic import REDUCTIONS, find_axes
from towers.coupling.rules import ARITHMETIC

Axis = Tuple[Tensor, int]

_PRODUCTS = ('BatchMatMul', 'BatchMatMulV2')
_CHOICES = ('Select', 'SelectV2')
_GATHERS = ('Gather', 'GatherV2', 'ResourceGather')
# Their outputs have other axes than their inputs, counted from the right.
_OTHER_AXES = {
    'ArgMax', 'ArgMin', 'Einsum', 'InTopK', 'InTopKV2', 'MatMul', 'ScatterNd',
    'SoftmaxCrossEntropyWithLogits', 'SparseSoftmaxCrossEntropyWithLogits', 'UnsortedSegmentMax',
    'UnsortedSegmentMin', 'UnsortedSegmentProd', 'UnsortedSegmentSum'}
_SAME_AXES = set(ARITHMETIC).difference(REDUCTIONS, _PRODUCTS, _CHOICES, _OTHER_AXES) | {
    'AsString', 'ConcatV2', 'LookupTableFind', 'LookupTableFindV2', 'Merge', 'OnesLike', 'Pad',
    'PadV2', 'RegexReplace', 'Slice', 'StaticRegexReplace', 'StringLower', 'StringStrip',
    'StringToHashBucket', 'StringToHashBucketFast', 'StringToHashBucketStrong', 'StringToNumber',
    'StringUpper', 'Substr', 'Switch', 'Tile', 'ZerosLike'}
# Of a length these are one again.
_OF_LENGTHS = ('Add', 'AddV2', 'Cast', 'Identity', 'Maximum', 'Minimum', 'Sub')


class Longest:
  """The axes that are as long as the longest example, as far as they were asked for."""

  def __init__(self, needed: Collection[Operation]):
    """`needed` are the ops that depend on the batch."""
    self._needed = needed
    self._others: Set[Axis] = set()

  def is_divisor(self, op: Operation) -> bool:
    """Returns whether an op is a mean over such an axis."""
    rank = op.inputs[0].shape.ndims if op.type == 'Mean' else None
    axes = find_axes(op.inputs[1], rank) if rank else None
    return any(self._find((op.inputs[0], axis)) for axis in axes or ())

  def _find(self, axis) -> bool:
    """Returns whether an axis comes from such a one; those that do not are asked once."""
    waiting, seen = [axis], set()
    while waiting:
      tensor, place = waiting.pop()
      dims = tensor.shape.dims
      if dims is None or dims[place].value is not None or tensor.op not in self._needed or (
          (tensor, place) in seen or (tensor, place) in self._others):
        continue
      if place and _is_filled_up(tensor.op, self._needed) or (
          tensor.op.type == 'Range' and _is_largest(tensor.op.inputs[1], self._needed)):
        return True
      seen.add((tensor, place))
      waiting.extend(find_axes_before(tensor, place))
    self._others |= seen
    return False


def _is_filled_up(op, needed) -> bool:
  """Returns whether rows of unequal lengths are filled up to the longest."""
  if op.type == 'RaggedTensorToTensor':
    return any(tensor.op in needed for tensor in op.inputs[3:])
  if op.type != 'SparseToDense':
    return False
  source = op.inputs[1].op
  return source in needed and source.type in ('StringSplit', 'StringSplitV2')


def _is_largest(length: Tensor, needed) -> bool:
  waiting = [length]
  while waiting:
    op = waiting.pop().op
    if op in needed:
      if op.type == 'Max' and op.outputs[0].shape.ndims == 0:
        return True
      waiting.extend(op.inputs if op.type in _OF_LENGTHS else [])
  return False


def find_axes_before(tensor, place) -> Iterator[Axis]:
  """Yields the axes of an op's inputs from which its output, of a known rank, has one."""
  op, rank = tensor.op, tensor.shape.ndims
  ranks = [other.shape.ndims for other in op.inputs]
  if not ranks or ranks[0] is None:
    return
  first = op.inputs[0]
  if op.type in REDUCTIONS:
    axes = find_axes(op.inputs[1], ranks[0])
    if op.get_attr('keep_dims'):
      yield first, place
    elif axes is not None:
      yield first, _leave_out(axes, ranks[0])[place]
  elif op.type in _SAME_AXES:
    yield from _from_right(op.inputs, place - rank)
  elif op.type in _CHOICES:
    # A condition of Select may stand for the first axis alone.
    yield from _from_right(op.inputs[1:], place - rank)
  elif op.type in _PRODUCTS:
    if place < rank - 2:
      yield from _from_right(op.inputs, place - rank)
    elif place == rank - 2:
      yield first, ranks[0] - (1 if op.get_attr('adj_x') else 2)
    elif ranks[1] is not None:
      yield op.inputs[1], ranks[1] - (2 if op.get_attr('adj_y') else 1)
  elif op.type in _GATHERS:
    axis = get_constant_array(op.inputs[2]) if op.type == 'GatherV2' else 0
    if axis is not None and ranks[1] is not None and int(axis) <= place < int(axis) + ranks[1]:
      yield op.inputs[1], place - int(axis)
  elif op.type == 'OneHot':
    if op.get_attr('axis') == -1 and place < ranks[0]:
      yield first, place
  elif op.type == 'StridedSlice':
    count = _count(op.inputs[1])
    before = None if count is None else _find_cut(op, ranks[0], count)[place]
    if before is not None:
      yield first, before
  elif op.type == 'ExpandDims':
    axis = get_constant_array(op.inputs[1])
    if axis is not None and place != int(axis) % rank:
      yield first, place - (place > int(axis) % rank)
  elif op.type == 'Squeeze' and op.get_attr('squeeze_dims'):
    gone = [axis % ranks[0] for axis in op.get_attr('squeeze_dims')]
    yield first, _leave_out(gone, ranks[0])[place]
  elif op.type == 'Transpose':
    order = get_constant_array(op.inputs[1])
    if order is not None:
      yield first, int(order[place])
  elif op.type in ('BroadcastTo', 'Fill', 'Reshape'):
    size = _find_size(op.inputs[0 if op.type == 'Fill' else 1], place)
    if size is not None:
      yield size


def _from_right(tensors, place) -> Iterator[Axis]:
  """Yields the axis at a place, from the right and negative, of the tensors that have it."""
  for tensor in tensors:
    rank = tensor.shape.ndims
    if rank is not None and rank + place >= 0:
      yield tensor, rank + place


def _find_cut(op, rank, count) -> List[Optional[int]]:
  """Returns from which axis each one of a slice in Python is, None for a new one."""
  masks = [op.get_attr(f'{name}_mask') for name in ('ellipsis', 'new_axis', 'shrink_axis')]
  cut: List[Optional[int]] = []
  axis = 0
  for index in range(count):
    is_ellipsis, is_new, is_gone = (mask >> index & 1 for mask in masks)
    if is_ellipsis:
      later = sum(not masks[1] >> other & 1 for other in range(index + 1, count))
      cut.extend(range(axis, rank - later))
      axis = rank - later
    elif is_new:
      cut.append(None)
    else:
      cut.extend([] if is_gone else [axis])
      axis += 1
  return cut + list(range(axis, rank))


def _leave_out(axes, rank) -> List[int]:
  return [axis for axis in range(rank) if axis not in axes]


def _find_size(shape: Tensor, place: int) -> Optional[Axis]:
  """Returns the axis whose size is an element of a shape."""
  op = shape.op
  if op.type == 'Shape':
    return op.inputs[0], place
  if op.type == 'Pack':
    return _find_size_alone(op.inputs[place])
  if op.type in _GATHERS:
    indices = get_constant_array(op.inputs[1])
    if indices is not None and indices.ndim == 1:
      return _find_size(op.inputs[0], int(indices[place]))
  if op.type == 'ConcatV2':
    for part in op.inputs[:-1]:
      count = _count(part)
      if count is None or place < count:
        return None if count is None else _find_size(part, place)
      place -= count
  return None


def _find_size_alone(size: Tensor) -> Optional[Axis]:
  """Returns the axis of which a scalar is the size, taken as `tf.shape(x)[1]` is."""
  op = size.op
  if op.type != 'StridedSlice':
    return None
  count, begin = _count(op.inputs[0]), get_constant_array(op.inputs[1])
  if not count or begin is None or begin.size != 1 or op.get_attr('shrink_axis_mask') != 1:
    return None
  return _find_size(op.inputs[0], int(begin[0]) % count)


def _count(vector: Tensor) -> Optional[int]:
  """Returns the number of a vector's elements, if it is known that it is one."""
  return vector.shape.dims[0].value if vector.shape.ndims == 1 else None
