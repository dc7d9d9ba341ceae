"""Slots: an optimizer's variables for each weight, such as momenta, made all at once.

An optimizer makes one slot after the other, which takes Python milliseconds each; a deep net has a
thousand. Here it only lists the slots of zeros that it wants, and one GraphDef imports all their
ops, with the same names, devices and initial values.

An optimizer of somebody's own may make variables in `apply_gradients` instead, see `SlotCreator`.
"""

import contextlib
from typing import Any, Callable, Collection, Dict, Iterator, List, Sequence, Tuple

from towers.base.usage_error import UsageError
from towers.graph.source_lines import format_op
from towers.graph.walk import find_needed, sort
from towers.placement.replicas import IS_REPLICA, REPLICAS
from towers.reduce.gradients import ReducedGradients
from towers.tensorflow_v1 import Optimizer, Tensor, Variable, import_placed, replaced, tf

# Begins the name of the collection of what a group's optimizer has made.
MADE = 'made_by_optimizer_of/'


@contextlib.contextmanager
def noting_made(names: Collection[str]) -> Iterator[None]:
  """Opens a context that notes the variables made there: by the optimizer of these `names`."""
  num_others = len(tf.global_variables())
  yield
  for variable in tf.global_variables()[num_others:]:
    tf.add_to_collection(MADE + min(names), variable)


def make_slots(optimizer: Optimizer, variables: Sequence[Variable]) -> None:
  """Makes the slots of variables that start with zeros; `apply_gradients` makes all others."""
  asked: List[Tuple[Variable, str, str]] = []
  with tf.init_scope(), replaced((optimizer, '_zeros_slot', lambda *slot: asked.append(slot))):
    optimizer._create_slots(list(variables))
  if not asked:
    return

  names = []
  for variable, _, name in asked:
    # For the name alone, which TensorFlow makes unique.
    with tf.variable_scope(None, f'{variable.op.name}/{name}') as scope:
      names.append(scope.name)
  graph_def = tf.GraphDef()
  graph_def.versions.producer = tf.get_default_graph().graph_def_versions.producer
  constants: Dict[Any, str] = {}
  for (variable, _, _), name in zip(asked, names):
    _add_zeros(graph_def, name, variable, constants)
  with tf.init_scope():
    import_placed(graph_def, name='', input_map={}, return_elements=[])

  for (variable, slot, _), name in zip(asked, names):
    definition = variable.to_proto()
    definition.trainable = False
    definition.variable_name, definition.initializer_name = name + ':0', name + '/Assign'
    definition.snapshot_name = name + '/Read/ReadVariableOp:0'
    definition.initial_value_name = name + '/Initializer/zeros:0'
    if definition.HasField('save_slice_info_def'):  # The slot is cut as its variable is.
      definition.save_slice_info_def.full_name += name[len(variable.op.name):]
    made = type(variable).from_proto(definition)
    tf.add_to_collection(tf.GraphKeys.GLOBAL_VARIABLES, made)
    optimizer._slot_dict(slot)[variable.op.graph, variable.op.name] = made


def _add_zeros(graph_def, name, variable, constants):
  """Adds a variable of zeros with the shape, dtype and device of `variable`.

  Equal `constants` are one, and nobody asks TensorFlow whether a slot has a value.
  """
  dtype, shape = variable.dtype.base_dtype, variable.shape

  def add(op, suffix, *inputs, **attributes):
    node = graph_def.node.add(name=name + suffix, op=op, input=inputs, device=variable.device)
    for key, value in attributes.items():
      node.attr[key].CopyFrom(value)
    return node.name

  def constant(suffix, value, dtype, shape):
    key = variable.device, dtype, str(value)
    if key not in constants:
      constants[key] = add('Const', suffix, dtype=tf.AttrValue(type=dtype.as_datatype_enum),
                           value=tf.AttrValue(tensor=tf.make_tensor_proto(value, dtype, shape)))
    return constants[key]

  type_of = tf.AttrValue(type=dtype.as_datatype_enum)
  add('VarHandleOp', '', dtype=type_of, shape=tf.AttrValue(shape=shape.as_proto()),
      shared_name=tf.AttrValue(s=name.encode()))
  zeros = add('Fill', '/Initializer/zeros',
              constant('/Initializer/shape', shape.as_list(), tf.int32, [shape.ndims]),
              constant('/Initializer/zero', 0, dtype, []), T=type_of,
              index_type=tf.AttrValue(type=tf.int32.as_datatype_enum))
  add('AssignVariableOp', '/Assign', name, zeros, dtype=type_of)
  add('ReadVariableOp', '/Read/ReadVariableOp', name, dtype=type_of)


class SlotCreator:
  """A variable creator for `apply_gradients`: makes an optimizer's variables.

  All ops there wait for the step, of which no initial value can be computed: that of
  `tf.Variable(weight * 0)` is computed anew, from the initial value of the weight.
  """

  def __init__(self, reduced: ReducedGradients, *, of_replicas: bool):
    """Takes the gradients, in the name scope of their update; replicas may have slots too."""
    self._graph = tf.get_default_graph()
    self._scope = self._graph.get_name_scope() + '/'
    self._towers = reduced.towers
    weights = reduced.gradients if reduced.replicas and of_replicas else ()
    self._weights = tuple(f'{weight.op.name}/' for _, weight in weights)

  def __call__(self, next_creator: Callable[..., Variable], **settings: Any) -> Variable:
    """Makes a variable, a replica if it is a replica's slot."""
    settings.update(trainable=False, use_resource=True)
    if IS_REPLICA.match(settings.get('name') or ''):
      settings['collections'] = [REPLICAS]
    value = settings.get('initial_value')
    if isinstance(value, tf.Tensor):
      settings['initial_value'] = self._compute_anew(value)
    variable = next_creator(**settings)
    name = variable.op.name
    # One of no dimensions, such as a count, may be for all.
    if self._weights and variable.shape.ndims and not (
        IS_REPLICA.match(name) or name.startswith(self._weights)):
      raise UsageError(
          f'The optimizer makes the variable {format_op(variable.op)}, in apply_gradients, under a '
          'name that does not say of which weight it is, and every tower has a replica of each '
          "weight: name it after its weight, as tf.get_variable(weight.op.name + '/m', "
          'weight.shape, initializer=tf.zeros_initializer()), or use variables=host, first or '
          'balanced.')
    return variable

  def _compute_anew(self, value: Tensor) -> Tensor:
    """Returns an initial value without what it waits for, of variables' initial values."""
    needed = find_needed([value.op], by_control=False)
    if any(tf.is_tensor(tensor) and tensor.op in needed
           for tower in self._towers for tensor in tower.batch.flatten()):
      raise UsageError(
          f'The initial value {format_op(value.op)}, of a variable that the optimizer makes in '
          'apply_gradients, is computed from the examples of a batch, and there is none yet when '
          'variables get their values: start it from tf.zeros(weight.shape).')
    anew: Dict[Tensor, Tensor] = {}
    with tf.init_scope():
      for op in sort({op for op in needed if op.name.startswith(self._scope)}):
        if op.type == 'Merge' and any(
            other.type == 'VarIsInitializedOp' for other in find_needed([op], by_control=False)):
          anew[op.outputs[0]] = anew[op.inputs[1]]  # Of `initialized_value`, what it has read.
          continue
        if op.type == 'ReadVariableOp':
          [handle] = op.inputs
          if handle.op.type == 'Switch':  # In a branch.
            handle = handle.op.inputs[0]
          anew[op.outputs[0]] = min(
              (reader for reader in handle.consumers() if reader.type == 'AssignVariableOp'),
              key=lambda reader: reader._id).inputs[1]  # The initializer is a variable's first.
          continue
        attributes = {name: value for name, value in op.node_def.attr.items() if name != '_class'}
        with tf.device(op.device):
          copied = self._graph.create_op(
              op.type, [anew.get(tensor, tensor) for tensor in op.inputs],
              [tensor.dtype for tensor in op.outputs], attrs=attributes, op_def=op.op_def,
              name='initial_value')
        anew.update(zip(op.outputs, copied.outputs))
    return anew.get(value, value)
