"""Row shapes: shapes of which only the number of rows is open, found without a run.

Gradients ask for the shape of nearly every activation, in an op each. Most of them are `[n, ...]`
with the batch's n, and there are few different ones.
"""

from typing import Any, Dict, List, Optional, Sequence, Set

from tensorflow_v1 import Tensor, tf
from towers.graph.resized import infer_shapes
from towers.input.batch import Batch
from towers.tower.batch_norm_layer import is_choice
from towers.tower.cloning.names import get_op_name

# A prime, so that no product is as large; and so small that products fit into 32 bits.
_ROWS = 8191


class RowShapes:
  """Shapes of a tower's tensors.

  Attributes:
    batch: a tensor `[n, ...]`, or None where nothing depends on n.
  """

  def __init__(self, batch: Batch, nodes: Sequence[Any], whole: Any):
    """Finds the shapes that a tower asks for, of its nodes in the order of the `whole` GraphDef."""
    given = tf.nest.flatten(batch.tensors)
    # GPUs have no kernel for the shape of strings.
    tensors = [tensor for tensor in given if tensor.dtype != tf.string]
    self.batch: Any = tensors[0] if tensors and batch.num_rows is None else None
    asked = _find_asked(nodes) if self.batch is not None else []
    try:
      shapes = asked and infer_shapes(
          asked, {tensor.name: [_ROWS, *tensor.shape.as_list()[1:]] for tensor in given},
          {node.name: node for node in whole.node})
    except ValueError:  # Sizes that are no product of as many rows.
      shapes = []
    self._axes: Dict[str, List[int]] = {}
    for tensor, shape in zip(asked, shapes):
      axes = [axis for axis, size in enumerate(tensor.shape.as_list()) if size is None]
      if shape.ndims is not None and [shape.as_list()[axis] for axis in axes] == [_ROWS]:
        self._axes[tensor.name] = axes

  def find(self, tensor: Tensor) -> Optional[List[Optional[int]]]:
    """Returns the sizes of the tensor's axes, None for n; or None if they are not known."""
    if tensor.shape.ndims is None:
      return None
    sizes = tensor.shape.as_list()
    opened = [axis for axis, size in enumerate(sizes) if size is None]
    return sizes if opened in ([], self._axes.get(tensor.name)) else None


def _find_asked(nodes) -> List[Tensor]:
  """Returns the tensors whose shapes are asked for, where they are computed in every run."""
  graph, branched = tf.get_default_graph(), _find_branched(nodes)
  return [tensor for node in nodes if node.op in ('Shape', 'ShapeN')
          for tensor in graph.get_operation_by_name(node.name).inputs
          if tensor.op.name not in branched and tensor.shape.ndims is not None
          and not tensor.shape.is_fully_defined()]


def _find_branched(nodes) -> Set[str]:
  """Returns the names of the nodes that may be dead in a run of the tower, or belong to a loop.

  What would run in their place is not dead.
  """
  graph = tf.get_default_graph()
  branched: Set[str] = set()
  for node in nodes:
    if node.op == 'Merge' and is_choice(graph.get_operation_by_name(node.name)):
      # Lives wherever the layer's input does: one of both kernels has run.
      kernel = graph.get_operation_by_name(get_op_name(node.input[0]))
      sources = [kernel.inputs[0].op.inputs[0].op.name]
    else:
      sources = [get_op_name(name) for name in node.input]
    if (node.op in ('Switch', 'Enter', 'RefSwitch', 'RefEnter')
        or not branched.isdisjoint(sources)):
      branched.add(node.name)
  return branched
