"""Randomness that depends on the seed and on names, never on the order in which a graph was built.

TensorFlow seeds a random op by the number of ops that were built before it: one more op, tower or
input mode, and all weights and dropout masks are others. Here an initial value depends on (seed,
variable name) alone. A random op of a model depends on (seed, tower, its name in the tower, run,
which is the step unless gradients are accumulated): towers draw different masks, a repeated or
resumed run draws the same.

A stateless op, as initializer objects of TensorFlow 2 use, draws by a tensor. In an
initial value that tensor becomes a constant of (seed, name). In a model it stays what
the model computes: who calls `tf.random.stateless_*` says by it which towers and steps
draw alike. No Keras layer draws so in graph mode. Random ops inside of a function, and
generators, which keep their state in a variable that all towers would share, have
nothing that could be set for each tower: an error names them.
"""

import hashlib
import re
from typing import Any, Callable, Collection, Dict, Iterable, List, Tuple

import numpy as np

from tensorflow_v1 import tf
from towers.base.usage_error import UsageError

_STATELESS = {
    'RandomUniform': tf.raw_ops.StatelessRandomUniform,
    'RandomStandardNormal': tf.raw_ops.StatelessRandomNormal,
    'TruncatedNormal': tf.raw_ops.StatelessTruncatedNormal,
}
# What is added to the name of a random op for its twin's scope, and the name of its key within.
_TWIN, _KEY = '_stateless/', 'key'
STATELESS_TYPES = ('StatelessRandomUniform', 'StatelessRandomNormal', 'StatelessTruncatedNormal')
# Inputs that decide what a stateless op draws.
_SEED_INPUTS = ('seed', 'key', 'counter')
# Ops of tf.random.Generator.
_GENERATOR = re.compile('Stateful(?!PartitionedCall)|Rng(Read|Skip)|NonDeterministicInts')
# Ops that call functions of the graph, beside those that are called by the function's name.
_CALLS = ('PartitionedCall', 'StatefulPartitionedCall', 'SymbolicGradient', 'RemoteCall', 'For',
          'If', 'StatelessIf', 'While', 'StatelessWhile', 'Case', 'StatelessCase')


def name_seeds(seed: int, name: str) -> Tuple[int, int]:
  """Returns two seeds in 1 … 2**31 - 1 that depend on `seed` and `name` alone."""
  digest = hashlib.sha256(f'{seed} {name}'.encode()).digest()
  first, second = (
      int.from_bytes(digest[begin:begin + 4], 'little') % (2**31 - 1) + 1 for begin in (0, 4))
  return first, second


def get_micro_batch_in_step() -> Any:
  """Returns the int64 variable that counts the runs of a step with accumulated gradients; no part
  of checkpoints.
  """
  for variable in tf.local_variables():
    if variable.op.name == 'micro_batch_in_step':
      return variable
  with tf.name_scope(None), tf.init_scope():
    return tf.Variable(tf.zeros([], tf.int64), name='micro_batch_in_step', trainable=False,
                       use_resource=True, collections=[tf.GraphKeys.LOCAL_VARIABLES])


def find_random_ops(value: Any) -> List[Any]:
  """Returns all random ops that a tensor is computed from, calls of functions included."""
  pending, seen, random = [value.op], set(), []
  while pending:
    op = pending.pop()
    if op in seen:
      continue
    seen.add(op)
    pending.extend(tensor.op for tensor in op.inputs)
    if _is_random(op) or _find_seed_inputs(op) or _find_unseedable(op):
      random.append(op)
  return random


def seed_initial_value(value: Any, seed: int, name: str, seeded: Collection[Any] = ()) -> None:
  """Seeds all random ops that an initial value is computed from by (seed, name of its variable).

  Args:
    value: the initial value, a tensor.
    seed: of the run.
    name: of the variable.
    seeded: ops that are left as they are: the initial value of an earlier variable draws by them.

  Raises:
    UsageError: a generator or a function draws; names the op and the variable.
  """
  constants: Dict[Any, Any] = {}
  for number, op in enumerate(find_random_ops(value)):
    if op in seeded:
      continue
    unseedable = _find_unseedable(op)
    if unseedable:
      raise UsageError(
          f'The initial value of the variable {name} is drawn by {unseedable}, so that it cannot '
          'depend on the seed and the variable\'s name alone: draw it by an initializer such as '
          'tf.glorot_uniform_initializer(), or by tf.random.normal, outside of any tf.function.')
    seeds = name_seeds(seed, f'{name} {number}')
    if _is_random(op):
      _set_seeds(op, *seeds)
    for index in _find_seed_inputs(op):
      given = op.inputs[index]
      # What is itself drawn, as a key from a seed, follows from what is seeded.
      if not find_random_ops(given):
        if given not in constants:
          constants[given] = _make_constant(op, given, seeds)
        op._update_input(index, constants[given])


def _make_constant(op, given, seeds):
  """Returns a constant like the tensor `given`, a seed, key or counter of `op`."""
  size = given.shape.num_elements() or len(seeds)
  with tf.name_scope(None), tf.device(op.device), tf.control_dependencies(None):
    return tf.constant(np.resize(seeds, size), given.dtype, name=op.name + '_seeded')


def seed_tower(ops: Iterable[Any], *, seed: int, tower: int, scope: str,
               run: Callable[[], Any]) -> None:
  """Ties the random ops of a tower's model to (seed, tower, name, run).

  An op such as dropout's draws from a state of its own, which no checkpoint holds. It is replaced
  by its stateless twin, whose key is the run, so that a resumed run draws what the uninterrupted
  run had drawn. Inside a while loop, and for the rarer distributions, the op keeps its state and is
  only seeded. Stateless ops are left as they are.

  Args:
    ops: those of the tower's forward pass, without what initial values are computed from.
    seed: of the run.
    tower: its number.
    scope: the tower's name scope.
    run: returns the scalar int64 tensor that counts runs; called only when it is needed.

  Raises:
    UsageError: a generator or a function draws; names the op.
  """
  for op in ops:
    if not op.name.startswith(scope):
      continue
    unseedable = _find_unseedable(op, is_stateless_fine=True)
    if unseedable:
      raise UsageError(
          f'The model draws random numbers by {unseedable}, which cannot be tied to the seed, the '
          'tower and the step: draw by tf.random.uniform, tf.random.normal or tf.nn.dropout, '
          'outside of any tf.function.')
    if not _is_random(op):
      continue
    seeds = _tower_seeds(seed, tower, op.name[len(scope):])
    context = op._get_control_flow_context()
    if op.type not in _STATELESS or (context is not None and context.IsWhileContext()):
      _set_seeds(op, *seeds)
    else:
      _replace_by_stateless(op, seeds[0], run(), context)


def _replace_by_stateless(op, key, run, context):
  """Gives all consumers of a random op the values of its stateless twin, drawn by (key, run)."""
  graph, drawn = op.graph, op.outputs[0]
  consumers = drawn.consumers()
  outer = graph._get_control_flow_context()
  graph._set_control_flow_context(context)
  try:
    with tf.colocate_with(op), tf.name_scope(op.name + _TWIN):
      seed = tf.stack([tf.constant(key, tf.int64, name=_KEY), run])
      twin = _STATELESS[op.type](shape=op.inputs[0], seed=seed, dtype=drawn.dtype)
  finally:
    graph._set_control_flow_context(outer)
  twin.set_shape(drawn.shape)
  for consumer in consumers:
    for index, tensor in enumerate(consumer.inputs):
      if tensor is drawn:
        consumer._update_input(index, twin)


def _tower_seeds(seed, tower, name):
  return name_seeds(seed, f'tower {tower} {name}')


def find_random_nodes(nodes: Iterable[Any]) -> List[Any]:
  """Returns, of the nodes of a seeded tower, those that hold its seeds."""
  return [node for node in nodes if node.name.endswith(_TWIN + _KEY) or _is_random_node(node)]


def seed_nodes(nodes: Iterable[Any], *, seed: int, tower: int) -> None:
  """Gives what `find_random_nodes` found, named without the tower's scope, the seeds that `tower`
  would have.
  """
  for node in nodes:
    if node.op == 'Const':
      key, _ = _tower_seeds(seed, tower, node.name[:-len(_TWIN + _KEY)])
      node.attr['value'].tensor.CopyFrom(tf.make_tensor_proto(key, tf.int64))
    else:
      node.attr['seed'].i, node.attr['seed2'].i = _tower_seeds(seed, tower, node.name)


def _is_random(op):
  return _is_random_node(op.node_def)


def _is_random_node(node):
  return 'seed' in node.attr and 'seed2' in node.attr


def _set_seeds(op, seed, seed2):
  op._set_attr('seed', tf.AttrValue(i=seed))
  op._set_attr('seed2', tf.AttrValue(i=seed2))


def _find_seed_inputs(op):
  """Returns the positions of the inputs that decide what a stateless op draws, else []."""
  if not op.type.startswith('Stateless') and op.type != 'RandomIndexShuffle':
    return []
  return [index for index, argument in enumerate(op.op_def.input_arg)
          if argument.name in _SEED_INPUTS]


def _find_unseedable(op, is_stateless_fine=False):
  """Returns words for what draws random numbers that no seed of `op` decides, or ''.

  Args:
    is_stateless_fine: whether a function may hold stateless ops.
  """
  if _GENERATOR.match(op.type):
    return f'the op {op.name} of type {op.type}, which takes its numbers from a generator'
  graph = op.graph
  if op.type not in _CALLS and not graph._is_function(op.type):
    return ''
  pending, seen = _find_called(graph, op.node_def), set()
  while pending:
    name = pending.pop()
    if name in seen:
      continue
    seen.add(name)
    for node in graph._get_function(name).definition.node_def:
      is_stateless = node.op.startswith('Stateless') and node.op not in _CALLS
      if (_is_random_node(node) or _GENERATOR.match(node.op)
          or (is_stateless and not is_stateless_fine)):
        return f'{node.op} in the function {name}, which the op {op.name} calls'
      pending += _find_called(graph, node)
  return ''


def _find_called(graph, node):
  """Returns the names of the graph's functions that a node calls."""
  names = [node.op]
  for value in node.attr.values():
    names += [value.func.name] + [function.name for function in value.list.func]
  return [name for name in names if name and graph._is_function(name)]
