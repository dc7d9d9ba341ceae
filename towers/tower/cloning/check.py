"""What cannot be cloned, since the clone would differ from the tower that the model builds.

  state that the model makes  such as a lookup table: the ops that fill it are not cloned
  Python functions            such as tf.py_func: all clones would share what one remembers
"""

import itertools
from typing import Any, Sequence

from towers.base.usage_error import UsageError
from towers.graph.walk import walk_called
from towers.tensorflow_v1 import Operation, tf

# Their state lasts no longer than a step, in which a clone fills its own.
_WITHIN_A_STEP = {'TensorArray', 'TensorArrayV2', 'TensorArrayV3', 'Stack', 'StackV2'}
_CALLS_PYTHON = {'PyFunc', 'EagerPyFunc'}


def check_state(ops: Sequence[Operation], nodes: Sequence[Any]) -> None:
  """Raises UsageError for a cloned op whose state others of its tower set, or that calls Python."""
  holds_state = dict.fromkeys(_WITHIN_A_STEP, False)
  for op, node in zip(ops, nodes):
    if op.type not in holds_state:
      holds_state[op.type] = _makes_handle(op.op_def)
    if holds_state[op.type]:
      raise UsageError(f'The op {op.name} ({op.type}) of the model holds what other ops have set, '
                       'as a lookup table does, and clones of the tower leave these ops out.')
    called = itertools.chain([op.type], (inner.op for _, inner in walk_called(op.graph, node)))
    for found in filter(_CALLS_PYTHON.__contains__, called):
      raise UsageError(f'The op {op.name} ({found}) of the model calls a Python function, which '
                       'clones of the tower would share, with all that it remembers. If that is '
                       'nothing, write tf.py_func(…, stateful=False).')


def _makes_handle(op_def):
  """Returns whether ops return a handle, of a resource or a ref, that they do not take."""
  def is_handle(argument):
    return argument.is_ref or argument.type == tf.resource.as_datatype_enum

  return any(map(is_handle, op_def.output_arg)) and not any(map(is_handle, op_def.input_arg))
