"""Folds: how many rows of a draw belong to one example, as 1 of [batch, 10], 7 of [batch * 7], and
0 of what is no draw for each example.

A first axis of unknown size may be that of the batch, of the time or of the vocabulary, and one of
the tower's number of rows may be so by chance. So the draw's shape is found once more for another
number of rows, from the ops themselves where the number of rows is open. Of a static one the model
may have made a constant: then an op that takes the draw and rows of the batch together, as dropout
multiplies them, tells that there are as many; else another call of the model does.

A loop whose turns take the rows of the batch one by one, as of `tf.map_fn`, has a fold of 1.
"""

from typing import Any, Callable, Dict, Optional, Sequence

from tensorflow_v1 import Operation, tf
from towers.graph.resized import infer_shapes
from towers.graph.walk import find_dependents, find_loops
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


def find_folds(ops: Sequence[Operation], batch: Batch, *, scope: str,
               call_beside: Callable[..., Any]) -> Dict[str, Optional[int]]:
  """Returns the folds of a tower's draws, and of the loops around them, by their names without its
  scope, None for any number.

  What nothing but a guess is left for is left out.

  Args:
    ops: that draw.
    batch, scope: of their tower.
    call_beside: as of `Tower`.
  """
  draws = {op.name.replace(scope, ''): op.outputs[0] for op in ops}
  # A loop may take several tensors apart, all of as many rows.
  loops = {loop.name.replace(scope, ''): tensor for op in ops for loop in find_loops(op)
           for tensor in _find_taken_apart(loop)}
  resized = {tensor.name: _resize(tensor.shape) for tensor in tf.nest.flatten(batch.tensors)}
  folds: Dict[str, Optional[int]] = {}
  unknown = {}
  for name, tensor in {**draws, **loops}.items():
    if tensor.name in resized:
      folds[name] = 1
    # A later tower may have as many rows as one of the others by chance.
    elif guess_fold(tensor.shape, batch) == 0:
      folds[name] = 0
    else:
      unknown[name] = tensor
  if batch.num_rows is None:
    folds.update(_count_rows(unknown, _infer(list(unknown.values()), resized)))
  elif unknown:
    folds.update(_find_met({name: draw for name, draw in draws.items() if name in unknown
                            and guess_fold(draw.shape, batch)}, batch, resized))
  # A draw of an open number of rows counts them when it draws.
  unknown = {name: tensor for name, tensor in unknown.items() if folds.get(name) is None
             and (batch.num_rows is not None or name in loops)}
  if not unknown:
    return folds
  # Sizes may be constants of the model's, come out of a loop, or several axes be one.
  try:
    graph = call_beside(rows=_ROWS, other=_ANY).graph
    shapes = {tensor.name: graph.get_tensor_by_name(tensor.name).shape
              for tensor in unknown.values()}
  except Exception:  # A model that takes no such number of rows, or layers of another graph.
    return folds
  return {**folds, **_count_rows(unknown, shapes, knows_axes=True)}


def _find_taken_apart(loop):
  """Returns the tensors of which the turns of a loop read the rows."""
  graph = tf.get_default_graph()
  return [consumer.inputs[2] for name in loop._external_values
          for consumer in graph.get_tensor_by_name(name).consumers()
          if consumer.type == 'TensorArrayScatterV3']


def _find_met(draws, batch, resized) -> Dict[str, int]:
  """Returns the folds of draws that ops take together with rows of a static batch."""
  of_batch = find_dependents([tensor.op for tensor in tf.nest.flatten(batch.tensors)],
                             by_control=False)
  met = {}
  for name, draw in draws.items():
    own = find_dependents([draw.op], by_control=False, without=of_batch)
    met[name] = {op: None for before in own for tensor in before.outputs
                 for op in tensor.consumers() if op in of_batch}
  shapes = _infer([tensor for ops in met.values() for op in ops for tensor in op.inputs
                   if tensor.op in of_batch], resized)
  folds = {}
  for name, draw in draws.items() if shapes else ():
    size, *rest = draw.shape.as_list()
    fold = size // batch.num_rows
    fits, fits_more = (_infer([tensor for op in met[name] for tensor in op.outputs], {
        **shapes, draw.name: [fold * num_rows, *rest]}) for num_rows in (_ROWS, _ROWS + 1))
    if fits and not fits_more and size > 1:  # A single row may be that of all examples.
      folds[name] = fold
  return folds


def _infer(tensors, shapes) -> Dict[str, Any]:
  """Returns the shapes of tensors, by name, for others of inputs; {} if no op can have these."""
  try:
    found = infer_shapes(tensors, shapes) if tensors else []
    return dict(zip([tensor.name for tensor in tensors], found))
  except ValueError:
    return {}


def _count_rows(tensors, shapes, knows_axes=False) -> Dict[str, Optional[int]]:
  """Returns the folds of tensors of which the shapes, by name, are those for `_ROWS` rows."""
  folds: Dict[str, Optional[int]] = {}
  for name, tensor in tensors.items():
    shape = shapes.get(tensor.name)
    if shape is not None and shape.ndims and shape.as_list()[0] is not None:
      fold, rest = divmod(shape.as_list()[0], _ROWS)
      # Several rows may be those of an axis of any size.
      folds[name] = 0 if rest else fold if fold == 1 or knows_axes else None
  return folds


def _resize(shape):
  """Returns the shape of a batch's tensor for another number of rows."""
  if shape.ndims is None:
    return shape
  return [_ROWS] + [_ANY if size is None else size for size in shape.as_list()[1:]]
