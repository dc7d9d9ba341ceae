"""Resized: ops as they would be if some tensors had other shapes, and what their axes tell then.

TensorFlow's own inference tells, in a copy of what they are computed from, without a run.
"""

from fractions import Fraction
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from towers.graph.walk import find_called, walk
from towers.tensorflow_v1 import Tensor, import_placed, tf

# Ops that put blocks of all rows one after the other, or take such blocks apart.
_BLOCKS = ('ConcatV2', 'Concat', 'Split', 'SplitV', 'Tile', 'SpaceToBatchND', 'BatchToSpaceND')
# Ops that read entries in an order of their own, and of these the ones that an index orders.
_SHUFFLES = ('RandomShuffle', 'ReverseV2', 'Roll', 'TopKV2', 'UniqueV2', 'DynamicStitch')
_GATHERS = ('Gather', 'GatherV2', 'GatherNd', 'ResourceGather')


def copy_resized(tensors: Sequence[Tensor], shapes: Mapping[str, Any],
                 num_rows: Optional[int] = None) -> Dict[str, Tensor]:
  """Returns copies of tensors, by name, where those of `shapes` have these; {} if an op cannot.

  In place of a shape, an int is the number that a scalar is. What a tensor of `shapes` is computed
  from is left out. A size that the graph reads from a known one is that, as behind a loop, through
  which no inference goes; but not where the old shapes have a static number of rows, which may be a
  constant: an op that such a constant misleads cannot either.
  """
  if not tensors:
    return {}
  graph = tensors[0].graph
  definition = tf.GraphDef(versions=graph.graph_def_versions)
  given = {tensor.name: tensor for tensor in tensors if tensor.name in shapes}
  shapes = dict(shapes)

  def follow(op):
    for tensor in _list_inputs(op):
      size = None if num_rows or tensor.name in shapes else _read_size(tensor)
      if size is not None:
        shapes[tensor.name] = size
    # What is computed from variables may be most of a net, and has other shapes for none.
    given.update((tensor.name, tensor) for tensor in _list_inputs(op)
                 if tensor.name in shapes or tensor.op.type == 'ReadVariableOp')
    return [tensor.op for tensor in _list_inputs(op) if tensor.name not in given]

  ops = list(walk([tensor.op for tensor in tensors if tensor.name not in shapes], follow))
  for op in ops:
    node = definition.node.add()
    node.CopyFrom(op.node_def)
    node.device = ''
    node.attr.pop('_class', None)
    if op.type == 'Enter' and node.attr['is_constant'].b:
      # Inference goes through no loop, and here none runs.
      node.op = 'Identity'
      for name in ('frame_name', 'is_constant', 'parallel_iterations'):
        node.attr.pop(name)
    node.input[:] = [tensor.name for tensor in _list_inputs(op)]
  if any(find_called(graph, node) for node in definition.node):
    definition.library.CopyFrom(graph.as_graph_def(from_version=graph.version).library)
  with tf.Graph().as_default() as copy:
    made: Dict[Any, Tensor] = {}  # One for all variables of a shape.
    for name, tensor in given.items():
      shape = shapes.get(name, tensor.shape)
      key = name if name in shapes else (tensor.dtype, str(shape))
      if key not in made:
        made[key] = (tf.constant(shape, tensor.dtype, name='resized/size') if isinstance(shape, int)
                     else tf.placeholder(tensor.dtype, shape, 'resized/input'))
      given[name] = made[key]
    used = {name: given[name] for node in definition.node for name in node.input if name in given}
    try:
      import_placed(definition, name='', input_map=used, return_elements=[])
    except ValueError:
      return {}
    if num_rows and any(_is_misled(op, copy.get_operation_by_name(op.name), num_rows)
                        for op in ops if op.type == 'Reshape'):
      return {}
    return {tensor.name: given[tensor.name] if tensor.name in given else
            copy.get_tensor_by_name(tensor.name) for tensor in tensors}


def _is_misled(reshape, copied, num_rows) -> bool:
  """Returns whether a reshape keeps an axis that may be the number of rows, and takes another one
  for that of the rows."""
  pairs = (reshape.inputs[0], copied.inputs[0]), (reshape.outputs[0], copied.outputs[0])
  if not all(tensor.shape.ndims for pair in pairs for tensor in pair):
    return False
  # Of the rows: what comes before them, and their number.
  rows = [[(_count(tensor, axis), size) for axis, (size, other) in enumerate(
      zip(tensor.shape.as_list(), other.shape.as_list())) if size != other]
          for tensor, other in pairs]
  sizes, last = [tensor.shape.as_list() for tensor in (reshape.outputs[0], reshape.inputs[0])]
  while sizes and last and sizes[-1] == last[-1]:  # These axes no reshape touches.
    sizes.pop()
    last.pop()
  return rows[0] != rows[1] and any(size and size == other and size % num_rows == 0 for size, other
                                    in zip(sizes, copied.outputs[0].shape.as_list()))


def _list_inputs(op) -> List[Tensor]:
  """Returns the inputs of an op, of a branch those outside: inference takes no size into one."""
  inputs = list(op.inputs)
  for index, tensor in enumerate(inputs):
    while tensor.op.type == 'Switch' and tensor.op.inputs[1].op.type != 'LoopCond':
      tensor = inputs[index] = tensor.op.inputs[0]
  return inputs


def _read_size(tensor) -> Optional[int]:
  """Returns the number that an entry of `tf.shape(x)` is known to be, None for another tensor."""
  if tensor.op.type != 'StridedSlice' or tensor.shape.ndims != 0:
    return None
  sizes, begin = _list_inputs(tensor.op)[:2]
  index = tf.get_static_value(begin)
  if sizes.op.type != 'Shape' or index is None or not sizes.op.inputs[0].shape.ndims:
    return None
  return sizes.op.inputs[0].shape.as_list()[index[0]]


def list_grown(tensor: Any, size: int) -> List[Tuple[int, int]]:
  """Returns the axes of a tensor that are multiples of a size, with how many times it they are."""
  if tensor is None or tensor.shape.ndims is None:
    return []
  return [(axis, length // size) for axis, length in enumerate(tensor.shape.as_list())
          if length and length % size == 0]


def find_outer(tensor: Tensor, size: int) -> List[int]:
  """Returns how often all of `size` rows come, one after the other, on a tensor's axis of several
  for each.

  An op that makes the axis of blocks of the rows alone, or takes it apart into these, tells, and so
  does a reshape to or from the rows alone. On the way to it a reshape keeps the order of all
  entries, and another op that keeps the length of the axis its order. That is one number, or none
  where no op around the tensor tells, or the nearest ones do not agree.
  """
  [(_, factor)] = list_grown(tensor, size)
  # By name: for each time that the rows come in the first tensor, how often they come there.
  ratios = {tensor.name: Fraction(1)}
  found: Set[Fraction] = set()
  level = [tensor]
  while level and not found:
    nearer, level = level, []
    for flat in nearer:
      [(axis, times)] = list_grown(flat, size)
      ratio = ratios[flat.name]
      if times == 1:
        found.add(1 / ratio)
      for op in [flat.op, *flat.consumers()] if times > 1 else ():
        rows = [list_grown(other, size) for other in (op.inputs if op is flat.op else op.outputs)]
        if op.type in _BLOCKS and all(one in ([(axis, 1)], []) for one in rows) and any(rows):
          found.add(times / ratio)
        for other, more in _list_alike(op, flat, size):
          if other.name not in ratios:
            ratios[other.name] = ratio * more
            level.append(other)
  outer = [int(number) for number in found if number.denominator == 1 and factor % number == 0]
  return outer if len(outer) == 1 else []


def _list_alike(op, flat, size) -> List[Tuple[Tensor, Fraction]]:
  """Returns inputs and outputs of an op whose axis has an order that follows from that of one of
  them, each with how often all rows come there for each time in that one."""
  [(axis, times)] = list_grown(flat, size)
  if op.type in _SHUFFLES or op.type in _GATHERS and flat is op.inputs[0]:
    return []
  alike = []
  for other in [*op.inputs, *op.outputs]:
    rows = list_grown(other, size)
    if len(rows) != 1 or op.type in _GATHERS and other is op.inputs[0]:
      continue
    before, ours = _count(other, rows[0][0]), _count(flat, axis)
    if op.type == 'Reshape' and before and ours:
      alike.append((other, Fraction(ours, before)))
    elif rows[0][1] == times and (op.type != 'Reshape' or before == ours):
      alike.append((other, Fraction(1)))
  return alike


def _count(tensor, axis) -> int:
  """Returns the product of the sizes before an axis; 0 if one is unknown."""
  sizes = tensor.shape.as_list()[:axis]
  return 0 if None in sizes else int(np.prod(sizes))
