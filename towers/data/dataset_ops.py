"""Data set ops: what the ops of a tf.data.Dataset show of it before any element is read."""

import contextlib
import random
import re
from typing import Any, Iterator, Tuple

import numpy as np

from towers.base.later import find_last_op, get_constant, tf
from towers.base.usage_error import UsageError

# Data sets that take their input's elements one by one: their ops, without 'Dataset' and version.
_ONE_BY_ONE = ('Cache', 'Map', 'Options', 'ParallelMap', 'Prefetch', 'Repeat', 'Shard', 'Shuffle',
               'ShuffleAndRepeat', 'Skip', 'Take')
_BATCHES = ('Batch', 'PaddedBatch', 'MapAndBatch')
_EXAMPLE = re.compile('Parse(Single)?(Sequence)?Example')
# Ops whose errors quote what they were given, as those that parse Examples quote all of one.
_QUOTING = ('DecodeCSV', 'DecodeJSONExample', 'ParseTensor', 'StringToNumber')
_PASSING = ('ExpandDims', 'Identity', 'Pack', 'Reshape')


def check_ops(dataset: Any, name: str) -> None:
  """Checks that a data set is not batched, endless, or shuffled anew at each pass.

  A batch may be mapped to something else: what keeps no dimension of the batch's size is taken.

  Raises:
    UsageError: it is; names all of these and what to leave out.
  """
  from towers.graph.walk import find_needed
  fixes = []
  for op in _walk(find_last_op(dataset)):
    if _kind(op) in _BATCHES and _keeps_batches(dataset, op):
      fixes.append('it is batched, and the program makes its own batches: leave .batch() out, or '
                   'end with .apply(tf.data.experimental.unbatch())')
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


@contextlib.contextmanager
def no_python_draws(who: str) -> Iterator[None]:
  """Opens a context in which `who`, a function of the input, becomes ops, and draws nothing.

  Raises:
    UsageError: numpy or Python has drawn, once for all examples.
  """
  before = _read_states()
  yield
  if _read_states() != before:
    raise UsageError(f'{who} draws by numpy, or by Python\'s random, which happens once, when it '
                     'becomes ops: all examples would get the same numbers. Draw in '
                     'towers.augmented(examples, function), by draws.uniform, .normal, .integer, '
                     '.crop or .flip.')


def _read_states():
  _, keys, *rest = np.random.get_state()
  return random.getstate(), keys.tobytes(), rest


def _walk(op: Any) -> Iterator[Any]:
  """Yields a data set's last op, then that of its first input, and so on."""
  while op is not None:
    yield op
    op = next((tensor.op for tensor in op.inputs if tensor.dtype.name == 'variant'), None)


def _kind(op: Any) -> str:
  return re.sub(r'^Experimental|Dataset(V\d+)?$', '', op.type)


def _keeps_batches(dataset: Any, op: Any) -> bool:
  """Returns whether every element still begins with the size of the batches that an op makes."""
  size = get_constant(list(op.inputs)[-3 if _kind(op) == 'MapAndBatch' else 1])
  shapes = tf.nest.flatten(tf.data.get_output_shapes(dataset))
  return all(shape.ndims != 0 and (shape.ndims is None or shape.as_list()[0] in (None, size))
             for shape in shapes)


def _is_random(op: Any) -> bool:
  """Returns whether a shuffling op gives another order at each pass, or in each run."""
  if 'reshuffle_each_iteration' not in op.node_def.attr or op.get_attr('reshuffle_each_iteration'):
    return True
  return [get_constant(seed) for seed in op.inputs[2:4]] == [0, 0]


def find_parsing(dataset: Any) -> Tuple[str, bool]:
  """Returns what the function of a map, which made the data set, does with its string.

  It is 'Example' or 'SequenceExample' if it parses all of it as one, else '', and whether an error
  may quote parts of it.
  """
  from towers.graph.walk import find_called, walk_called
  op: Any = find_last_op(dataset)
  inner = [node for _, node in walk_called(op.graph, op.node_def)]
  kinds = [kind for name in find_called(op.graph, op.node_def)
           for kind in _find_kinds(op.graph._get_function(name).definition)]
  quoting = _QUOTING if kinds else (*_QUOTING, *(
      node.op for node in inner if _EXAMPLE.match(node.op)))
  return max(kinds, default=''), any(node.op in quoting for node in inner)


def _find_kinds(function):
  """Yields as what a function parses the whole of its argument."""
  whole = {argument.name for argument in function.signature.input_arg}
  for node in function.node_def:
    if node.input and node.input[0].split(':')[0] in whole:
      if node.op in _PASSING:
        whole.add(node.name)
      match = _EXAMPLE.match(node.op)
      if match:
        yield (match.group(2) or '') + 'Example'
