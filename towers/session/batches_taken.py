"""Which batches a run of any fetches takes, so that a session puts as many back."""

import difflib
from typing import Any, List, NamedTuple, Tuple

from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed
from towers.graph.writes import find_writes
from towers.input.pipeline import GET_NEXTS
from towers.placement.counters import get_examples_seen, get_global_step
from towers.placement.patterns import shorten
from towers.settings.arguments import describe
from towers.tensorflow_v1 import tf
from towers.training_graph import TrainingGraph

# Ops that take a batch from an iterator or a staging area, or put one there.
_INPUT_OPS = (*GET_NEXTS, 'Unstage', 'Stage')


class BatchesTaken(NamedTuple):
  """Which batches a run takes."""
  by_towers: bool  # Whether the towers take theirs, of training or of the switch.
  by_validation: bool  # Whether a validation tower takes its own.
  updates: bool  # Whether the run updates the weights.
  moves_step: bool  # Whether it writes `global_step` or `examples_seen`, as an update does.
  starts_anew: bool  # Whether it gives all weights their first values.


def name_variables(fetches: List[Any]) -> List[Any]:
  """Returns fetches with the variables of the default graph in place of their names."""
  if not any(isinstance(fetch, str) for fetch in fetches):
    return fetches
  variables = {name: variable for variable in tf.global_variables() + tf.local_variables()
               for name in (variable.op.name, variable.name)}
  return [variables.get(fetch, fetch) if isinstance(fetch, str) else fetch for fetch in fetches]


def list_fetched(graph: tf.Graph, fetches: List[Any]) -> Tuple[tf.Operation, ...]:
  """Returns the ops of tensors, ops and names of a graph."""
  ops = []
  for fetch in tf.nest.flatten(fetches, expand_composites=True):
    try:
      element = graph.as_graph_element(fetch)
    except (KeyError, TypeError, ValueError) as error:
      raise UsageError(_explain(graph, fetch, error)) from None
    ops.append(getattr(element, 'op', element))
  return tuple(ops)


def _explain(graph, fetch, error):
  """Returns why a graph has no such element, and what to fetch."""
  if isinstance(fetch, str):
    names = [op.name for op in graph.get_operations()]
    weights = [variable.op.name for variable in graph.get_collection(
        tf.GraphKeys.TRAINABLE_VARIABLES)]
    asked = fetch.split(':')[0]
    alike = [name for name in names if name.endswith('/' + asked)]
    alike = alike or next(filter(None, (
        difflib.get_close_matches(asked, of) for of in (weights, names))), weights)
    return f'The program has no {fetch}: fetch one of {shorten(alike)}.'
  if isinstance(error, ValueError):
    return f'{fetch!r} is of another graph: make it in `with program.graph.as_default():`.'
  return (f'session.run got {describe(fetch)}, and fetches tensors, ops and names of the program: '
          "write session.run('dense/kernel') for a variable, or session.predict(arrays, function) "
          'for what a function computes of arrays.')


def find_taken(program: TrainingGraph, fetched: Tuple[tf.Operation, ...]) -> BatchesTaken:
  """Returns which batches a run takes, of the ops that it fetches.

  A part of a step that accumulates micro-batches is refused by a UsageError.
  """
  needed = find_needed(fetched)
  updates = program.train_op.op in needed
  add_op = program.gradients.add_op
  added = set() if add_op is None else needed & find_needed([add_op])
  if any(op.type.startswith('Assign') for op in added):
    raise UsageError('The program accumulates micro-batches, so that a step is several runs, and '
                     'these fetches are part of it: use session.train(), or fetch what a single '
                     'tower computes.')
  inputs = {op for op in needed if op.type in _INPUT_OPS}
  if program.plan.is_by_hand:
    inputs |= {part.op for batch in program.feed.templates for part in batch.flatten()
               if tf.is_tensor(part) and part.op in needed}
  validation, own = program.validation, set()
  if validation is not None and validation.has_tower:
    own = find_needed([validation.sums.op])
  with program.graph.as_default():
    counters = [get_global_step().op, get_examples_seen().op]
    starts = {variable.initializer for variable in tf.trainable_variables()}
  moves_step = any(write.op in needed for write in find_writes(program.graph, counters))
  return BatchesTaken(bool(inputs - own), bool(inputs & own), updates, moves_step, starts <= needed)


def put_back(program: TrainingGraph, taken: BatchesTaken, *, is_validating: bool) -> List[Any]:
  """Returns what a run must fetch besides, so that every area it takes from is full again."""
  validation, puts = program.validation, []
  if taken.by_towers:
    feed = validation.feed if validation and is_validating else program.feed
    puts += [tensor.op for batch in program.batches
             for tensor in tf.nest.flatten(batch.tensors)] + feed.put_ops
  if validation and taken.by_validation:
    puts.append(validation.sums)
  return puts
