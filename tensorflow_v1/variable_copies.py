"""Variables that differ from an earlier one in their name alone, copied from its ops.

TensorFlow makes eight ops or more for a variable, which takes Python milliseconds, and a deep net
has a thousand variables of a few kinds. A copy takes a third of that, and the graph is the same to
the last attribute.
"""

import contextlib
import enum
import functools
import re
import weakref
from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Tuple

from tensorflow.python.framework import ops
from tensorflow.python.ops import init_ops, resource_variable_ops
from tensorflow.python.util import tf_stack

from tensorflow_v1.load import IS_1, tf
from tensorflow_v1.types import Graph, Operation, Variable

# Values whose text says all about them.
_PLAIN = (type(None), bool, int, float, str, tf.DType)
# A scope that ends with a slash is entered again, under the name that it has.
_VALID_NAME = re.compile(r'[A-Za-z0-9.][A-Za-z0-9_.\\/-]*(?<!/)$')
# What of a graph changes ops that are made meanwhile.
_CHANGES_OPS = ('_attr_scope_map', '_op_to_kernel_label_map', '_gradient_override_map',
                '_container', '_default_original_op')


class VariableCopies:
  """Makes variables, and knows those that it has made."""

  def __init__(self):
    """Knows no variable yet."""
    self._originals: Dict[Hashable, _Original] = {}

  def make(self, creator: Callable[..., Variable], settings: Dict[str, Any],
           place: Any = None) -> Variable:
    """Returns `creator(**settings)`, or a copy of an earlier variable that is just that.

    Copied are variables of TensorFlow's own initializers, which depend on nothing but the shape,
    as long as no scope of the user's changes how ops are made.

    Args:
      creator: the `next_creator` of a variable creator, called outside of all name scopes.
      settings: for it, with a name.
      place: a device function that leaves ops where they are if they have a device, or None.
    """
    graph, name = tf.get_default_graph(), settings['name']
    key = _describe(graph, creator, settings, place)
    if key is None:
      return creator(**settings)
    original = self._originals.get(key)
    if original is not None and original.is_free(graph, name):
      with tf.init_scope(), _one_stack():
        return original.copy(graph, name)

    num_ops, num_names = len(graph.get_operations()), len(graph._names_in_use)
    variable = creator(**settings)
    made = _find_original(variable, name, graph.get_operations()[num_ops:],
                          list(graph._names_in_use.items())[num_names:])
    if made is not None:
      self._originals[key] = made
    return variable


def _describe(graph, creator, settings, place) -> Optional[Hashable]:
  """Returns all on which a variable's ops depend but its name, or None where that is unknown."""
  if (type(graph) is not Graph or not _VALID_NAME.match(settings['name'])
      # A creator that stands around all towers has a closure, and TensorFlow's own has none.
      or getattr(creator, '__closure__', creator) is not None
      or settings.get('caching_device') is not None
      or any(getattr(graph, state) for state in _CHANGES_OPS)
      or list(graph._colocation_stack.peek_objs())):
    return None
  devices = [spec._device_name_or_function for spec in graph._device_function_stack.peek_objs()]
  others = [(name, value) for name, value in sorted(settings.items())
            if name not in ('name', 'initial_value')]
  key = _as_key([_describe_initial_value(settings.get('initial_value')), others,
                 tf.get_variable_scope().use_resource,
                 [device for device in devices if device is not place]])
  return key and (graph, key)


def _describe_initial_value(value):
  """Returns the initializer that `tf.get_variable` has bound to its arguments: class and state."""
  if isinstance(value, functools.partial):
    initializer: Any = value.func
    arguments: List[Any] = [value.args, sorted(value.keywords.items())]
  else:
    names = getattr(getattr(value, '__code__', None), 'co_freevars', ())
    if set(names) != {'initializer', 'shape', 'dtype', 'partition_info'}:
      return value
    bound = dict(zip(names, [cell.cell_contents for cell in value.__closure__]))
    initializer, arguments = bound.pop('initializer'), sorted(bound.items())
  kind = type(initializer)
  if getattr(init_ops, kind.__name__, None) is not kind:
    return value
  return [kind.__name__, sorted(vars(initializer).items()), arguments]


def _as_key(value) -> Optional[Hashable]:
  """Returns a key that differs for any two plain values, such as 0.0 and -0.0, else None."""
  if isinstance(value, tf.TensorShape) and value.ndims is not None:
    value = value.as_list()
  if type(value) in (list, tuple):
    keys = tuple(map(_as_key, value))
    return None if None in keys else keys
  if type(value) in _PLAIN or isinstance(value, enum.Enum):
    return type(value).__name__, repr(value)
  return None


def _find_original(variable, name, made, names) -> Optional['_Original']:
  """Returns how to copy a variable, or None where a copy might differ in more than its name.

  Args:
    variable: to copy.
    name: that it was to have.
    made: its ops.
    names: pairs of a name that the graph has taken for it, in lower case, and how often.
  """
  def begins(other, own):
    return other == own or other.startswith(own + '/')

  graph = tf.get_default_graph()
  indices = {op: index for index, op in enumerate(made)}
  if (type(variable) is not resource_variable_ops.ResourceVariable or variable.op.name != name
      or not all(begins(taken, name.lower()) for taken, _ in names)
      or not all(_is_apart(op, indices) and begins(op.name, name) for op in made)
      or not all(_find_element(value, indices) or _as_key(value) and type(value) is not list
                 for value in vars(variable).values())):
    return None
  nodes = [op.node_def for op in made]
  if not all(_is_name_written(node, name) for node in nodes):
    return None
  collections = [key for key in graph.get_all_collection_keys()
                 if variable is (graph.get_collection_ref(key) or [None])[-1]]
  return _Original(
      variable.__class__, dict(vars(variable)), name, indices, nodes,
      [[(indices[tensor.op], tensor.value_index) for tensor in op.inputs] for op in made],
      [(taken[len(name):], times) for taken, times in names], collections)


def _is_apart(op, indices):
  """Returns whether an op takes nothing but the variable's other ops."""
  return (not op.control_inputs and op._get_control_flow_context() is None
          and all(tensor.op in indices for tensor in op.inputs))


def _find_element(value, indices):
  """Returns a tensor's op and output, or an op, by the op's index; None for other values."""
  op = value.op if isinstance(value, tf.Tensor) else value
  if not isinstance(op, tf.Operation) or op not in indices:
    return None
  return indices[op], value.value_index if isinstance(value, tf.Tensor) else None


def _is_name_written(node, name):
  """Returns whether `_write_name` writes all that a node holds of its variable's name."""
  changed = tf.NodeDef()
  changed.CopyFrom(node)
  _write_name(changed, name)
  if changed != node:
    return False
  _write_name(changed, '')
  return not any(name.encode() in value.SerializeToString() for value in changed.attr.values())


def _write_name(node, name):
  """Writes a variable's name into the attributes of a node."""
  if '_class' in node.attr:
    del node.attr['_class'].list.s[:]
    node.attr['_class'].list.s.append(f'loc:@{name}'.encode())
  for key, ending in ('shared_name', ''), ('debug_name', '/'):
    if key in node.attr:
      node.attr[key].s = (name + ending).encode()


class _Original(NamedTuple):
  """A variable to copy.

  Attributes:
    kind: its class.
    attributes: of the object, as TensorFlow made it.
    name: of it.
    indices: its ops, in their order.
    nodes: of the ops, into which each copy writes its name.
    inputs: for each op, for each of its inputs the index of an op and of that op's output.
    suffixes: of the names that the graph takes for it, in lower case, and how often.
    collections: that hold it.
  """
  kind: Any
  attributes: Dict[str, Any]
  name: str
  indices: Dict[Operation, int]
  nodes: List[Any]
  inputs: List[List[Tuple[int, int]]]
  suffixes: List[Tuple[str, int]]
  collections: List[str]

  def is_free(self, graph: Graph, name: str) -> bool:
    """Returns whether a copy gets the names that TensorFlow would give it."""
    return not any(name.lower() + suffix in graph._names_in_use for suffix, _ in self.suffixes)

  def copy(self, graph: Graph, name: str) -> Variable:
    """Returns a copy in the same graph."""
    graph._names_in_use.update((name.lower() + suffix, times) for suffix, times in self.suffixes)
    made: List[Operation] = []
    with graph._mutation_lock():
      for op, node, inputs in zip(self.indices, self.nodes, self.inputs):
        node.name = name + op.name[len(self.name):]
        _write_name(node, name)
        c_op = ops._create_c_op(graph, node,
                                [made[index].outputs[port] for index, port in inputs], [])
        made.append(graph._create_op_from_tf_operation(c_op, compute_device=False))

    names = {self.name: name, self.name + ':0': name + ':0'}
    variable = object.__new__(self.kind)
    for key, value in self.attributes.items():
      element = _find_element(value, self.indices)
      if element is not None:
        index, port = element
        value = made[index] if port is None else made[index].outputs[port]
      elif type(value) is str:
        value = names.get(value, value)
      vars(variable)[key] = value
    self._copy_handle(variable)
    graph.add_to_collections(self.collections, variable)
    return variable

  def _copy_handle(self, variable):
    """Writes what Python knows of a handle."""
    of_original = vars(self.attributes['_handle'])
    if '_handle_data' in of_original:
      variable.handle._handle_data = of_original['_handle_data']
    if '_parent_trackable' in of_original:
      variable.handle._parent_trackable = weakref.ref(variable)
      variable.handle._unique_id = variable._unique_id


@contextlib.contextmanager
def _one_stack():
  """Lets all ops made within the context share one walk up the stack, which 1.14 takes for each."""
  if not IS_1:
    yield
    return
  extract_stack, stack = tf_stack.extract_stack, tf_stack.extract_stack()
  tf_stack.extract_stack = lambda: stack
  try:
    yield
  finally:
    tf_stack.extract_stack = extract_stack
