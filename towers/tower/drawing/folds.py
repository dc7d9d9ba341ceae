"""Folds: how many rows of a draw belong to one example, as 1 of [batch, 10], 7 of [batch * 7], and
0 of what is no draw for each example.

A first axis of unknown size may be that of the batch, of the time or of the vocabulary, and one of
the tower's number of rows may be so by chance. So the draw's shape is found once more for another
number of rows: from the ops themselves where the number of rows is open, else from those of another
call of the model, which may have made constants of it.
"""

from typing import Any, Callable, Dict, Iterable, Optional

from tensorflow_v1 import Operation, tf
from towers.graph.resized import infer_shapes
from towers.input.batch import Batch

# Primes that no model has: of rows, and of other axes of any size.
_ROWS, _ANY = 1013, 23


def guess_fold(shape: Any, batch: Batch) -> Optional[int]:
  """Returns how many rows of a draw an example seems to have, 0 for none, None for any number."""
  if shape.ndims is None:
    return None
  size = shape.as_list()[0] if shape.ndims else 1
  if size is None or batch.num_rows is None:
    return None if size is None else 0
  return 0 if size % batch.num_rows else size // batch.num_rows


def find_folds(ops: Iterable[Operation], batch: Batch, *, scope: str,
               call_beside: Callable[..., Any]) -> Dict[str, Optional[int]]:
  """Returns the folds of a tower's draws by their names without its scope, None for any number.

  A draw is left out if nothing but a guess is left.

  Args:
    ops: that draw.
    batch: of their tower.
    scope: of it.
    call_beside: as of `Tower`.
  """
  ops = list(ops)
  draws = [op for op in ops if guess_fold(op.outputs[0].shape, batch) != 0]
  # A later tower may have as many rows as one of the others by chance.
  others: Dict[str, Optional[int]] = {
      op.name.replace(scope, ''): 0 for op in ops if op not in draws}
  if not draws:
    return others
  if batch.num_rows is None:
    return {**others, **_find_by(draws, scope, lambda: _infer(draws, batch))}
  folds = _find_by(draws, scope, lambda: _infer(draws, call_beside().batch))
  if len(folds) != len(draws) or None in folds.values():
    # Sizes may be constants of the model's, or several axes one.
    folds = _find_by(draws, scope, lambda: [
        tensor.shape for tensor in _find_outputs(
            draws, call_beside(rows=_ROWS, other=_ANY).batch)], knows_axes=True)
  return {**others, **folds}


def _find_by(draws, scope, find_shapes, knows_axes=False) -> Dict[str, Optional[int]]:
  """Returns the folds of draws, of which `find_shapes` returns the shapes for `_ROWS` rows."""
  try:
    shapes = find_shapes()
  except Exception:  # A model that takes no such number of rows, or layers of another graph.
    return {}
  folds: Dict[str, Optional[int]] = {}
  for op, shape in zip(draws, shapes):
    if shape.ndims and shape.as_list()[0] is not None:
      fold, rest = divmod(shape.as_list()[0], _ROWS)
      # Several rows may be those of an axis of any size.
      folds[op.name.replace(scope, '')] = (
          0 if rest else fold if fold == 1 or knows_axes else None)
  return folds


def _infer(draws, batch):
  """Returns the shapes of draws, in the graph of a batch, for `_ROWS` rows of it."""
  tensors = tf.nest.flatten(batch.tensors)
  with tensors[0].graph.as_default():
    return infer_shapes(_find_outputs(draws, batch),
                        {tensor.name: _resize(tensor.shape) for tensor in tensors})


def _find_outputs(draws, batch):
  """Returns the draws, of the same names, in the graph of a batch."""
  graph = tf.nest.flatten(batch.tensors)[0].graph
  return [graph.get_operation_by_name(op.name).outputs[0] for op in draws]


def _resize(shape):
  """Returns the shape of a batch's tensor for another number of rows."""
  if shape.ndims is None:
    return shape
  return [_ROWS] + [_ANY if size is None else size for size in shape.as_list()[1:]]
