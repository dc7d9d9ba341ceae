"""Ops of which the targets differ, and gradients that they lack or get wrong."""

import collections
import contextlib
import inspect
import sys
import threading
import weakref
from typing import Any, Callable, ContextManager, Iterator, List, Tuple

from tensorflow.python.ops import (
    control_flow_ops,
    control_flow_util,
    gen_array_ops,
    gen_resource_variable_ops,
    gradients_util,
    math_ops,
)

from towers.tensorflow_v1.load import IS_1, tf
from towers.tensorflow_v1.types import Graph, Operation, Tensor

if IS_1:
  from tensorflow.python.ops import control_flow_ops as control_flow_state
else:
  from tensorflow.python.ops import control_flow_state

# A constant keeps its memory on the device, and an op in its place is launched in each step.
_LARGEST_CONSTANT = 1 << 20
_REPLACING = threading.RLock()
# Modules of Keras that count by graph the layers of each name, and what they had counted when a
# model was first called in a graph.
_KERAS = ('tensorflow.python.keras.backend',) if IS_1 else (
    'tf_keras.src.backend', 'keras.src.backend')
_first_counts: Any = weakref.WeakKeyDictionary()
MAKES_PLACEHOLDERS = gen_array_ops, 'placeholder'  # Where tf.placeholder looks up what it calls.


def select(flag: Tensor, tensor: Tensor, number: float) -> Tensor:
  """Returns `tensor` where the scalar bool `flag` is true, else `number` in its place.

  Nothing of the tensor, such as NaN, gets into what is returned for false.
  """
  tensor = tf.convert_to_tensor(tensor)
  if not IS_1:
    return tf.raw_ops.SelectV2(condition=flag, t=tensor, e=tf.constant(number, tensor.dtype))
  # Its select takes two tensors of one shape.
  size = tensor.shape.num_elements()
  if size is not None and size <= _LARGEST_CONSTANT:
    no = tf.constant(number, tensor.dtype, tensor.shape)
  else:
    no = tf.fill(tf.shape(tensor), tf.constant(number, tensor.dtype))
  return tf.raw_ops.Select(condition=flag, x=tensor, y=no)


@contextlib.contextmanager
def replaced(*names: Tuple[Any, str, Any]) -> Iterator[None]:
  """Gives modules or objects other attributes within the context: (owner, name, value) of each.

  They are those of all threads, so that another thread that replaces any waits for its end.
  """
  with _REPLACING, contextlib.ExitStack() as undo:
    for owner, name, value in names:
      before = getattr(owner, name)
      # A method of the owner's class, not what another context has put in its place.
      if hasattr(type(owner), name) and not inspect.isfunction(before):
        undo.callback(delattr, owner, name)
      else:
        undo.callback(setattr, owner, name, before)
      setattr(owner, name, value)
    yield


@contextlib.contextmanager
def naming_layers(graph: Graph) -> Iterator[None]:
  """Lets Keras name the layers that a model makes, and their variables, as in its first call in a
  graph."""
  of_graphs = [vars(sys.modules[name]).get('PER_GRAPH_OBJECT_NAME_UIDS', {})
               for name in _KERAS if name in sys.modules] or [{}]
  counts = of_graphs[0].setdefault(graph, collections.defaultdict(int))
  before = dict(counts)
  counts.clear()
  counts.update(_first_counts.setdefault(graph, before))
  try:
    yield
  finally:
    for name, count in before.items():
      counts[name] = max(count, counts[name])


def control_flow_v1() -> ContextManager[None]:
  """Lets `tf.cond` and `tf.while_loop` make ops of the graph, never functions, and mends gradients
  of what their branches read; a context."""
  mended: List[Tuple[Any, str, Any]] = [(math_ops, '_as_indexed_slices_list', _list_rows)]
  if IS_1:  # 2.x has these zeros.
    mended.append((control_flow_state.ControlFlowState, 'ZerosLike', _make_zeros))
  return replaced((control_flow_util, 'ENABLE_CONTROL_FLOW_V2', False), *mended)


def loops_keeping(size: int) -> ContextManager[None]:
  """Lets variables of loops keep axes of a size that `shape_invariants` leave open; a context."""
  build = control_flow_ops.WhileContext.BuildLoop

  def fill(variable, shape):
    own = variable.shape if tf.is_tensor(variable) else tf.TensorShape(None)
    if None in (own.ndims, shape.ndims):
      return shape
    return tf.TensorShape([before if given is None and before == size else given
                           for before, given in zip(own.as_list(), shape.as_list())])

  def build_loop(loop, condition, body, variables, invariants, *others):
    if invariants is not None:
      invariants = tf.nest.map_structure(fill, variables, invariants)
    return build(loop, condition, body, variables, invariants, *others)

  return replaced((control_flow_ops.WhileContext, 'BuildLoop', build_loop))


def dense_where_mixed() -> ContextManager[None]:
  """Lets the gradient of a table that is also read as a whole be dense, as on 2.x; a context.

  1.14 adds all rows of the table to those that are looked up: of several towers, several times.
  """
  if not IS_1:
    return contextlib.nullcontext()
  aggregate = gradients_util._AggregateIndexedSlicesGradients

  def add_up(gradients):
    if any(isinstance(gradient, tf.Tensor) for gradient in gradients):
      return tf.add_n([_as_dense(gradient) for gradient in gradients if gradient is not None])
    return aggregate(gradients)

  return replaced((gradients_util, '_AggregateIndexedSlicesGradients', add_up))


def _as_dense(gradient):
  if isinstance(gradient, tf.Tensor):
    return gradient
  return tf.unsorted_segment_sum(gradient.values, gradient.indices, gradient.dense_shape[0])


def without_zeros(is_left_out: Callable[[Operation], Any]) -> ContextManager[None]:
  """Gives gradients of some ops None, not an op of zeros, for outputs without one; a context.

  A layer of batch normalisation has five such outputs, of which no gradient reads the zeros.
  """
  name = 'ZerosLikeOutsideLoop' if IS_1 else 'ZerosLike'
  make = getattr(control_flow_state, name)
  return replaced((control_flow_state, name,
                   lambda op, port: None if is_left_out(op) else make(op, port)))


def _differentiate_gather_nd(op, grad):
  """Returns the gradients of `tf.gather_nd` of a variable; whole rows of it are sparse."""
  variable, indices = op.inputs
  shape = gen_resource_variable_ops.variable_shape(variable, out_type=indices.dtype)
  if indices.shape.ndims == 2 and indices.shape.as_list()[1] == 1:
    return tf.IndexedSlices(grad, tf.squeeze(indices, 1), shape), None
  return tf.scatter_nd(indices, grad, shape), None


with contextlib.suppress(KeyError):  # 2.x has it.
  tf.RegisterGradient('ResourceGatherNd')(_differentiate_gather_nd)


def _make_zeros(state, op, port):
  """Returns what a branch in a loop, which the loop did not take, adds to a gradient."""
  loop = state._map.get(control_flow_state._GetWhileContext(op))
  if (op.outputs[port].dtype != tf.resource or loop is None
      or not control_flow_util.IsCondSwitch(op)):
    return _make_other_zeros(state, op, port)
  variable, context = op, op._get_control_flow_context()
  while variable.type != 'VarHandleOp':
    variable = variable.inputs[0].op
  zeros = tf.zeros(tf.TensorShape(variable.get_attr('shape')), variable.get_attr('dtype'))
  pred = loop.history_map.get(context.pred.name)
  return tf.raw_ops.Switch(data=zeros, pred=pred)[1 - context.branch]


def _list_rows(gradients, optimize=True):
  """Returns gradients as rows, where they are those of branches all parts dead with their values.

  TensorFlow's places of rows that a branch looks up may come from outside of it, and then those of
  a branch that is not taken would be merged with the rows of the other one.
  """
  rows = _list_other_rows(gradients, optimize)
  return rows if optimize else [_tie(row) for row in rows]


def _tie(rows):
  values = tf.identity(rows.values)
  with tf.control_dependencies([values]):
    return tf.IndexedSlices(values, tf.identity(rows.indices), rows.dense_shape)


_list_other_rows = math_ops._as_indexed_slices_list
_make_other_zeros: Any = IS_1 and control_flow_state.ControlFlowState.ZerosLike
