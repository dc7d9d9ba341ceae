"""Randomness that depends on the seed and on names, not on the order in which a graph is built.

TensorFlow seeds a random op by the number of ops before it. With one more op, tower or input mode
all weights and dropout masks change. Here an initial value depends only on (seed, variable name). A
random op of a model depends on (seed, tower, its name in the tower, micro-batch), where the
micro-batch is the step unless gradients are accumulated. So towers draw different masks, and a
repeated or resumed run draws the same ones.

A stateless op, such as initializer objects of TensorFlow 2 use, draws by a seed tensor. In an
initial value this tensor becomes a constant of (seed, name). In a model it stays as it is: a caller
of `tf.random.stateless_*` decides by it which towers and steps draw alike. No Keras layer draws
like this in graph mode. Two kinds of random ops cannot be seeded for each tower, and an error names
them: those inside of a function, and generators, whose state is a variable that all towers share.
"""

import functools
import hashlib
import re
from typing import Any, Callable, Collection, Dict, Iterable, List, Tuple

import numpy as np

from tensorflow_v1 import Operation, Tensor, Variable, tf
from towers.base.usage_error import UsageError
from towers.placement.host import HOST

_STATELESS = {
    'RandomUniform': tf.raw_ops.StatelessRandomUniform,
    'RandomStandardNormal': tf.raw_ops.StatelessRandomNormal,
    'TruncatedNormal': tf.raw_ops.StatelessTruncatedNormal,
}
# The stateless twin of a random op is in a scope named after it, and so is the twin's key.
_TWIN, _KEY = '_stateless/', 'key'
STATELESS_TYPES = ('StatelessRandomUniform', 'StatelessRandomNormal', 'StatelessTruncatedNormal')
# The inputs that decide what a stateless op draws.
_SEED_INPUTS = ('seed', 'key', 'counter')
# Ops of tf.random.Generator.
_GENERATOR = re.compile('Stateful(?!PartitionedCall)|Rng(Read|Skip)|NonDeterministicInts')
# Ops that call functions of the graph, besides ops whose type is the function's name.
_CALLS = ('PartitionedCall', 'StatefulPartitionedCall', 'SymbolicGradient', 'RemoteCall', 'For',
          'If', 'StatelessIf', 'While', 'StatelessWhile', 'Case', 'StatelessCase')


def name_seeds(seed: int, name: str) -> Tuple[int, int]:
  """Returns two seeds in 1 … 2**31 - 1 that depend on `seed` and `name` alone."""
  digest = hashlib.sha256(f'{seed} {name}'.encode()).digest()

  def make_seed(begin):
    return int.from_bytes(digest[begin:begin + 4], 'little') % (2**31 - 1) + 1

  return make_seed(0), make_seed(4)


def get_micro_batch_in_step() -> Variable:
  """Returns the int64 variable that counts the micro-batches of a step; it is not checkpointed."""
  for variable in tf.local_variables():
    if variable.op.name == 'micro_batch_in_step':
      return variable
  with tf.name_scope(None), tf.init_scope():
    return tf.Variable(tf.zeros([], tf.int64), name='micro_batch_in_step', trainable=False,
                       use_resource=True, collections=[tf.GraphKeys.LOCAL_VARIABLES])


def micro_batch_reader(accumulate: int = 1) -> Callable[[], Tensor]:
  """Returns a function that returns the index of the micro-batch, a scalar int32 on the host.

  Of int32, as seeds are packed on the host even for GPUs, whose kernels take seeds from there.

  Args:
    accumulate: micro-batches of a full step; with 1 the index is the step.
  """
  @functools.lru_cache(maxsize=None)
  def read():
    with tf.device(HOST), tf.name_scope('run/'):
      index = tf.train.get_or_create_global_step().read_value()
      if accumulate > 1:
        index = index * accumulate + get_micro_batch_in_step().read_value()
      return tf.cast(index, tf.int32)

  return read


def find_random_ops(value: Tensor) -> List[Operation]:
  """Returns all random ops that a tensor is computed from, including calls of functions."""
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


def seed_initial_value(value: Tensor, seed: int, name: str,
                       seeded: Collection[Operation] = ()) -> None:
  """Seeds all random ops that an initial value is computed from by (seed, name of its variable).

  Args:
    value: the initial value.
    seed: of the run.
    name: of the variable.
    seeded: ops to leave as they are, since an earlier variable's initial value draws by them.

  Raises:
    UsageError: a generator or a function draws; names the op and the variable.
  """
  constants: Dict[Any, Any] = {}
  for index, op in enumerate(find_random_ops(value)):
    if op in seeded:
      continue
    unseedable = _find_unseedable(op)
    if unseedable:
      raise UsageError(
          f'The initial value of the variable {name} is drawn by {unseedable}, so that it cannot '
          'depend on the seed and the variable\'s name alone: draw it by an initializer such as '
          'tf.glorot_uniform_initializer(), or by tf.random.normal, outside of any tf.function.')
    seeds = name_seeds(seed, f'{name} {index}')
    if _is_random(op):
      _set_seeds(op, *seeds)
    for port in _find_seed_inputs(op):
      given = op.inputs[port]
      # A key that is itself drawn by a random op follows from that op's seed.
      if not find_random_ops(given):
        if given not in constants:
          constants[given] = _make_constant(op, given, seeds)
        op._update_input(port, constants[given])


def _make_constant(op, given, seeds):
  """Returns a constant in place of the tensor `given`, a seed, key or counter of `op`."""
  size = given.shape.num_elements() or len(seeds)
  with tf.name_scope(None), tf.device(op.device), tf.control_dependencies(None):
    return tf.constant(np.resize(seeds, size), given.dtype, name=op.name + '_seeded')


def seed_tower(ops: Iterable[Operation], *, seed: int, tower: int, scope: str,
               read_micro_batch: Callable[[], Tensor]) -> None:
  """Ties the random ops of a tower's model to (seed, tower, name, micro-batch).

  An op such as dropout's draws from a state of its own, which no checkpoint holds. Its stateless
  twin takes its place, whose key is the micro-batch, so that a resumed run draws the numbers of the
  uninterrupted one. Inside a while loop, and for the rarer distributions, the op keeps its state
  and is only seeded. Stateless ops stay as they are.

  Args:
    ops: of the tower's forward pass, without those of initial values.
    seed: of the run.
    tower: its index.
    scope: the tower's name scope.
    read_micro_batch: returns the scalar int32 tensor that counts micro-batches; called only if an
      op needs it.

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
          'outside of any tf.function, which tf.cond and tf.while_loop also are unless '
          'tf.disable_control_flow_v2() has been called.')
    if not _is_random(op):
      continue
    seeds = _tower_seeds(seed, tower, op.name[len(scope):])
    context = op._get_control_flow_context()
    if op.type not in _STATELESS or (context is not None and context.IsWhileContext()):
      _set_seeds(op, *seeds)
    else:
      _replace_by_stateless(op, seeds[0], read_micro_batch(), context)


def _replace_by_stateless(op, key, micro_batch, context):
  """Gives a random op's consumers the values of its stateless twin, drawn by (key, micro-batch)."""
  graph, drawn = op.graph, op.outputs[0]
  consumers = drawn.consumers()
  outer = graph._get_control_flow_context()
  graph._set_control_flow_context(context)
  try:
    # XLA would draw other numbers from the same seeds.
    with tf.colocate_with(op), tf.name_scope(op.name + _TWIN), \
        tf.xla.experimental.jit_scope(compile_ops=False):
      seed = tf.stack([tf.constant(key, tf.int32, name=_KEY), micro_batch])
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
  """Returns the nodes of a seeded tower that hold its seeds."""
  return [node for node in nodes if node.name.endswith(_TWIN + _KEY) or _is_random_node(node)]


def seed_nodes(nodes: Iterable[Any], *, seed: int, tower: int) -> None:
  """Gives nodes of `find_random_nodes`, named without their tower's scope, the seeds of `tower`."""
  for node in nodes:
    if node.op == 'Const':
      key, _ = _tower_seeds(seed, tower, node.name[:-len(_TWIN + _KEY)])
      node.attr['value'].tensor.CopyFrom(tf.make_tensor_proto(key, tf.int32))
    else:
      node.attr['seed'].i, node.attr['seed2'].i = _tower_seeds(seed, tower, node.name)


def _is_random(op):
  return _is_random_node(op.node_def)


def _is_random_node(node):
  if 'deterministic' in node.attr and not node.attr['deterministic'].b:
    return False  # Fractional pooling, whose seeds must be 0.
  return 'seed' in node.attr and 'seed2' in node.attr


def _set_seeds(op, seed, seed2):
  op._set_attr('seed', tf.AttrValue(i=seed))
  op._set_attr('seed2', tf.AttrValue(i=seed2))


def _find_seed_inputs(op):
  """Returns the indices of the inputs that decide what a stateless op draws, else []."""
  if not op.type.startswith('Stateless') and op.type != 'RandomIndexShuffle':
    return []
  return [index for index, argument in enumerate(op.op_def.input_arg)
          if argument.name in _SEED_INPUTS]


def find_random_functions(op: Operation) -> str:
  """Describes what a function that `op` calls, or a generator, draws; or returns ''."""
  return _find_unseedable(op)


def _find_unseedable(op, is_stateless_fine=False):
  """Describes a part of `op` that draws random numbers by no seed of it, or returns ''.

  Args:
    op: of a model or an initial value.
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
