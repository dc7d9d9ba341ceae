"""Randomness that depends on the seed and on names, not on the order in which a graph is built.

TensorFlow seeds a random op by the number of ops before it: with one more op, tower or input mode
all weights and dropout masks change. Here an initial value depends on (seed, variable name) alone;
for a model's random ops see `towers.tower.drawing.draws`.

A stateless op, as of TensorFlow 2's initializers, draws by a seed tensor. In an initial value
this becomes a constant of (seed, name). In a model it stays as it is: a caller of
`tf.random.stateless_*` decides by it which steps draw alike. An error names what cannot
be seeded by name: random ops inside of a function, and generators, whose state is a variable that
all towers share.
"""

import hashlib
import re
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

import numpy as np

from towers.base.usage_error import UsageError
from towers.graph.walk import walk, walk_called
from towers.tensorflow_v1 import Operation, Tensor, tf

# The inputs that decide what a stateless op draws.
_SEED_INPUTS = ('seed', 'key', 'counter')
# Ops that draw by a seed that they take.
_STATELESS = re.compile('Stateless(Random(?!Get)|Truncated|Parameterized|Multinomial|Shuffle)')
# By the type of an op, whether it has seeds of its own.
_SEEDED: Dict[str, bool] = {}
# Ops that have the examples of a batch.
_OF_BATCH = re.compile('IteratorGetNext|Unstage|Placeholder$')
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


def find_random_ops(value: Tensor) -> List[Operation]:
  """Returns all random ops that a tensor is computed from, including calls of functions.

  Those of what a batch's examples decide are none of them: they draw for rows.
  """
  needed = list(walk([value.op], lambda op: [tensor.op for tensor in op.inputs]))
  if any(_OF_BATCH.match(op.type) for op in needed):
    return []
  return [op for op in needed if is_random(op) or _find_seed_inputs(op) or find_unseedable(op)]


def seed_initial_value(value: Tensor, seed: int, name: str, seeded: Set[Operation]) -> None:
  """Seeds all random ops that an initial value is computed from by (seed, name of its variable).

  Those in `seeded`, which the others join, draw for an earlier variable and stay as they are.
  """
  constants: Dict[Tensor, Tensor] = {}
  for index, op in enumerate(find_random_ops(value)):
    if op in seeded:
      continue
    seeded.add(op)
    unseedable = find_unseedable(op)
    if unseedable:
      raise UsageError(
          f'The initial value of the variable {name} is drawn by {unseedable}, so that it cannot '
          'depend on the seed and the variable\'s name alone: draw it by an initializer such as '
          'tf.glorot_uniform_initializer(), or by tf.random.normal, outside of any tf.function.')
    seeds = name_seeds(seed, f'{name} {index}')
    if is_random(op):
      set_seeds(op, *seeds)
    for port in _find_seed_inputs(op):
      given = op.inputs[port]
      # A key that is itself drawn by a random op follows from that op's seed.
      if not find_random_ops(given):
        if given not in constants:
          size = given.shape.num_elements() or len(seeds)
          with tf.name_scope(None), tf.device(op.device), tf.control_dependencies(None):
            constants[given] = tf.constant(
                np.resize(seeds, size), given.dtype, name=op.name + '_seeded')
        op._update_input(port, constants[given])


def tower_seeds(seed: int, tower: int, type_: str, name: str) -> Tuple[int, int]:
  """Returns the seeds of an op of a tower with a state of its own."""
  # All rows share the negatives that a sampler draws, and so do all towers.
  return name_seeds(seed, f"tower {0 if 'CandidateSampler' in type_ else tower} {name}")


def is_random(op: Any) -> bool:
  """Returns whether an op, or a node of a GraphDef, draws by a state of its own."""
  if isinstance(op, Operation):  # It makes its NodeDef anew each time, which takes long.
    type_ = op.type
    if type_ not in _SEEDED:
      # That one has seeds and takes no number by them.
      _SEEDED[type_] = 'seed2' in op.node_def.attr and type_ != 'ComputeAccidentalHits'
    if not _SEEDED[type_]:
      return False
  attr = getattr(op, 'node_def', op).attr
  return ('seed' in attr and 'seed2' in attr
          and ('deterministic' not in attr or attr['deterministic'].b))


def is_seedless(op: Operation) -> bool:
  """Returns whether an op pools by regions of chance, for which TensorFlow takes no seed."""
  return op.type in ('FractionalMaxPool', 'FractionalAvgPool') and not op.get_attr('deterministic')


def is_stateless(op: Operation) -> bool:
  """Returns whether an op draws by a seed that it takes."""
  return bool(_STATELESS.match(op.type))


def set_seeds(op: Operation, seed: int, seed2: int) -> None:
  """Seeds an op with a state of its own."""
  op._set_attr('seed', tf.AttrValue(i=seed))
  op._set_attr('seed2', tf.AttrValue(i=seed2))


def find_draws(ops: Iterable[Operation]) -> List[Operation]:
  """Returns the ops that draw random numbers which other ops use.

  No op uses those of an op whose stateless twin has taken its place.
  """
  return [op for op in ops if (is_stateless(op) or is_random(op))
          and any(output.consumers() for output in op.outputs)]


def find_drawn(value: Tensor) -> Optional[Operation]:
  """Returns the op of a model whose random numbers, and those of no other op, make up a value."""
  def is_drawn(op):
    return is_stateless(op) or is_random(op)

  def follow(op):
    return [] if is_drawn(op) else [tensor.op for tensor in op.inputs if not (
        tensor.dtype.is_integer or tensor.op.type == 'Const')]

  ops = list(walk([] if value.dtype.is_integer else [value.op], follow))
  drawn = list(filter(is_drawn, ops))
  if not drawn or any(not (op.inputs or op in drawn) for op in ops):
    return None
  # That whose twin it is.
  return drawn[-1].graph.get_operation_by_name(drawn[-1].name.split('_stateless/')[0])


def _find_seed_inputs(op):
  """Returns the indices of the inputs that decide what a stateless op draws, else []."""
  if not op.type.startswith('Stateless') and op.type != 'RandomIndexShuffle':
    return []
  return [index for index, argument in enumerate(op.op_def.input_arg)
          if argument.name in _SEED_INPUTS]


def find_unseedable(op, is_stateless_fine=False):
  """Describes a part of `op` that draws random numbers by no seed of it, or returns ''.

  In a model it is fine for a function to hold stateless ops.
  """
  if _GENERATOR.match(op.type):
    return f'the op {op.name} of type {op.type}, which takes its numbers from a generator'
  is_call = op.type in _CALLS or op.graph._is_function(op.type)
  for name, node in walk_called(op.graph, op.node_def) if is_call else ():
    is_stateless = node.op.startswith('Stateless') and node.op not in _CALLS
    if (is_random(node) or _GENERATOR.match(node.op) or (is_stateless and not is_stateless_fine)):
      return f'{node.op} in the function {name}, which the op {op.name} calls'
  return ''
