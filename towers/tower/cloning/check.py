"""What cannot be cloned, since the clone would differ from the tower that the model builds.

  ops outside of the scope    that take the tower's batch: all clones would share them
  state that the model makes  such as a lookup table: the ops that fill it are not cloned
  Python functions            such as tf.py_func: all clones would share what one remembers
"""

import itertools
from typing import Any, Collection, Dict, Iterable, Set

from towers.base.usage_error import UsageError
from towers.graph.walk import walk, walk_called
from towers.tensorflow_v1 import tf

# Their state lasts no longer than a step, in which a clone fills its own.
_WITHIN_A_STEP = {'TensorArray', 'TensorArrayV2', 'TensorArrayV3', 'Stack', 'StackV2'}
_CALLS_PYTHON = {'PyFunc', 'EagerPyFunc'}


def get_op_name(name: str) -> str:
  """Returns the op's name from a node's input: 'op', 'op:1' or '^op'."""
  return name.lstrip('^').split(':')[0]


def reach_back(roots: Iterable[str], nodes: Dict[str, Any], within: Set[str]) -> Set[str]:
  """Returns the names, of those `within`, that the roots are computed from, with the roots."""
  return set(walk(roots, lambda name: map(get_op_name, nodes[name].input), within))


def check_scope(roots: Iterable[str], inside: Set[str], *, nodes: Dict[str, Any], made: Set[str],
                batch: Collection[str]) -> None:
  """Raises UsageError for an op that clones would share, but that the tower's batch makes.

  Of the graph's `nodes`, by name, a tower has `made` some, and those `inside` are cloned; `roots`
  are those of its results, and `batch` those of its batch.
  """
  taken = {get_op_name(source) for name in inside for source in nodes[name].input}
  for name in sorted(reach_back(taken.union(roots), nodes, made - inside)):
    if any(source in batch or source in inside for source in map(get_op_name, nodes[name].input)):
      raise UsageError(f'The model makes the op {name} outside of the name scope that it is called '
                       'in, from its batch: clones of the tower would share it. Leave out '
                       'tf.name_scope(None) or a name scope that ends with a slash.')


def check_state(inside: Iterable[str], nodes: Dict[str, Any]) -> None:
  """Raises UsageError for a cloned op whose state others of its tower set, or that calls Python."""
  graph = tf.get_default_graph()
  holds_state = dict.fromkeys(_WITHIN_A_STEP, False)
  for name in sorted(inside):
    kind = nodes[name].op
    if kind not in holds_state:
      holds_state[kind] = _makes_handle(graph.get_operation_by_name(name).op_def)
    if holds_state[kind]:
      raise UsageError(f'The op {name} ({kind}) of the model holds what other ops have set, as a '
                       'lookup table does, and clones of the tower leave these ops out.')
    called = itertools.chain([kind], (inner.op for _, inner in walk_called(graph, nodes[name])))
    for found in filter(_CALLS_PYTHON.__contains__, called):
      raise UsageError(f'The op {name} ({found}) of the model calls a Python function, which '
                       'clones of the tower would share, with all that it remembers. If that is '
                       'nothing, write tf.py_func(…, stateful=False).')


def _makes_handle(op_def):
  """Returns whether ops return a handle, of a resource or a ref, that they do not take."""
  def is_handle(argument):
    return argument.is_ref or argument.type == tf.resource.as_datatype_enum

  return any(map(is_handle, op_def.output_arg)) and not any(map(is_handle, op_def.input_arg))
