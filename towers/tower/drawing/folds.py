"""Folds: how many rows of a draw belong to one example, as 1 of [batch, 10], 7 of [batch * 7], 0 of
what is no draw for each example, and `SECOND` of [time, batch, 10].

A first axis of unknown size may be that of the batch, of the time or of the vocabulary, and one of
the tower's number of rows may be so by chance. So the draw's shape is found once more for another
number of rows, from the ops themselves where the number of rows is open. Of a static one the model
may have made a constant: then an op that takes the draw and rows of the batch together, as dropout
multiplies them, tells that there are as many; else another call of the model does.

A loop whose turns take the rows of the batch one by one, as of `tf.map_fn`, has a fold of 1.
"""

from typing import Any, Callable, Dict, Optional, Sequence

from tensorflow_v1 import Operation, Tensor, import_placed, tf
from towers.graph.walk import find_called, find_dependents, find_loops
from towers.input.batch import Batch

# Primes that no model has: of rows, and of other axes of any size.
_ROWS, _ANY = 1013, 23
SECOND = -1  # The second axis is that of the rows.


def guess_fold(shape: Any, batch: Batch) -> Optional[int]:
  """Returns how many rows of a draw an example seems to have, 0 for none, None for any number."""
  if shape.ndims is None:
    return None
  size = shape.as_list()[0] if shape.ndims else 1
  if size is None or batch.num_rows is None:
    return None if size is None else 0
  return 0 if size % batch.num_rows else size // batch.num_rows


def may_be_second(shape: Any, batch: Batch) -> bool:
  """Returns whether the second axis of a draw may be that of the rows."""
  return bool(shape.ndims) and shape.as_list()[1:2] == [batch.num_rows]


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
  resized = {tensor.name: tensor.shape if tensor.shape.ndims is None else [
      _ROWS, *(size or _ANY for size in tensor.shape.as_list()[1:])]
      for tensor in tf.nest.flatten(batch.tensors)}
  folds: Dict[str, Optional[int]] = {}
  unknown = {}
  for name, tensor in {**draws, **loops}.items():
    if tensor.name in resized:
      folds[name] = 1
    # A later tower may have as many rows as one of the others by chance.
    elif guess_fold(tensor.shape, batch) == 0 and not may_be_second(tensor.shape, batch):
      folds[name] = 0
    else:
      unknown[name] = tensor
  if batch.num_rows is None:
    folds.update(_count_rows(unknown, _infer_shapes(list(unknown.values()), resized)))
  elif unknown:
    folds.update(_find_met({name: draw for name, draw in draws.items() if name in unknown
                            and draw.shape.is_fully_defined()}, batch, resized))
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


def _find_met(draws, batch, known) -> Dict[str, int]:
  """Returns the folds of draws that ops take together with rows of a static batch.

  Of each that is found, what it is taken with is `known` to the later ones.
  """
  of_batch = find_dependents([tensor.op for tensor in tf.nest.flatten(batch.tensors)],
                             by_control=False)
  folds = {}
  for name, draw in draws.items():
    own = find_dependents([draw.op], by_control=False, without=of_batch)
    met = {op: None for before in own for tensor in before.outputs
           for op in tensor.consumers() if op in of_batch}
    outputs = [tensor for op in met for tensor in op.outputs]
    beside = _infer_shapes([tensor for op in met for tensor in op.inputs
                            if tensor.op in of_batch], known)
    guesses = [guess_fold(draw.shape, batch)] + [SECOND] * may_be_second(draw.shape, batch)
    for fold in filter(None, guesses) if beside else ():
      given, more = ({**known, **beside, draw.name: _resize_draw(draw.shape, fold, num_rows)}
                     for num_rows in (_ROWS, _ROWS + 1))
      found, is_one = _infer_shapes(outputs, given), draw.shape.as_list()[int(fold == SECOND)] == 1
      # A single row may be that of all examples.
      if found and not is_one and not _infer_shapes(outputs, more):
        folds[name], known = fold, {**given, **found}
        break
  return folds


def _resize_draw(shape, fold, num_rows):
  first, *rest = shape.as_list()
  return [first, num_rows, *rest[1:]] if fold == SECOND else [fold * num_rows, *rest]


def _count_rows(tensors, shapes, knows_axes=False) -> Dict[str, Optional[int]]:
  """Returns the folds of tensors of which the shapes, by name, are those for `_ROWS` rows."""
  folds: Dict[str, Optional[int]] = {}
  for name, tensor in tensors.items():
    shape = shapes.get(tensor.name)
    first, *rest = shape.as_list() if shape is not None and shape.ndims else [None]
    if first is not None and first % _ROWS:
      folds[name] = SECOND if rest[:1] == [_ROWS] else 0
    elif first is not None:
      # Several rows may be those of an axis of any size.
      folds[name] = first // _ROWS if first == _ROWS or knows_axes else None
  return folds


def _infer_shapes(tensors, shapes) -> Dict[str, Any]:
  """Returns the shapes that tensors would have if inputs had others, by name; {} if an op cannot.

  TensorFlow's own inference tells, in a copy of what they are computed from, without a run. What
  the inputs are computed from is left out.
  """
  if not tensors:
    return {}
  graph = tf.get_default_graph()
  definition = tf.GraphDef(versions=graph.graph_def_versions)
  pending = list({tensor.op: None for tensor in tensors if tensor.name not in shapes})
  seen = set(pending)
  used: Dict[str, Tensor] = {}
  while pending:
    op = pending.pop()
    node = definition.node.add()
    node.CopyFrom(op.node_def)
    node.device = ''
    node.attr.pop('_class', None)
    node.input[:] = [tensor.name for tensor in op.inputs]
    for tensor in op.inputs:
      # What is computed from variables may be most of a net, and has other shapes for none.
      if tensor.name in shapes or tensor.op.type == 'ReadVariableOp':
        used[tensor.name] = tensor
      elif tensor.op not in seen:
        seen.add(tensor.op)
        pending.append(tensor.op)
  if any(find_called(graph, node) for node in definition.node):
    definition.library.CopyFrom(graph.as_graph_def(from_version=graph.version).library)
  with tf.Graph().as_default() as copy:
    stand_ins: Dict[Any, Tensor] = {}  # One for all inputs of a shape.
    for name, tensor in used.items():
      shape = shapes.get(name, tensor.shape)
      key = tensor.dtype, str(shape)
      if key not in stand_ins:
        stand_ins[key] = tf.placeholder(tensor.dtype, shape, 'resized/input')
      used[name] = stand_ins[key]
    try:
      import_placed(definition, name='', input_map=used, return_elements=[])
    except ValueError:
      return {}
    return {tensor.name: tf.TensorShape(shapes[tensor.name]) if tensor.name in shapes
            else copy.get_tensor_by_name(tensor.name).shape for tensor in tensors}
