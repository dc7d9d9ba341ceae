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
  inputs = list(map(id, tf.nest.flatten(batch.tensors)))
  folds: Dict[str, Optional[int]] = {}
  unknown = {}
  for name, tensor in {**draws, **loops}.items():
    if id(tensor) in inputs:
      folds[name] = 1
    # A later tower may have as many rows as one of the others by chance.
    elif guess_fold(tensor.shape, batch) == 0:
      folds[name] = 0
    else:
      unknown[name] = tensor
  if batch.num_rows is not None:
    folds.update(_find_met({name: draw for name, draw in draws.items() if name in unknown
                            and guess_fold(draw.shape, batch)}, batch))
    unknown = {name: tensor for name, tensor in unknown.items() if name not in folds}
  if not unknown:
    return folds
  found = _find_by(unknown, lambda: _infer(
      unknown, batch if batch.num_rows is None else call_beside().batch))
  # A draw of an open number of rows counts them when it draws.
  missing = {name for name in unknown if found.get(name) is None}
  if missing if batch.num_rows is not None else missing & set(loops):
    # Sizes may be constants of the model's, come out of a loop, or several axes be one.
    found.update(_find_by(unknown, lambda: [tensor.shape for tensor in _find_in(
        call_beside(rows=_ROWS, other=_ANY).batch, unknown)], knows_axes=True))
  return {**folds, **found}


def _find_taken_apart(loop):
  """Returns the tensors of which the turns of a loop read the rows."""
  graph = tf.get_default_graph()
  return [consumer.inputs[2] for name in loop._external_values
          for consumer in graph.get_tensor_by_name(name).consumers()
          if consumer.type == 'TensorArrayScatterV3']


def _find_met(draws, batch) -> Dict[str, int]:
  """Returns the folds of draws that ops take together with rows of a static batch."""
  of_batch = find_dependents([tensor.op for tensor in tf.nest.flatten(batch.tensors)],
                             by_control=False)
  met = {}
  for name, draw in draws.items():
    own = find_dependents([draw.op], by_control=False, without=of_batch)
    met[name] = [op for op in {op: None for before in own for tensor in before.outputs
                               for op in tensor.consumers()} if op in of_batch]
  rows = [tensor for ops in met.values() for op in ops for tensor in op.inputs
          if tensor.op in of_batch]

  def infer(tensors, shapes):
    try:
      return dict(zip([tensor.name for tensor in tensors], infer_shapes(tensors, shapes)))
    except ValueError:  # An op cannot have such inputs.
      return {}

  shapes = infer(rows, {tensor.name: _resize(tensor.shape)
                        for tensor in tf.nest.flatten(batch.tensors)})
  folds = {}
  for name, draw in draws.items() if shapes else ():
    results = [tensor for op in met[name] for tensor in op.outputs]
    size, *rest = draw.shape.as_list()
    fold = size // batch.num_rows
    fits, fits_more = (infer(results, {
        **shapes, draw.name: [fold * num_rows, *rest]})
                       for num_rows in (_ROWS, _ROWS + 1))
    if fits and not fits_more:
      folds[name] = fold
  return folds


def _find_by(tensors, find_shapes, knows_axes=False) -> Dict[str, Optional[int]]:
  """Returns the folds of tensors, of which `find_shapes` returns the shapes for `_ROWS` rows."""
  try:
    shapes = find_shapes()
  except Exception:  # A model that takes no such number of rows, or layers of another graph.
    return {}
  folds: Dict[str, Optional[int]] = {}
  for name, shape in zip(tensors, shapes):
    if shape.ndims and shape.as_list()[0] is not None:
      fold, rest = divmod(shape.as_list()[0], _ROWS)
      # Several rows may be those of an axis of any size.
      folds[name] = 0 if rest else fold if fold == 1 or knows_axes else None
  return folds


def _infer(tensors, batch):
  """Returns the shapes of tensors, in the graph of a batch, for `_ROWS` rows of it."""
  inputs = tf.nest.flatten(batch.tensors)
  with inputs[0].graph.as_default():
    return infer_shapes(_find_in(batch, tensors),
                        {tensor.name: _resize(tensor.shape) for tensor in inputs})


def _find_in(batch, tensors):
  """Returns the tensors of the same names in the graph of a batch."""
  graph = tf.nest.flatten(batch.tensors)[0].graph
  return [graph.get_tensor_by_name(tensor.name) for tensor in tensors.values()]


def _resize(shape):
  """Returns the shape of a batch's tensor for another number of rows."""
  if shape.ndims is None:
    return shape
  return [_ROWS] + [_ANY if size is None else size for size in shape.as_list()[1:]]
