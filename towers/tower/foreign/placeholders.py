"""Placeholders that a model makes: tensors take their places, as values that a run is fed do.

  def model(batch, is_training):
    net = Net(config)                              # Which calls tf.placeholder.
    return towers.fed({net.x: batch[0], net.keep_prob: 0.9}, net.losses)

What reads a placeholder, such as layers, branches, loops and gradients taken by the class itself,
reads the tensor from then on. The placeholder stays in the graph, and nothing needs it.
"""

import contextlib
from typing import Any, Dict, Iterator, Mapping

from towers.base.usage_error import UsageError
from towers.graph.postponed import find_variable
from towers.graph.source_lines import find_line
from towers.tensorflow_v1 import (
    MAKES_PLACEHOLDERS,
    Tensor,
    replace_tensor,
    replaced,
    stop_waiting,
    tf,
)
from towers.tower.foreign.calls import OWN_GRAPH, is_made_before

# What reads a variable, and what reads a tensor so.
_READS = {'ReadVariableOp': tf.identity, 'ResourceGather': tf.gather,
          'ResourceGatherNd': tf.gather_nd}
# By graph, of which each thread builds its own: the shapes of what placeholders get, by name.
_noted: Dict[Any, Dict[str, Any]] = {}


def fed(feeds: Mapping[Any, Any], returned: Any) -> Any:
  """Returns what a model returns, computed from other values than its placeholders.

  Args:
    feeds: by placeholder a tensor, or what `Session.run` takes for it. A sparse placeholder is one
      key. A variable is one too: what reads it in this call of the model gets the tensor.
    returned: a structure of what a model may return.

  Raises:
    UsageError: a key that is no tensor of this call of the model, or a value that does not fit it.
  """
  instead: Dict[Tensor, Tensor] = {}
  for key, value in feeds.items():
    if not tf.is_tensor(key):
      raise UsageError(f'towers.fed has the key {key!r}: give the placeholder itself, as net.x.')
    is_variable = hasattr(key, 'handle')
    keys, values = ([key], [value]) if is_variable or isinstance(key, tf.Tensor) else (
        tf.nest.flatten(part, expand_composites=True) for part in (key, value))
    line, tensors = find_line(keys[0].op), list(map(_fit, keys, values))
    if is_variable and tensors[0] is not None:
      _give_value(key, tensors[0])
      continue
    if is_made_before(keys[0].op):
      raise UsageError(
          f'The placeholder {key!r}{line}, is none of this call of the model: {OWN_GRAPH}.')
    if len(keys) != len(values) or any(tensor is None for tensor in tensors):
      raise UsageError(
          f'The placeholder {key!r}{line}, gets {value!r} from towers.fed: give it such a tensor. '
          'Where its first size is a number, a tower has its own share of the batch: build the net '
          'for batch[0].shape[0] rows, which is a number with last_batch=drop or carry, or make '
          'that size None.')
    instead.update(zip(keys, tensors))
  for key, tensor in instead.items():
    if key.graph in _noted:
      _noted[key.graph][key.op.name] = tensor.shape
    replace_tensor(key, tensor)
    for op in list(key.op._control_outputs):
      stop_waiting(op, key.op)
  return tf.nest.map_structure(
      lambda value: instead.get(value, value) if isinstance(value, tf.Tensor) else value, returned)


@contextlib.contextmanager
def shaped_as_fed(shapes: Dict[str, Any]) -> Iterator[None]:
  """Notes the shapes of what placeholders get, by name, for another call of the same model.

  There they have these from the beginning: of what is made of one, TensorFlow does not find the
  shapes again when it is replaced.
  """
  graph, known, (module, name) = tf.get_default_graph(), dict(shapes), MAKES_PLACEHOLDERS
  make = getattr(module, name)

  def make_shaped(**settings):
    placeholder = make(**settings)
    if placeholder.graph is graph:  # Another thread may build another program.
      placeholder.set_shape(known.get(placeholder.op.name, placeholder.shape))
    return placeholder

  _noted[graph] = shapes
  try:
    with replaced((module, name, make_shaped)):
      yield
  finally:
    del _noted[graph]


def _give_value(variable, tensor):
  """Gives a tensor to what reads a variable in the call of the model that goes on."""
  graph = tf.get_default_graph()
  for op in graph.get_operations():
    if op.type not in _READS or is_made_before(op) or find_variable(op) is not variable.handle.op:
      continue
    context = op._get_control_flow_context()
    with tf.control_dependencies(None), replaced((graph, '_control_flow_context', context)):
      replace_tensor(op.outputs[0], _READS[op.type](tensor, *op.inputs[1:]))


def _fit(key, value):
  """Returns a value as a tensor of the placeholder's dtype and shape, None for one of another."""
  try:
    tensor = tf.convert_to_tensor(value, None if tf.is_tensor(value) else key.dtype)
  except (TypeError, ValueError):
    return None
  given, wanted = tensor.shape, key.shape
  # A number of rows is compatible with an unknown one.
  has_rows = not (given.ndims and wanted.ndims) or wanted.as_list()[0] in (None, given.as_list()[0])
  if not (has_rows and given.is_compatible_with(wanted)):
    return None
  tensor = tf.cast(tensor, key.dtype)
  return tensor if str(given.merge_with(wanted)) == str(given) else tf.ensure_shape(tensor, wanted)
