"""Later values: what variables and labels may be only after the first batch and the first step."""

import contextlib
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np

from towers.coupling.fed_towers import FedTowers, unlocked
from towers.data.composite import find_paths
from towers.graph.walk import find_dependents, find_needed
from towers.tensorflow_v1 import tf

_LATER_STEP, _LATER_WEIGHT, _GROWTH = 10 ** 6, 0.3, 10
_MOST_ENTRIES = 2 ** 24  # Of a matrix, in place of which others are tried.
_MOST_LABELS = 16  # Of an example, beside which others are tried.


@contextlib.contextmanager
def grown(fed: FedTowers) -> Iterator[List[str]]:
  """Gives variables for a while values that they may have later, and yields these in words.

  First values may hide what depends on others: a step counter, by which a weight grows from 0;
  zeros, among them numbers that a callback raises; and weights of the last layers, with which no
  output passes a limit yet.
  """
  step, random = tf.train.get_global_step(fed.graph), np.random.RandomState(0)
  matrices = {variable.handle.op: index for index, variable in enumerate(fed.towers[0].variables)
              if variable.shape.ndims > 1 and variable.shape.num_elements() <= _MOST_ENTRIES}
  of_batch = fed.forward & find_dependents(
      [tensor.op for tensor in tf.nest.flatten(fed.towers[0].batch.tensors)], by_control=False)
  weights = find_dependents(matrices, by_control=False, within=fed.forward) - of_batch
  layers = {op for op in of_batch if any(tensor.op in weights for tensor in op.inputs)}
  inner = find_needed(tensor.op for op in layers for tensor in op.inputs if tensor.op in of_batch)
  last = find_needed((tensor.op for op in layers - inner for tensor in op.inputs), within=weights)
  later: Dict[Any, Tuple[str, Any]] = {}
  if step is not None and step.handle.op in fed.forward:
    later[step] = f'global_step = {_LATER_STEP:,}', _LATER_STEP
  for op, index in matrices.items():
    first, *others = dict.fromkeys(tower.variables[index] for tower in fed.towers)
    with unlocked(fed.graph):
      value = tf.get_static_value(first.initializer.inputs[1])
    if op in fed.forward and value is not None and not np.any(value):
      later[first] = f'random {first.op.name}', _LATER_WEIGHT * random.randn(*value.shape)
    elif op in last:
      value = fed.session.run(first)
      later[first] = (f'up to {_GROWTH} times {first.op.name}',
                      value * _GROWTH ** np.linspace(1, 0, value.shape[-1], dtype=value.dtype))
    later.update((other, later[first]) for other in others if first in later)
  numbers = [variable for variable in tf.global_variables() if variable.handle.op in fed.forward
             and variable.shape.ndims == 0 and variable.dtype.base_dtype.is_floating]
  later.update((number, (f'{number.op.name} = 1', 1.0))
               for number, value in zip(numbers, fed.session.run(numbers)) if value == 0)
  before = fed.session.run(list(later))
  try:
    _load(fed, later, (value for _, value in later.values()))
    yield list(dict.fromkeys(words for words, _ in later.values()))
  finally:
    _load(fed, later, before)


@contextlib.contextmanager
def labelled(fed: FedTowers) -> Iterator[List[str]]:
  """Gives every third example, for a while, a label that none of the pool has, and yields these in
  words: what only rare ones count for, or all but the background, is not in a first batch.

  Lengths, the largest of which is the size of an open axis, are no labels: many ops refuse one of
  0, and some TensorFlows write that to stderr.
  """
  before, names, tensors = fed.pool, [], tf.nest.flatten(fed.towers[0].batch.tensors)
  fed.pool = list(before)
  sizes = [value.shape[1] for value, tensor in zip(before, tensors)
           if tensor.shape.ndims > 1 and tensor.shape.as_list()[1] is None]
  is_third = np.arange(fed.size) % 3 == 0
  for index, (value, path) in enumerate(zip(before, find_paths(fed.towers[0].batch.tensors))):
    are_lengths = value.ndim == 1 and value.dtype.kind in 'iu' and value.max() in sizes
    other = None
    if 0 < value.size <= _MOST_LABELS * fed.size and not are_lengths:
      other = _find_missing(value)
    if other is not None:
      fed.pool[index] = np.where(is_third.reshape([-1] + [1] * (value.ndim - 1)), other, value)
      names.append(f'{other} among others in component {path}')
  try:
    yield names
  finally:
    fed.pool = before


def _find_missing(labels):
  """Returns a label that an array lacks, 0 or 1, or beside one float the next; None without."""
  first = labels.flat[0]
  if labels.dtype.kind in 'biu':
    other = 0 if labels.all() else 1
    return None if (labels == other).any() else labels.dtype.type(other)
  if labels.dtype.kind != 'f' or (labels != first).any():
    return None
  return labels.dtype.type(first == 0 if first in (0, 1) else first - 1)


def _load(fed, variables, values):
  with unlocked(fed.graph):
    for variable, value in zip(variables, values):
      variable.load(value, fed.session)
