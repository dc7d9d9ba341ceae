"""Resized: ops as they would be if some tensors had other shapes, and what their axes tell then.

TensorFlow's own inference tells, in a copy of what they are computed from, without a run.
"""

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from towers.graph.walk import find_called, walk
from towers.tensorflow_v1 import Tensor, import_placed, tf

# Ops that put blocks of all rows one after the other, or take such blocks apart.
_BLOCKS = ('ConcatV2', 'Concat', 'Split', 'SplitV', 'Tile', 'SpaceToBatchND', 'BatchToSpaceND')
# Ops that read entries in an order of their own, and of these the ones that an index orders.
_SHUFFLES = ('RandomShuffle', 'ReverseV2', 'Roll', 'TopKV2', 'UniqueV2', 'DynamicStitch')
_GATHERS = ('Gather', 'GatherV2', 'GatherNd', 'ResourceGather')


def copy_resized(tensors: Sequence[Tensor], shapes: Mapping[str, Any]) -> Dict[str, Tensor]:
  """Returns copies of tensors, by name, where those of `shapes` have these; {} if an op cannot.

  In place of a shape, an int is the number that a scalar is. What a tensor of `shapes` is computed
  from is left out. In a graph of static shapes a size may be a constant, which stays as it is.
  """
  if not tensors:
    return {}
  graph = tensors[0].graph
  definition = tf.GraphDef(versions=graph.graph_def_versions)
  given = {tensor.name: tensor for tensor in tensors if tensor.name in shapes}

  def follow(op):
    # What is computed from variables may be most of a net, and has other shapes for none.
    given.update((tensor.name, tensor) for tensor in _list_inputs(op)
                 if tensor.name in shapes or tensor.op.type == 'ReadVariableOp')
    return [tensor.op for tensor in _list_inputs(op) if tensor.name not in given]

  for op in walk([tensor.op for tensor in tensors if tensor.name not in shapes], follow):
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
    return {tensor.name: given[tensor.name] if tensor.name in given else
            copy.get_tensor_by_name(tensor.name) for tensor in tensors}


def _list_inputs(op) -> List[Tensor]:
  """Returns the inputs of an op, of a branch those outside: inference takes no size into one."""
  inputs = list(op.inputs)
  for index, tensor in enumerate(inputs):
    while tensor.op.type == 'Switch' and tensor.op.inputs[1].op.type != 'LoopCond':
      tensor = inputs[index] = tensor.op.inputs[0]
  return inputs


def list_grown(tensor: Any, size: int) -> List[Tuple[int, int]]:
  """Returns the axes of a tensor that are multiples of a size, with how many times it they are."""
  if tensor is None or tensor.shape.ndims is None:
    return []
  return [(axis, length // size) for axis, length in enumerate(tensor.shape.as_list())
          if length and length % size == 0]


def find_outer(tensor: Tensor, size: int) -> List[int]:
  """Returns how often all of `size` rows come, one after the other, on a tensor's axis of several
  for each.

  An op that makes the axis of one of the rows alone, or takes it apart into one, tells. Between it
  and the tensor, an op that keeps an axis of this length keeps its order, and so does a reshape
  that moves the numbers of a row to other axes. That is one number, or none where no op around it,
  or several, tell.
  """
  found, seen, pending = set(), {tensor.name}, [tensor]
  while pending:
    flat = pending.pop()
    [(axis, factor)] = list_grown(flat, size)
    for op in [flat.op, *flat.consumers()]:
      others = op.inputs if op is flat.op else op.outputs
      rows = [list_grown(other, size) for other in others]
      if op.type == 'Reshape' and len(rows[0]) == 1 and rows[0][0][1] == 1:
        before, ours = _count(others[0], rows[0][0][0]), _count(flat, axis)
        if before and ours and before % ours == 0 and factor % (before // ours) == 0:
          found.add(before // ours)
      elif op.type in _BLOCKS and all(one in ([(axis, 1)], []) for one in rows) and any(rows):
        found.add(factor)
      alike = [other for other in _list_alike(op, size) if [
          times == factor or op.type == 'Reshape' and times > 1
          for _, times in list_grown(other, size)] == [True]]
      for other in alike if any(other is flat for other in alike) else ():
        if other.name not in seen:
          seen.add(other.name)
          pending.append(other)
  return list(found) if len(found) == 1 else []


def _list_alike(op, size) -> List[Tensor]:
  """Returns an op's inputs and outputs whose axes, if they are as long, have one order."""
  if op.type == 'Reshape':
    pair = [op.inputs[0], op.outputs[0]]
    before = [[_count(tensor, axis) for axis, _ in list_grown(tensor, size)] for tensor in pair]
    return pair if before[0] == before[1] else []
  return [] if op.type in _SHUFFLES else [
      *(op.inputs[1:] if op.type in _GATHERS else op.inputs), *op.outputs]


def _count(tensor, axis) -> int:
  """Returns the product of the sizes before an axis; 0 if one is unknown."""
  sizes = tensor.shape.as_list()[:axis]
  return 0 if None in sizes else int(np.prod(sizes))
