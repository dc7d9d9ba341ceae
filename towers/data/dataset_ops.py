"""Data set ops: what the ops of a tf.data.Dataset show of it before any element is read."""

import re
from typing import Any, Iterator

from towers.base.usage_error import UsageError

# Data sets that take their input's elements one by one: their ops, without 'Dataset' and version.
_ONE_BY_ONE = ('Cache', 'Map', 'Options', 'ParallelMap', 'Prefetch', 'Repeat', 'Shard', 'Shuffle',
               'ShuffleAndRepeat', 'Skip', 'Take')
_BATCHES = ('Batch', 'PaddedBatch', 'MapAndBatch')


def check_ops(dataset: Any, name: str) -> None:
  """Checks that a data set is not batched, endless, or shuffled anew at each pass.

  A batch may be mapped to something else: what keeps no dimension of the batch's size is taken.

  Raises:
    UsageError: it is; names all of these and what to leave out.
  """
  from tensorflow_v1 import find_last_op, get_constant
  from towers.graph.walk import find_needed
  fixes = []
  for op in _walk(find_last_op(dataset)):
    if _kind(op) in _BATCHES and _keeps_batches(dataset, op):
      fixes.append('it is batched, and the program makes its own batches: leave .batch() out, or '
                   'end with .unbatch()')
    if _kind(op) == 'Repeat' and (get_constant(op.inputs[1]) or 0) < 0:
      fixes.append('it repeats without end, and the program repeats it by itself: leave .repeat() '
                   'out')
    if _kind(op) not in _ONE_BY_ONE + _BATCHES:
      break
  if any(_is_random(op) for op in find_needed([find_last_op(dataset)]) if 'Shuffle' in op.type):
    fixes.append('it is shuffled anew at each pass, so that towers would miss and repeat examples, '
                 'and the program shuffles by itself: leave .shuffle() out, and give '
                 'list_files(…, shuffle=False)')
  if fixes:
    raise UsageError(f"{name}: the data set cannot be used as it is: {'; and '.join(fixes)}.")
  check_draws(dataset, name)


def check_draws(dataset: Any, name: str) -> None:
  """Refuses functions of a data set that draw random numbers by a state of their own.

  Parallel threads draw in the order in which they happen to ask, and a resumed run draws others.

  Raises:
    UsageError: names the op.
  """
  from tensorflow_v1 import find_last_op
  from towers.graph.walk import find_needed, walk_called
  from towers.placement.randomness import is_random
  for op in find_needed([find_last_op(dataset)]):
    for _, node in walk_called(op.graph, op.node_def):
      if is_random(node):
        raise UsageError(
            f'{name}: the op {node.name} ({node.op}) draws random numbers in a function of the '
            'data set, which would be others on other towers and after a resume. Leave it out '
            'there, and draw in towers.augmented(examples, function): what function(example, '
            'draws) draws depends on the seed, the epoch and the number of the example alone.')


def _walk(op: Any) -> Iterator[Any]:
  """Yields a data set's last op, then that of its first input, and so on."""
  while op is not None:
    yield op
    op = next((tensor.op for tensor in op.inputs if tensor.dtype.name == 'variant'), None)


def _kind(op: Any) -> str:
  return re.sub(r'^Experimental|Dataset(V\d+)?$', '', op.type)


def _keeps_batches(dataset: Any, op: Any) -> bool:
  """Returns whether every element still begins with the size of the batches that an op makes."""
  from tensorflow_v1 import get_constant, tf
  size = get_constant(list(op.inputs)[-3 if _kind(op) == 'MapAndBatch' else 1])
  shapes = tf.nest.flatten(tf.data.get_output_shapes(dataset))
  return all(shape.ndims != 0 and (shape.ndims is None or shape.as_list()[0] in (None, size))
             for shape in shapes)


def _is_random(op: Any) -> bool:
  """Returns whether a shuffling op gives another order at each pass, or in each run."""
  from tensorflow_v1 import get_constant
  if 'reshuffle_each_iteration' not in op.node_def.attr or op.get_attr('reshuffle_each_iteration'):
    return True
  return [get_constant(seed) for seed in op.inputs[2:4]] == [0, 0]
