"""Resized: the shapes that tensors would have, if inputs of the graph had others.

TensorFlow's own inference tells, in a copy of what they are computed from. An input whose first
axis has a size that nothing else has shows which other axes have as many.
"""

from typing import Any, Dict, List, Mapping, Sequence

from tensorflow_v1 import Tensor, tf
from towers.graph.walk import find_called


def infer_shapes(tensors: Sequence[Tensor], shapes: Mapping[str, Any]) -> List[Any]:
  """Returns the static shapes of tensors of the default graph; no op is added to it, nothing runs.

  The `shapes` are of the inputs, by name; what these are computed from is left out.

  Raises:
    ValueError: an op cannot have such inputs.
  """
  graph = tf.get_default_graph()
  definition = tf.GraphDef(versions=graph.graph_def_versions)
  pending = list({tensor.op: None for tensor in tensors if tensor.name not in shapes})
  seen = set(pending)
  used: Dict[str, Tensor] = {}
  while pending:
    op = pending.pop()
    node = definition.node.add()
    node.CopyFrom(op.node_def)
    node.device = ''
    node.attr.pop('_class', None)
    node.input[:] = [tensor.name for tensor in op.inputs]
    for tensor in op.inputs:
      # What is computed from variables may be most of a net, and has other shapes for none.
      if tensor.name in shapes or tensor.op.type == 'ReadVariableOp':
        used[tensor.name] = tensor
      elif tensor.op not in seen:
        seen.add(tensor.op)
        pending.append(tensor.op)
  if any(find_called(graph, node) for node in definition.node):
    definition.library.CopyFrom(graph.as_graph_def(from_version=graph.version).library)
  with tf.Graph().as_default() as copy:
    stand_ins: Dict[Any, Tensor] = {}  # One for all inputs of a shape.
    for name, tensor in used.items():
      shape = shapes.get(name, tensor.shape)
      key = tensor.dtype, str(shape)
      if key not in stand_ins:
        stand_ins[key] = tf.placeholder(tensor.dtype, shape, 'resized/input')
      used[name] = stand_ins[key]
    tf.import_graph_def(definition, input_map=used, name='')
    return [tf.TensorShape(shapes[tensor.name]) if tensor.name in shapes
            else copy.get_tensor_by_name(tensor.name).shape for tensor in tensors]
