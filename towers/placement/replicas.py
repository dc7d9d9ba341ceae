"""Replicas: a copy of all weights on every tower's device, and how all copies stay the same.

                tower 0's device                   tower 1's device
  weights       hidden/weights                     copies/tower_1/hidden/weights
  slots         hidden/weights/Momentum            copies/tower_1/hidden/weights/Momentum
  gradient      own ─► all-reduce ─► apply         own ─► all-reduce ─► apply

The first tower's are the program's variables, which checkpoints hold under names without a tower.
Every step does the same to all copies. Whatever else writes a first tower's variable, an
initializer, a restore or an assignment of one's own, writes its copies too:

  RestoreV2 ─┬─► assign copies/tower_1/hidden/weights ─┐ (first)
             └─► assign hidden/weights ◄───────────────┘

Such ops may be made at any time, so each run of a session looks for new ones before it begins. That
all copies are the same is checked before anything is saved.
"""

import contextlib
import re
import threading
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional

from tensorflow_v1 import before_each_run, tf
from towers.graph.writes import Write, find_writes
from towers.placement.host import HOST

# The collection of the copies. They are not among the local variables: what initializes those in a
# run with a restore would undo it.
REPLICAS = 'replicas_of_variables'
_COPY = 'copies/tower_%d/'
_IS_COPY = re.compile(r'copies/tower_\d+/')
# Bits are compared as whole numbers of the same size: no number is equal to nan.
_WHOLE = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}


class Replicas(NamedTuple):
  """The copies of a program's variables.

  Attributes:
    same: `[copies]` bool, whether each is the first tower's to the bit.
    names: for each copy the name of the variable.
    towers: for each copy its tower.
    variables: the copies, slots included.
  """
  same: Any
  names: List[str]
  towers: List[int]
  variables: List[Any]


def rounding_alike(is_needed: bool) -> Any:
  """Returns a context for ops that must give the same bits on every tower and worker: XLA leaves
  them alone.

  What it compiles it rounds less often, and it compiles a tower's ops together with whatever stands
  beside them there.
  """
  return tf.xla.experimental.jit_scope(compile_ops=False) if is_needed else contextlib.nullcontext()


def make_replica(next_creator: Callable[..., Any], settings: Dict[str, Any], variable: Any, *,
                 tower: int, device: str) -> Any:
  """Makes a copy of a variable; for a variable creator, which got `next_creator` and `settings`."""
  with tf.device(device), tf.name_scope(None):
    return next_creator(**dict(settings, name=_COPY % tower +
                               variable.op.name, initial_value=variable.initial_value,
                               trainable=False, collections=[REPLICAS]))


def slot_creator(next_creator: Callable[..., Any], **settings: Any) -> Any:
  """Makes an optimizer's variable; what it keeps for a copy is a copy too. For
  `tf.variable_creator_scope`.
  """
  if _IS_COPY.match(settings.get('name') or ''):
    settings['collections'] = [REPLICAS]
  return next_creator(**settings)


def build_replicas() -> Optional[Replicas]:
  """Finds all copies in the graph, once the train op is built; None where variables are shared."""
  firsts = {variable.op.name: variable for variable in tf.global_variables()}
  copies = tf.get_collection(REPLICAS)
  if not copies:
    return None
  towers, names = zip(*map(_split_name, copies))
  same = []
  with tf.name_scope('copies'):
    for name, copy in zip(names, copies):
      with tf.device(copy.device):
        value = firsts[name].read_value()
        same.append(tf.reduce_all(tf.equal(_bits(copy.read_value()), _bits(value))))
    with tf.device(HOST):
      return Replicas(tf.stack(same), list(names), list(towers), copies)


def _split_name(copy):
  """Returns the index of a copy's tower, and the name of the first tower's variable."""
  _, tower, name = copy.op.name.split('/', 2)
  return int(tower.split('_')[1]), name


def follow_writes(step_ops: Iterable[Any]) -> None:
  """Has every write to a variable that has copies write these too; call it once all copies are
  made.

  A write that cannot be repeated for the copies, in a branch, a loop or a function, fails when it
  runs.

  Args:
    step_ops: the ops of a step, which write variables and copies alike.
  """
  _Followed(tf.get_default_graph(), step_ops)


class _Followed:
  """A graph whose writes copies follow."""

  def __init__(self, graph, step_ops):
    self._graph = graph
    self._known = set(step_ops)
    self._version = None
    self._lock = threading.Lock()
    self._copies: Dict[Any, List[Any]] = {}
    for copy in graph.get_collection(REPLICAS):
      first = graph.get_operation_by_name(_split_name(copy)[1])
      self._copies.setdefault(first, []).append(copy)
    self.follow()
    before_each_run(graph, self.follow)

  def follow(self):
    """Has the copies follow the writes that are new in the graph."""
    with self._lock:
      if self._graph.version != self._version:
        with self._open_graph():
          for write in find_writes(self._graph, self._copies):
            if write.op not in self._known:
              self._known.add(write.op)
              self._follow(write)
        self._version = self._graph.version

  @contextlib.contextmanager
  def _open_graph(self):
    """Opens the graph outside of all that surrounds the caller, though it may be finalized."""
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
    is_plain = not op.outputs and op._get_control_flow_context() is None and any(
        value is handle for value in op.inputs)
    if not is_plain:
      message = (f'The op {op.name} writes the variable {first.name}, of which every tower has a '
                 'copy, in a branch, '
                 'a loop or a function, where the copies cannot follow: assign it outside, or use '
                 'variables=host, '
                 'first or balanced.')
      with tf.device(HOST):
        write.wait_for(tf.raw_ops.Assert(condition=tf.constant(False), data=[message]))
      return
    for copy in self._copies[first]:
      with tf.device(copy.device), tf.control_dependencies(op.control_inputs):
        attributes = {name: value for name, value in op.node_def.attr.items() if name != '_class'}
        inputs = [copy.handle if value is handle else value for value in op.inputs]
        op._add_control_input(self._graph.create_op(
            op.type, inputs, [], attrs=attributes, op_def=op.op_def, name=op.type))


def _bits(value):
  return value if value.dtype.is_integer or value.dtype.is_bool else tf.bitcast(
      value, _WHOLE[value.dtype.size])
