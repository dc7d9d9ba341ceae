"""A recording: the graph before a tower is built, and what its device function places."""

from typing import Callable, Dict, List, NamedTuple, Set

from towers.placement.host import HOST, is_gpu
from towers.tensorflow_v1 import Operation, tf


class Recording(NamedTuple):
  """The state of the graph before a tower is built.

  Attributes:
    device: of the tower.
    place: for `tf.device`: gives the tower's device to every op without a device of its own.
    on_device: the names of these ops.
    num_ops: the number of ops before.
    sizes: the sizes of all collections before.
  """
  device: str
  place: Callable[[Operation], str]
  on_device: Set[str]
  num_ops: int
  sizes: Dict[str, int]

  def take(self, op: Operation) -> None:
    """Places an op on the tower's device, wherever TensorFlow has put it."""
    op._clear_attr('_class')
    op._set_device('')
    op._set_device(self.place(op))

  def take_values(self, begin: int = 0) -> None:
    """Takes what TensorFlow puts beside the op of a value: for a variable's, on its device.

    These are stacks that the gradients of a loop need, what brings values there, and the shapes of
    rows that are read. The first `begin` ops stay.
    """
    ops = self.list_ops()
    lookups = {b'loc:@' + op.name.encode() for op in ops if op.type.startswith('ResourceGather')}
    if not (lookups or _has_stack(ops)):  # To ask each op for its groups takes long.
      return
    for op in ops[begin:]:
      if (any(b'ReadVariableOp' in group or group in lookups for group in op.colocation_groups())
          or op.type == 'Shape' and op.inputs[0].op.type == 'ResourceGather'):
        self.take(op)

  def take_stacks(self) -> None:
    """Does so for the gradients that a model takes itself, where a loop is among them."""
    if _has_stack(self.list_ops()):
      self.take_values()

  def list_ops(self) -> List[Operation]:
    """Returns the ops that were made since."""
    return tf.get_default_graph().get_operations()[self.num_ops:]


def record_tower(device: str) -> Recording:
  """Begins to record a tower on `device`."""
  graph = tf.get_default_graph()
  on_device: Set[str] = set()

  def place(op):
    if op.device:
      return op.device
    if is_gpu(device) and op.name.endswith('/pred_id'):
      # Switches take a branch's predicate from the host, each with a copy of its own.
      return HOST
    on_device.add(op.name)
    return device

  return Recording(
      device, place, on_device, len(graph.get_operations()),
      {key: len(graph.get_collection_ref(key)) for key in graph.get_all_collection_keys()})


def _has_stack(ops):
  return any(op.type == 'StackV2' for op in ops)
