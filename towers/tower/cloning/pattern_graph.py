"""The graph of a pattern: the nodes of a tower that its clones need, in a form to import."""

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
    """Adds nodes of a tower, in the order of the `whole` GraphDef.

    The model has not placed ops `on_device`; of variables `replicated` later towers have replicas.
    """
    inside = {node.name for node in nodes}
    self.names = Names([node.name for node in nodes], scope)
    self.definition = tf.GraphDef(versions=whole.versions)
    self.placed: List[Any] = []
    self.beside_batch: List[Any] = []
    self.frames: List[Any] = []
    self.control_inputs: Dict[str, List[str]] = {}

    placed = _find_placed(nodes, on_device, replicated)
    of_batch = {group[len(b'loc:@'):].decode() for tensor in batch.flatten()
                if isinstance(tensor, tf.Tensor) for group in tensor.op.colocation_groups()}
    for original in nodes:
      node, partners = self.definition.node.add(), _get_partners(original)
      node.CopyFrom(original)
      node.name = self.names.get_op(original.name)
      del node.input[:]
      for name in original.input:
        if name.startswith('^') and name[1:] not in inside:
          self.control_inputs.setdefault(node.name, []).append(name[1:])
        else:
          node.input.append(self.names.get_input(name))
      node.attr.pop('_class', None)
      kept = [f'loc:@{self.names.get_op(name)}'.encode() for name in partners if name in inside]
      if kept:
        node.attr['_class'].list.s.extend(kept)
      if original.name in placed:
        self.placed.append(node)
      # A TensorArray is unpacked beside the batch that fills it.
      if not of_batch.isdisjoint(partners):
        self.beside_batch.append(node)
      if 'frame_name' in node.attr:
        self.frames.append((node, node.attr['frame_name'].s.decode()))


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
