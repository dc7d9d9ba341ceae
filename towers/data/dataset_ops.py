"""Data set ops: what the ops of a tf.data.Dataset show of it before any element is read."""

import contextlib
import random
import re
import sys
from typing import Any, Iterator, Tuple

import numpy as np

from towers.base.later import data_sets, tf
from towers.base.output import write_line
from towers.base.usage_error import UsageError

# Data sets whose elements are those of their inputs, as they are or mapped: their ops, without
# 'Dataset' and version.
_ONE_BY_ONE = ('Cache', 'Concatenate', 'DirectedInterleave', 'Filter', 'Map', 'Options',
               'ParallelFilter', 'ParallelMap', 'Prefetch', 'Repeat', 'Shard', 'Shuffle',
               'ShuffleAndRepeat', 'Skip', 'Take', 'Zip')
_BATCHES = ('Batch', 'MapAndBatch', 'PaddedBatch', 'ParallelBatch')
# Those whose elements are those of the data sets that a function makes.
_BY_FUNCTION = ('GroupByWindow', 'Interleave', 'LegacyParallelInterleave', 'ParallelInterleave')
_EXAMPLE = re.compile('Parse(Single)?(Sequence)?Example')
# Ops whose errors quote what they were given, as those that parse Examples quote all of one.
_QUOTING = ('DecodeCSV', 'DecodeJSONExample', 'ParseTensor', 'StringToNumber')
_PASSING = ('ExpandDims', 'Identity', 'Pack', 'Reshape')


def check_ops(dataset: Any, name: str) -> None:
  """Refuses a data set that is batched, endless, or shuffled anew at each pass.

  A batch may be mapped to something else: what keeps no dimension of the batch's size is taken.
  """
  from towers.graph.walk import find_needed
  fixes, last_op = [], data_sets.find_last_op(dataset)
  if any(_keeps_batches(dataset, op) for op in _walk(last_op)):
    fixes.append('it is batched, and the program makes its own batches: leave .batch() out, or '
                 'end with .apply(tf.data.experimental.unbatch())')
  if _is_endless(last_op):
    fixes.append('it repeats without end, and the program repeats it by itself: leave .repeat() '
                 'out, or end with .take(n)')
  needed = find_needed([last_op])
  if any(_is_random(op) for op in needed if 'Shuffle' in op.type):
    fixes.append('it is shuffled anew at each pass, so that towers would miss and repeat examples, '
                 'and the program shuffles by itself: leave .shuffle() out, and give '
                 'list_files(…, shuffle=False)')
  if fixes:
    raise UsageError(f"{name}: the data set cannot be used as it is: {'; and '.join(fixes)}.")
  if any('Unbatch' in op.type for op in needed) and any(map(_drops_examples, needed)):
    write_line(f'WARNING: {name}: batch(…, drop_remainder=True) in the data set drops the last '
               'examples where they fill no batch: write drop_remainder=False', sys.stderr)
  check_draws(dataset, name)


def check_draws(dataset: Any, name: str) -> None:
  """Refuses functions of a data set that draw random numbers by a state of their own.

  Parallel threads draw in the order in which they happen to ask, and a resumed run draws others.
  """
  from towers.graph.walk import find_needed, walk_called
  from towers.placement.randomness import is_random
  for op in find_needed([data_sets.find_last_op(dataset)]):
    for _, node in walk_called(op.graph, op.node_def):
      if is_random(node):
        fix = ('give arrays or records to towers.mixed(examples, by=labels), which takes classes '
               'in shares' if 'Filter' in op.type else
               'draw in towers.augmented(examples, function): what function(example, draws) draws '
               'depends on the seed, the epoch and the number of the example alone')
        raise UsageError(
            f'{name}: the op {node.name} ({node.op}) draws random numbers in a function of the '
            'data set, which would be others on other towers and after a resume. Leave it out '
            f'there, and {fix}.')


@contextlib.contextmanager
def no_python_draws(who: str) -> Iterator[None]:
  """Opens a context in which `who`, a function of the input, becomes ops, and may draw nothing."""
  before = read_states()
  yield
  if read_states() != before:
    raise UsageError(f'{who} draws by numpy, or by Python\'s random, which happens once, when it '
                     'becomes ops: all examples would get the same numbers. Draw in '
                     'towers.augmented(examples, function), by draws.uniform, .normal, .integer, '
                     '.crop or .flip.')


def read_states() -> Any:
  """Returns what numpy and Python draw next by, without a generator of one's own."""
  _, keys, *rest = np.random.get_state()
  return random.getstate(), keys.tobytes(), rest


def _walk(op: Any) -> Iterator[Any]:
  """Yields a data set's last op, then those of its inputs, as far as they have its elements."""
  yield op
  if _kind(op.type) in _ONE_BY_ONE:
    for source in _list_sources(op):
      yield from _walk(source)


def _list_sources(op):
  variants = [tensor.op for tensor in op.inputs if tensor.dtype.name == 'variant']
  return variants['DirectedInterleave' in op.type:]  # Its first one chooses.


def _kind(op_type: str) -> str:
  return re.sub(r'^Experimental|Dataset(V\d+)?$', '', op_type)


def _is_endless(op: Any) -> bool:
  """Returns whether a data set has no end, as far as its ops outside of functions tell."""
  kind, ends = _kind(op.type), [_is_endless(source) for source in _list_sources(op)]
  if kind in ('Repeat', 'ShuffleAndRepeat', 'Take'):
    is_all = (data_sets.get_constant(list(op.inputs)[4 if 'Shuffle' in kind else 1]) or 0) < 0
    return (is_all and ends[0]) if kind == 'Take' else is_all or ends[0]
  return kind == 'Random' or kind != 'TakeWhile' and bool(ends) and (
      all if kind == 'Zip' else any)(ends)


def _drops_examples(op: Any) -> bool:
  """Returns whether an op makes batches, and drops the last elements that fill none."""
  return _kind(op.type) in _BATCHES and not _is_endless(op) and (
      data_sets.get_constant(list(op.inputs)[-1]) is True)


def _keeps_batches(dataset: Any, op: Any) -> bool:
  """Returns whether every element still begins with the size of the batches that an op makes."""
  from towers.graph.walk import walk_called
  kind, size = _kind(op.type), None
  if kind in _BATCHES:
    size = data_sets.get_constant(list(op.inputs)[-3 if kind == 'MapAndBatch' else 1])
  else:
    inner = {_kind(node.op) for _, node in walk_called(op.graph, op.node_def)}
    if kind not in _BY_FUNCTION or inner.isdisjoint(_BATCHES) or inner & {'Unbatch', 'Window'}:
      return False
  shapes = tf.nest.flatten(tf.data.get_output_shapes(dataset))
  return all(shape.ndims != 0 and (shape.ndims is None or shape.as_list()[0] in (None, size))
             for shape in shapes)


def _is_random(op: Any) -> bool:
  """Returns whether a shuffling op gives another order at each pass, or in each run."""
  if 'reshuffle_each_iteration' not in op.node_def.attr or op.get_attr('reshuffle_each_iteration'):
    return True
  return [data_sets.get_constant(seed) for seed in op.inputs[2:4]] == [0, 0]


def find_parsing(dataset: Any) -> Tuple[str, bool]:
  """Returns what the function of a map, which made the data set, does with its string.

  It is 'Example' or 'SequenceExample' if it parses all of it as one, else '', and whether an error
  may quote parts of it.
  """
  from towers.graph.walk import find_called, walk_called
  op: Any = data_sets.find_last_op(dataset)
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
