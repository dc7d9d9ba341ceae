"""Slots: an optimizer's variables for each weight, such as momenta, made all at once.

An optimizer makes one slot after the other, which takes Python milliseconds each; a deep net has a
thousand. Here it only lists the slots of zeros that it wants, and one GraphDef imports all their
ops, with the same names, devices and initial values.
"""

from typing import Any, Dict, List, Sequence, Tuple

from tensorflow_v1 import Optimizer, Variable, import_placed, replaced, tf


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
