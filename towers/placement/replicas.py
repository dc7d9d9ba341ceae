"""Replicas: a copy of all weights on every tower's device, and how the copies stay the same.

                tower 0's device                   tower 1's device
  weights       hidden/weights                     copies/tower_1/hidden/weights
  slots         hidden/weights/Momentum            copies/tower_1/hidden/weights/Momentum
  gradient      own ─► all-reduce ─► apply         own ─► all-reduce ─► apply

The first tower's variables are the program's: checkpoints hold them, under names without a tower.
Every step does the same to all replicas. Any other write of a first tower's variable, by an
initializer, a restore or an assignment, also writes its replicas; it may be made at any time, so
each run of a session first looks for new ones:

  RestoreV2 ─┬─► assign copies/tower_1/hidden/weights ─┐ (first)
             └─► assign hidden/weights ◄───────────────┘

Before anything is saved, a check compares all replicas.
"""

import contextlib
import re
import threading
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional

from towers.graph.writes import Write, find_writes
from towers.placement.host import HOST
from towers.tensorflow_v1 import Operation, Tensor, Variable, sessions, tf

# The collection of replicas: not of local variables, whose initializer would undo a restore.
REPLICAS = 'replicas_of_variables'
_REPLICA_SCOPE = 'copies/tower_{}/'
# Of the name of a replica, or of a replica's slot.
IS_REPLICA = re.compile(r'copies/tower_\d+/')
# Bits are compared as integers, since NaN does not equal itself. Of all integers these are compared
# on GPUs by both TensorFlows; int32 would be on the host, and all weights would go there.
_BITS = tf.int16


class Replicas(NamedTuple):
  """The replicas of a program's variables, including slots.

  `same`, `[replicas]` bool, is whether each equals the first tower's variable to the bit. For each
  replica `names` has the name of that variable, and `towers` its tower.
  """
  same: Tensor
  names: List[str]
  towers: List[int]
  variables: List[Variable]


def rounding_alike(is_needed: bool) -> Any:
  """Returns a context for ops whose bits must be the same on every tower and worker.

  XLA does not compile these ops: it would fuse them with others of their tower, and round less.
  """
  return tf.xla.experimental.jit_scope(compile_ops=False) if is_needed else contextlib.nullcontext()


def make_replica(next_creator: Callable[..., Variable], settings: Dict[str, Any],
                 variable: Variable, *, tower: int, device: str) -> Variable:
  """Makes a replica of a variable, with a variable creator's `next_creator` and `settings`."""
  changed = dict(name=_REPLICA_SCOPE.format(tower) + variable.op.name,
                 initial_value=variable.initial_value, trainable=False, collections=[REPLICAS],
                 use_resource=True)
  with tf.device(device), tf.name_scope(None):
    return next_creator(**dict(settings, **changed))


def build_replicas() -> Optional[Replicas]:
  """Finds all replicas in the graph, or None; call it once the train op is built."""
  firsts = {variable.op.name: variable for variable in tf.global_variables()}
  replicas = tf.get_collection(REPLICAS)
  if not replicas:
    return None
  towers, names = zip(*map(_split_name, replicas))
  same = []
  with tf.name_scope('copies'):
    for name, replica in zip(names, replicas):
      with tf.device(replica.device):
        value = firsts[name].read_value()
        same.append(tf.reduce_all(tf.equal(_bits(replica.read_value()), _bits(value))))
    with tf.device(HOST):
      return Replicas(tf.stack(same), list(names), list(towers), replicas)


def _split_name(replica):
  """Returns the index of a replica's tower, and the name of the first tower's variable."""
  _, tower, name = replica.op.name.split('/', 2)
  return int(tower.split('_')[1]), name


def follow_writes(step_ops: Iterable[Operation]) -> None:
  """Makes every write of a variable write its replicas too, but for those of `step_ops`.

  Call it once all replicas are made. A write inside of a branch, a loop or a function cannot be
  repeated for the replicas: it fails when it runs.
  """
  _Followed(tf.get_default_graph(), step_ops)


class _Followed:
  """A graph in which replicas follow all writes of their variables."""

  def __init__(self, graph, step_ops):
    self._graph = graph
    self._known = set(step_ops)
    self._version = None
    self._lock = threading.Lock()
    self._replicas: Dict[Operation, List[Variable]] = {}
    for replica in graph.get_collection(REPLICAS):
      first = graph.get_operation_by_name(_split_name(replica)[1])
      self._replicas.setdefault(first, []).append(replica)
    self.follow()
    sessions.before_each_run(graph, self.follow)

  def follow(self):
    """Makes the replicas follow the writes that are new in the graph."""
    with self._lock:
      if self._graph.version != self._version:
        with self._open_graph():
          for write in find_writes(self._graph, self._replicas):
            if write.op not in self._known:
              self._known.add(write.op)
              self._follow(write)
        self._version = self._graph.version

  @contextlib.contextmanager
  def _open_graph(self):
    """Opens the graph for new ops, though finalized, outside of all the caller's contexts."""
    graph = self._graph
    is_finalized = graph.finalized
    if is_finalized:
      graph._unsafe_unfinalize()
    try:
      with graph.as_default(), tf.init_scope(), tf.name_scope('copies/follow/'):
        yield
    finally:
      if is_finalized:
        graph.finalize()

  def _follow(self, write: Write):
    op, first = write.op, write.variables[0]
    handle = first.outputs[0]
    takes_handle = any(value is handle for value in op.inputs)
    is_plain = takes_handle and not op.outputs and op._get_control_flow_context() is None
    if not is_plain:
      message = (f'The op {op.name} writes the variable {first.name}, of which every tower has a '
                 'replica, in a branch, a loop or a function, where the replicas cannot follow: '
                 'assign it outside, or use variables=host, first or balanced.')
      with tf.device(HOST):
        write.wait_for(tf.raw_ops.Assert(condition=tf.constant(False), data=[message]))
      return
    attributes = {name: value for name, value in op.node_def.attr.items() if name != '_class'}
    for replica in self._replicas[first]:
      with tf.device(replica.device), tf.control_dependencies(op.control_inputs):
        inputs = [replica.handle if value is handle else value for value in op.inputs]
        op._add_control_input(self._graph.create_op(
            op.type, inputs, [], attrs=attributes, op_def=op.op_def, name=op.type))


def _bits(value):
  is_whole = value.dtype.is_integer or value.dtype.is_bool
  return value if is_whole and value.dtype != tf.int32 else tf.bitcast(value, _BITS)
