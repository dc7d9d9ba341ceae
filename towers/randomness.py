"""Randomness that depends on the seed and on names, never on the order in which a graph was built.

TensorFlow seeds a random op by the number of ops that were built before it: one more op, tower or input mode, and all
weights and dropout masks are others. Here an initial value depends on (seed, variable name) alone. A random op of a
model depends on (seed, tower, its name in the tower, run, which is the step unless
gradients are accumulated): towers draw different masks, a repeated or resumed run
draws the same.
"""

import hashlib
from typing import Any, Callable, Iterable, List, Tuple

from tensorflow_v1 import tf

_STATELESS = {
    'RandomUniform': tf.raw_ops.StatelessRandomUniform,
    'RandomStandardNormal': tf.raw_ops.StatelessRandomNormal,
    'TruncatedNormal': tf.raw_ops.StatelessTruncatedNormal,
}
# What is added to the name of a random op for its twin's scope, and the name of its key within.
_TWIN, _KEY = '_stateless/', 'key'
STATELESS_TYPES = ('StatelessRandomUniform', 'StatelessRandomNormal', 'StatelessTruncatedNormal')


def name_seeds(seed: int, name: str) -> Tuple[int, int]:
  """Returns two seeds in 1 … 2**31 - 1 that depend on `seed` and `name` alone."""
  digest = hashlib.sha256(('%d %s' % (seed, name)).encode()).digest()
  first, second = (int.from_bytes(digest[begin:begin + 4], 'little') % (2 ** 31 - 1) + 1 for begin in (0, 4))
  return first, second


def get_run_in_step() -> Any:
  """Returns the int64 variable that counts the runs of a step with accumulated gradients; no part of checkpoints."""
  for variable in tf.local_variables():
    if variable.op.name == 'run_in_step':
      return variable
  with tf.name_scope(None), tf.init_scope():
    return tf.Variable(tf.zeros([], tf.int64), name='run_in_step', trainable=False, use_resource=True,
                       collections=[tf.GraphKeys.LOCAL_VARIABLES])


def find_random_ops(value: Any) -> List[Any]:
  """Returns all random ops that a tensor is computed from."""
  pending, seen, random = [value.op], set(), []
  while pending:
    op = pending.pop()
    if op in seen:
      continue
    seen.add(op)
    pending.extend(tensor.op for tensor in op.inputs)
    if _is_random(op):
      random.append(op)
  return random


def seed_initial_value(value: Any, seed: int, name: str) -> None:
  """Seeds all random ops that an initial value is computed from by (seed, name of its variable)."""
  for number, op in enumerate(find_random_ops(value)):
    _set_seeds(op, *name_seeds(seed, '%s %d' % (name, number)))


def seed_tower(ops: Iterable[Any], *, seed: int, tower: int, scope: str, run: Callable[[], Any]) -> None:
  """Ties the random ops of a tower's model to (seed, tower, name, run).

  An op such as dropout's draws from a state of its own, which no checkpoint holds. It is replaced by its stateless
  twin, whose key is the run, so that a resumed run draws what the uninterrupted run had drawn. Inside a while loop,
  and for the rarer distributions, the op keeps its state and is only seeded.

  Args:
    ops: those of the tower's forward pass, without what initial values are computed from.
    seed: of the run.
    tower: its number.
    scope: the tower's name scope.
    run: returns the scalar int64 tensor that counts runs; called only when it is needed.
  """
  for op in ops:
    if not op.name.startswith(scope) or not _is_random(op):
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
  return name_seeds(seed, 'tower %d %s' % (tower, name))


def find_random_nodes(nodes: Iterable[Any]) -> List[Any]:
  """Returns, of the nodes of a seeded tower, those that hold its seeds."""
  return [node for node in nodes if node.name.endswith(_TWIN + _KEY) or _is_random_node(node)]


def seed_nodes(nodes: Iterable[Any], *, seed: int, tower: int) -> None:
  """Gives what `find_random_nodes` found, named without the tower's scope, the seeds that `tower` would have."""
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
