"""Towers apart: a tower's results come from its own batch, and its loss has no penalties.

A graph's collections are those of all towers. Of losses, and in those of its own, a model finds
what this tower has put there alone, as by `tf.losses.get_total_loss()` or
`tf.get_collection('losses')`; in TensorFlow's others what all have. By `tf.trainable_variables()`
it finds what the first tower has found there, those made so far, and those that are frozen since.
And the gradient of penalties in REGULARIZATION_LOSSES is added once for all towers: in the loss
they would count twice.
"""

import collections
import contextlib
import sys
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from towers.base.usage_error import UsageError
from towers.graph.walk import find_dependents, find_needed, list_sources
from towers.input.batch import Batch
from towers.tensorflow_v1 import Gradient, Operation, Tensor, Variable, replaced, tf

# Collections in which a model finds what all towers have put there.
_SHARED = {key for key in vars(tf.GraphKeys).values() if isinstance(key, str)} - {
    tf.GraphKeys.LOSSES}


@contextlib.contextmanager
def own_collections(others: Sequence[str], listed: Dict[Any, List[Variable]]) -> Iterator[None]:
  """Hides within the context what towers of these name scopes have put into collections, and lists
  trainable variables as the first tower did, which is `listed` by scope and line."""
  graph, hidden = tf.get_default_graph(), []
  find = graph.get_collection
  calls: Dict[Any, int] = collections.Counter()

  def find_as_first(name, scope=None):
    found = find(name, scope)
    if name != tf.GraphKeys.TRAINABLE_VARIABLES:
      return found
    frame: Any = sys._getframe(1)
    while frame.f_globals.get('__name__', '').startswith('tensorflow.'):
      frame = frame.f_back
    call = scope, frame.f_code, frame.f_lineno
    calls[call] += 1
    return list(listed.setdefault((call, calls[call]), found))

  for key in graph.get_all_collection_keys() if others else ():
    if key not in _SHARED and not str(key).startswith('towers/'):
      items = graph.get_collection_ref(key)
      ops = [getattr(item, 'op', item) for item in items]
      kept = [item for item, op in zip(items, ops) if not (
          isinstance(op, Operation) and op.name.startswith(tuple(others)))]
      if len(kept) < len(items):
        hidden.append((items, items[:], kept))
        items[:] = kept
  try:
    with replaced((graph, 'get_collection', find_as_first)):
      yield
  finally:
    for items, before, kept in hidden:
      items[:] = before + [item for item in items if not any(item is one for one in kept)]


def check_apart(results: Mapping[str, Sequence[Optional[Gradient]]], ops: Sequence[Operation], *,
                index: int, others: Sequence[str], batch: Batch) -> None:
  """Raises UsageError for results of a tower that are computed from another tower's ops.

  An op that depends on nothing fed, read or drawn may be shared: it is the same in every tower.

  Args:
    results: by their noun, for the message.
    ops, index, batch: of the tower; the batch may come from anywhere.
    others: the name scopes of the towers before it, each with a slash at its end.
  """
  # A layer may name its ops after the tower that first called it.
  own = set(ops).union(tensor.op for tensor in batch.flatten() if tf.is_tensor(tensor))
  crossings = [(op, source) for op in ops if others
               for source in list_sources(op)
               if source.name.startswith(tuple(others)) and source not in own]
  reached = find_dependents(op for op, _ in crossings)
  for what, values in results.items():
    tensors = tf.nest.flatten([value for value in values if value is not None],
                              expand_composites=True)
    needed = find_needed([tensor.op for tensor in tensors], within=reached)
    for op, source in crossings:
      if op in needed and not _is_same_everywhere(source):
        raise UsageError(f'The {what} of tower {index} is computed from the op {source.name}, '
                         f'which is of another tower and its examples. {_find_fix(source)}')


def check_penalties(loss: Tensor, penalties: Sequence[Tensor], ops: Sequence[Operation]) -> None:
  """Raises UsageError for a loss, of a tower's `ops`, that includes one of its penalties."""
  # TensorFlow 2.x computes a regularizer's penalty anew wherever it is used, in the same scope.
  marks = [penalty.op.name.partition('/Regularizer/')[:2] for penalty in penalties]
  scopes = tuple(''.join(mark) for mark in marks if mark[1])
  own = {penalty.op for penalty in penalties}.union(
      op for op in ops if scopes and op.name.startswith(scopes))
  dependents = find_dependents(own, by_control=False)
  if loss.op in dependents:
    found = min(op.name for op in own & find_needed([loss.op], within=dependents))
    name, mark, _ = found.partition('/Regularizer/')
    raise UsageError('The model\'s loss holds a penalty of tf.GraphKeys.REGULARIZATION_LOSSES, '
                     f'{"that of " if mark else ""}{name}, whose gradient is added once for all '
                     'towers: it would count twice. Return the loss without penalties, as '
                     'tf.losses.get_total_loss(add_regularization_losses=False) does.')


def _is_same_everywhere(op):
  """Returns whether an op depends on nothing fed, read or drawn, such as constants and tables."""
  return not any(
      source.type == 'Placeholder' or source.op_def.is_stateful and not (
          source.outputs and all(tensor.dtype == tf.resource for tensor in source.outputs))
      for source in find_needed([op]))


def _find_fix(source) -> str:
  """Returns the fix for a result that needs an op of another tower."""
  graph = tf.get_default_graph()
  for key in graph.get_all_collection_keys():
    if any(getattr(item, 'op', item) is source for item in graph.get_collection_ref(key)):
      return (f"It was found in the collection '{key}', which holds those of all towers: get this "
              f"tower's alone by tf.get_collection('{key}', scope), with scope = "
              "tf.get_default_graph().get_name_scope() + '/' at the beginning of the model.")
  return ('It is in no collection: the model keeps it from one call to the next. Make it anew in '
          'each call.')
