"""Folds: how many rows of a draw belong to one example, as 1 of [batch, 10], 7 of [batch * 7], and
0 of what is no draw for each example.

A first axis of unknown size may be that of the batch, of the time or of the vocabulary, and one of
the tower's number of rows may be so by chance. So the draw's shape is found once more for another
number of rows, in a graph beside: from the ops themselves where the number of rows is open, else
by another call of the model, which has made constants of it.
"""

from typing import Any, Callable, Dict, Iterable, Optional, Sequence

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
               call_again: Callable[[Sequence[Any]], None]) -> Dict[str, Optional[int]]:
  """Returns the folds of a tower's draws by their names without its scope, None for any number.

  A draw is left out if nothing but a guess is left.

  Args:
    ops: that draw.
    batch: of their tower.
    scope: of it.
    call_again: calls the model in the default graph, for names in the same scope.
  """
  draws = [op for op in ops if guess_fold(op.outputs[0].shape, batch) != 0]
  fed, is_open = tf.nest.flatten(batch.tensors), batch.num_rows is None
  if not draws:
    return {}
  try:
    if is_open:
      shapes = infer_shapes([op.outputs[0] for op in draws],
                            {tensor.name: _resize(tensor.shape) for tensor in fed})
    else:
      with tf.Graph().as_default() as graph:
        call_again([tf.placeholder(tensor.dtype, _resize(tensor.shape), 'folds/batch')
                    for tensor in fed])
        shapes = [graph.get_operation_by_name(op.name).outputs[0].shape for op in draws]
  except Exception:  # A model that takes no other number of rows, or layers of another graph.
    return {}
  folds: Dict[str, Optional[int]] = {}
  for op, shape in zip(draws, shapes):
    if shape.ndims and shape.as_list()[0] is not None:
      fold, rest = divmod(shape.as_list()[0], _ROWS)
      # Several rows may be those of an axis of any size.
      folds[op.name.replace(scope, '')] = 0 if rest else fold if fold == 1 or not is_open else None
  return folds


def _resize(shape):
  """Returns the shape of a batch's tensor for another number of rows."""
  if shape.ndims is None:
    return shape
  return [_ROWS] + [_ANY if size is None else size for size in shape.as_list()[1:]]
