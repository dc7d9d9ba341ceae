"""Which batches a run of any fetches takes, so that a session puts as many back."""

import difflib
from typing import Any, Dict, List, NamedTuple, Set, Tuple

from tensorflow_v1 import tf
from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed
from towers.input.pipeline import GET_NEXTS
from towers.placement.patterns import shorten
from towers.training_graph import TrainingGraph

# Ops that take a batch from an iterator or a staging area, or put one there.
_INPUT_OPS = (*GET_NEXTS, 'Unstage', 'Stage')


class BatchesTaken(NamedTuple):
  """Which batches a run takes.

  Attributes:
    by_towers: whether the towers take theirs, of training or of the switch.
    by_validation: whether a validation tower takes its own.
    updates: whether the run updates the weights.
  """
  by_towers: bool
  by_validation: bool
  updates: bool


class BatchFinder:
  """Finds which batches a run takes; it remembers what it has found for the same fetches."""

  def __init__(self, program: TrainingGraph):
    self._program = program
    self._found: Dict[Tuple[str, ...], BatchesTaken] = {}

  def find(self, fetches: Any) -> BatchesTaken:
    """Returns which batches a run of the fetches takes."""
    ops = _list_ops(self._program.graph, fetches)
    key = tuple(op.name for op in ops)
    if key not in self._found:
      self._found[key] = _find_taken(self._program, find_needed(ops))
    return self._found[key]

  def put_back(self, taken: BatchesTaken, *, is_validating: bool) -> List[Any]:
    """Returns what a run must fetch besides, so that every area it takes from is full again."""
    program, validation, puts = self._program, self._program.validation, []
    if taken.by_towers:
      feed = validation.feed if validation and is_validating else program.feed
      puts += [tensor.op for batch in program.batches
               for tensor in tf.nest.flatten(batch.tensors)] + feed.put_ops
    if validation and taken.by_validation:
      puts.append(validation.sums)
    return puts


def _list_ops(graph: tf.Graph, fetches: Any) -> Any:
  """Returns the ops of any structure of tensors, ops and names of a graph."""
  ops = []
  for fetch in tf.nest.flatten(fetches, expand_composites=True):
    try:
      element = graph.as_graph_element(fetch)
    except KeyError:
      names = [op.name for op in graph.get_operations()]
      tail = '/' + str(fetch).split(':')[0]
      alike = [name for name in names if name.endswith(tail)] or difflib.get_close_matches(
          tail, names)
      raise UsageError(f'The program has no {fetch}: fetch one of '
                       f"{shorten(alike or names)}.") from None
    ops.append(getattr(element, 'op', element))
  return ops


def _find_taken(program: TrainingGraph, needed: Set[tf.Operation]) -> BatchesTaken:
  """Returns which batches a run of the ops `needed` takes.

  Raises:
    UsageError: the run would be a part of a step that accumulates micro-batches.
  """
  updates = program.train_op.op in needed
  add_op = program.gradients.add_op
  added = set() if add_op is None else needed & find_needed([add_op])
  if any(op.type.startswith('Assign') for op in added):
    raise UsageError('The program accumulates micro-batches, so that a step is several runs, and '
                     'these fetches are part of it: use session.train(), or fetch what a single '
                     'tower computes.')
  inputs = {op for op in needed if op.type in _INPUT_OPS}
  validation, own = program.validation, set()
  if validation is not None and validation.is_validating is None:
    own = find_needed([validation.sums.op])
  return BatchesTaken(bool(inputs - own), bool(inputs & own), updates)
