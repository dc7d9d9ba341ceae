"""The graph of a pattern: the nodes of a tower that its clones need, in a form to import.

Shapes that are known become constants, and equal constants are merged.
"""

from typing import Any, Dict, List, Sequence, Set

from towers.input.batch import Batch
from towers.tensorflow_v1 import tf
from towers.tower.cloning.names import Names, get_op_name


class PatternGraph:
  """The nodes of a pattern.

  Attributes:
    definition: the GraphDef.
    names: of the nodes.
    placed: the nodes that go on a clone's device.
    beside_batch: those that stand beside the batch.
    frames: (node, frame) of those that begin a loop.
    control_inputs: of nodes, by name, ops outside of the tower.
  """

  def __init__(self, nodes: Sequence[Any], scope: str, batch: Batch, whole: Any, *,
               on_device: Set[str], replicated: Set[str]):
    """Adds nodes of a tower, in the order of the `whole` GraphDef, or constants in their place.

    The model has not placed ops `on_device`; of variables `replicated` later towers have replicas.
    """
    self._inside = {node.name for node in nodes}
    self._merged: Dict[bytes, str] = {}
    self.names = Names([node.name for node in nodes], scope)
    self.definition = tf.GraphDef(versions=whole.versions)
    self.placed: List[Any] = []
    self.beside_batch: List[Any] = []
    self.frames: List[Any] = []
    self.control_inputs: Dict[str, List[str]] = {}

    placed = _find_placed(nodes, on_device, replicated)
    of_batch = {group[len(b'loc:@'):].decode() for tensor in batch.flatten()
                if isinstance(tensor, tf.Tensor) for group in tensor.op.colocation_groups()}
    others = []
    for node in nodes:
      is_placed = node.name in placed
      if self._add_known_shapes(node, is_placed):
        continue
      if not self._add_constant(node, is_placed):
        others.append(node)
    # After all constants, whose names they take as inputs.
    for node in others:
      added = self._add_node(node, node.name in placed)
      # A TensorArray is unpacked beside the batch that fills it.
      if not of_batch.isdisjoint(_get_partners(node)):
        self.beside_batch.append(added)

  def _add_known_shapes(self, node, is_placed):
    """Adds constants in place of a node whose shapes are known; returns whether they are."""
    if node.op not in ('Shape', 'ShapeN') or any(name.startswith('^') for name in node.input):
      return False
    op = tf.get_default_graph().get_operation_by_name(node.name)
    # What stands inside of a loop would need an Enter op.
    if (not all(tensor.shape.is_fully_defined() for tensor in op.inputs)
        or op._get_control_flow_context() is not None):
      return False
    like = self.names.get_op(node.name)
    for port, (tensor, output) in enumerate(zip(op.inputs, op.outputs)):
      constant = tf.NodeDef(name=self.names.make(f'{like}/{port}'), op='Const', device=node.device)
      constant.attr['dtype'].type = output.dtype.as_datatype_enum
      constant.attr['value'].tensor.CopyFrom(
          tf.make_tensor_proto(tensor.shape.as_list(), output.dtype))
      self.names.stand_in(node.name, port, self._merge(constant, is_placed))
    return True

  def _add_constant(self, node, is_placed):
    """Adds a constant, unless an equal one is there; returns whether the node is a constant."""
    if node.op != 'Const' or node.input:
      return False
    constant = tf.NodeDef()
    self._copy_node(node, constant)
    self.names.stand_in(node.name, 0, self._merge(constant, is_placed))
    return True

  def _merge(self, node, is_placed):
    """Adds a node, unless an equal one is there; returns the name of either."""
    unnamed = tf.NodeDef(op=node.op, input=node.input, device=node.device, attr=node.attr)
    key = unnamed.SerializeToString(deterministic=True) + bytes([is_placed])
    name = self._merged.setdefault(key, node.name)
    if name == node.name:
      added = self.definition.node.add()
      added.CopyFrom(node)
      if is_placed:
        self.placed.append(added)
    return name

  def _copy_node(self, original, node):
    """Copies the original into an empty node, with the pattern's names and without inputs."""
    node.CopyFrom(original)
    node.name = self.names.get_op(original.name)
    del node.input[:]
    if '_class' in node.attr:
      partners = [self.names.get_op(name) for name in _get_partners(original)
                  if name in self._inside]
      del node.attr['_class']
      if partners:
        node.attr['_class'].list.s.extend([('loc:@' + name).encode() for name in partners])

  def _add_node(self, original, is_placed):
    """Adds and returns a node that is not a constant."""
    node = self.definition.node.add()
    self._copy_node(original, node)
    for name in original.input:
      if name.startswith('^') and name[1:] not in self._inside:
        self.control_inputs.setdefault(node.name, []).append(name[1:])
      else:
        node.input.append(self.names.get_input(name))
    if is_placed:
      self.placed.append(node)
    if 'frame_name' in node.attr:
      self.frames.append((node, node.attr['frame_name'].s.decode()))
    return node


def _find_placed(nodes: Sequence[Any], on_device: Set[str], replicated: Set[str]) -> Set[str]:
  """Returns the names of the nodes, given in the graph's order, that go on a clone's device.

  These are the ops that the model has not placed, ops on a variable of which the clone has a
  replica, also through the Enter op of a loop or the Switch of a branch, and ops colocated with
  either.
  """
  # A loop's Enter op comes after the ops inside that read it.
  entrances = {node.name: get_op_name(node.input[0]) for node in nodes if node.input and
               'T' in node.attr and node.attr['T'].type == tf.resource.as_datatype_enum}

  def is_replicated(name):
    while name in entrances:
      name = entrances[name]
    return name in replicated

  placed = set(on_device)
  for node in nodes:
    partners = _get_partners(node)
    touches_replica = any(map(is_replicated, [*map(get_op_name, node.input), *partners]))
    if touches_replica or not placed.isdisjoint(partners):
      placed.add(node.name)
  return placed


def _get_partners(node) -> List[str]:
  """Returns the names of the ops that a node is colocated with."""
  if '_class' not in node.attr:
    return []
  return [name[len(b'loc:@'):].decode() for name in node.attr['_class'].list.s]
