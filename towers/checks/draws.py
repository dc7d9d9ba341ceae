"""Draws: the random numbers of a tower, taken without moving the state of any generator."""

import re
from typing import Any, List, Sequence

from tensorflow_v1 import Operation, Tensor, tf
from towers.placement.randomness import find_unseedable

_STATELESS = re.compile(r'Stateless(Random(?!Get)|Truncated|Parameterized|Multinomial|Shuffle)')


def find_draws(ops: Sequence[Operation]) -> List[Operation]:
  """Returns the ops that draw random numbers which other ops use.

  No op uses those of an op whose stateless twin has taken its place.
  """
  return [op for op in ops if (_STATELESS.match(op.type) or has_state(op))
          and any(output.consumers() for output in op.outputs)]


def has_state(op: Operation) -> bool:
  """Returns whether an op draws by a state of its own, which it moves."""
  names = op.op_def.attr if op.op_def.is_stateful else ()
  return {'seed', 'seed2'} <= {attribute.name for attribute in names}


def find_numbers(op: Operation) -> Tensor:
  """Returns what a stateless op draws, cut to the rows of its tower."""
  [tensor] = op.outputs
  while len(tensor.consumers()) == 1 and tensor.consumers()[0].type in ('Slice', 'StridedSlice',
                                                                       'Reshape'):
    tensor = tensor.consumers()[0].outputs[0]
  return tensor


def find_unfed(ops: Sequence[Operation]) -> str:
  """Describes a draw of which no run can be given the numbers, in a loop or a function; or ''."""
  for op in ops:
    context = op._get_control_flow_context()
    in_loop = context is not None and context.GetWhileContext() is not None
    if in_loop and find_draws([op]):
      return f'{op.name} draws in a loop'
    if find_unseedable(op):
      return f'{op.name} draws in a function'
  return ''


def draw(op: Operation, inputs: Sequence[Any]) -> List[Any]:
  """Returns what an op draws from these inputs, in a graph beside its own."""
  node = tf.NodeDef()
  node.CopyFrom(op.node_def)
  node.name, node.device = 'draw', ''
  del node.input[:]
  node.attr.pop('_class', None)
  with tf.Graph().as_default() as graph:
    fed = [tf.constant(value, tensor.dtype) for value, tensor in zip(inputs, op.inputs)]
    node.input.extend(tensor.op.name for tensor in fed)
    definition = graph.as_graph_def()
    definition.node.extend([node])
  with tf.Graph().as_default() as graph:
    tf.import_graph_def(definition, name='')
    with tf.Session(config=tf.ConfigProto(device_count={'GPU': 0})) as session:
      return session.run(list(graph.get_operation_by_name('draw').outputs))
