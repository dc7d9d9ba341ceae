"""Layouts: where the rows of the batch stand in a draw, found by measurement.

  [batch, 10]  [time, batch, 10]  [to, from, batch, heads]     an axis of its own, anywhere
  [batch * time, 10]     Layout(0, outer=1, inner=time)        the rows of an example side by side
  [time * batch, 10]     Layout(0, outer=time, inner=1)        all rows, once for each of the times
  [tokens, 10]  [1, tokens, 10]         Layout(…, kept=0)      what a mask has kept of such an axis

A first axis of unknown size may be that of the batch, of the time or of the vocabulary, and one of
the tower's number of rows may be so by chance. So the draw's shape is found once more for a number
of rows that is a large prime, from the ops themselves where the number of rows is open. Of a static
one the model may have made a constant: then an op that takes the draw and rows of the batch
together, as dropout multiplies them, tells which axis grows; else another call of the model does.

The order within an axis of several rows for each example is in no shape, but an op that makes it
of one of the rows alone, or takes it apart into one, has it: a reshape, a concatenation, a tile.

How many entries a mask keeps is known to a run alone. But which draws have one for each is found in
the same way, by a mask that keeps a number of entries that nothing else has. And so is what has the
size of the batch's longest example. Each tower has another one of its own, so only those that all
find together, as by `all_rows`, make the numbers of an example the same.

A loop whose turns take the rows of the batch one by one, as of `tf.map_fn`, has the layout of what
it takes apart.
"""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from towers.graph.resized import copy_resized, find_outer, list_grown
from towers.graph.walk import find_dependents, find_loops, find_needed, find_taken_apart, walk
from towers.input.batch import Batch
from towers.placement import randomness
from towers.tensorflow_v1 import Operation, Tensor, tf
from towers.tower.all_towers import is_of_all, is_own

# Primes that no model has: of rows, which Python may go through, of other axes of any size, and of
# what a mask keeps.
_ROWS, _ANY, _KEPT = 211, 23, 1000003
# Of the longest example, of which nothing has less.
_LONGEST = 5
_NUMBER = re.compile(r'_\d+/')  # In the name of an op, of a scope that is not the first.


class Layout(NamedTuple):
  """Where rows stand: on an axis of [outer, rows, inner]. One of the two may be None, any number.

  Attributes:
    kept: the number of the op, among those of type `Where` in the tower, that keeps of such an axis
      what the draw's `kept_axis` has; None where it has the axis itself.
    is_cut: whether another axis is as long as the longest example of the tower, not of all.
  """
  axis: int = 0
  outer: Optional[int] = 1
  inner: Optional[int] = 1
  kept: Optional[int] = None
  kept_axis: int = 0
  is_cut: bool = False


Layouts = Dict[str, Optional[Layout]]
"""By names without their tower's scope; None for what has no rows."""


def guess_layout(shape: Any, batch: Batch) -> Optional[Layout]:
  """Returns the layout that a draw seems to have, None for no rows."""
  return Layout(0, 1, None) if 0 in _list_candidates(shape, batch) else None


def is_clear(op: Operation, batch: Batch) -> bool:
  """Returns whether an op of one tower draws in the right order whatever its layout is."""
  taken_apart = [tensor for loop in find_loops(op) for tensor in find_taken_apart(loop)]
  axes = {(axis, tf.compat.dimension_value(tensor.shape[axis]))
          for tensor in (op.outputs[0], *taken_apart)
          for axis in _list_candidates(tensor.shape, batch)}
  return not axes or axes == {(0, batch.num_rows)} and batch.num_rows is not None


def _list_candidates(shape, batch) -> List[int]:
  """Returns the axes that may hold rows."""
  if shape.ndims is None:
    return [0]
  return [axis for axis, size in enumerate(shape.as_list())
          if size is None or size and batch.num_rows and size % batch.num_rows == 0]


def find_layouts(ops: Sequence[Operation], masks: Sequence[Operation],
                 largest: Sequence[Operation], batch: Batch, *, scope: str,
                 call_in_scratch: Any) -> Layouts:
  """Returns the layouts of a tower's draws, and of the loops around them.

  What nothing but a guess is left for is left out.

  Args:
    ops: that draw.
    masks: of type `Where`, in order.
    largest: of type `Max`.
    batch, scope, call_in_scratch: of their tower.
  """
  draws = {op.name.replace(scope, ''): op.outputs[0] for op in ops}
  # A loop may take several tensors apart, all of as many rows.
  loops = {loop.name.replace(scope, ''): tensor for op in ops for loop in find_loops(op)
           for tensor in find_taken_apart(loop)}
  resized = {tensor.name: tensor.shape if tensor.shape.ndims is None else [
      _ROWS, *(size or _ANY for size in tensor.shape.as_list()[1:])]
      for tensor in tf.nest.flatten(batch.tensors)}
  # Those that only a loop asks for are where TensorFlow's own ends.
  sizes = [op.outputs[0] for op in largest
           if op.outputs[0].dtype.is_integer and op.outputs[0].shape.ndims == 0
           and any(user.type != 'Enter' for user in op.outputs[0].consumers())]
  own = {size.name: _LONGEST for size in sizes if is_own(size.op, batch.tensors)}
  shared = {size.name: _LONGEST for size in sizes if size.name not in own}
  own.update(_list_padded_alone(batch))
  layouts: Layouts = {}
  unknown = {}
  for name, tensor in {**draws, **loops}.items():
    if tensor.name in resized:
      layouts[name] = Layout()
    # A later tower may have as many rows as one of the others by chance.
    elif not _list_candidates(tensor.shape, batch) or is_of_all(tensor.op, batch.tensors):
      layouts[name] = None
    else:
      unknown[name] = tensor
  if unknown and batch.num_rows is None:
    _read_layouts(unknown, layouts, _copy_open(unknown, resized))
    _read_longest(unknown, layouts, shared, resized)
    _read_kept(unknown, layouts, masks, resized)
  elif unknown:
    _read_layouts(unknown, layouts, _copy_met(
        {name: draw for name, draw in draws.items() if name in unknown
         and draw.shape.is_fully_defined()}, batch, resized))
  fed: Dict[str, Any] = {}
  for is_first in (True, False):
    if not (unknown and (is_first or fed)):
      break
    # Sizes may be constants of the model's, come out of a loop, or several axes be one.
    try:
      graph = call_in_scratch([_ROWS], other=_ANY, shapes=fed).graph
      copies = _find_copies(unknown, ops, graph, scope)
      masks = [graph.get_operation_by_name(mask.name) for mask in masks]
    except Exception:  # A model that takes no such number of rows, or layers of another graph.
      pass
    else:
      _read_layouts(copies, layouts, {tensor.name: tensor for tensor in copies.values()})
      _read_layouts(copies, layouts, copy_resized(list(copies.values()), {}))
      _read_longest(copies, layouts, shared, {})
      _read_kept(copies, layouts, masks, {})
      unknown = {name: tensor for name, tensor in unknown.items() if name not in layouts}
  if own and batch.row_offset is not None:
    as_they_are = {tensor.name: tensor.shape for tensor in tf.nest.flatten(batch.tensors)}
    _mark_cut(layouts, draws, {**as_they_are, **shared}, own)
  return layouts


def _find_copies(tensors, ops, graph, scope) -> Dict[str, Tensor]:
  """Returns tensors like those of a tower in a graph of its model alone, where ops outside of the
  scope, as those of a getter of weights, may have other numbers in their names."""
  def list_alike(op, among):
    return [other for other in among if _NUMBER.sub('/', other.name) == _NUMBER.sub('/', op.name)]

  copies = {}
  for name, tensor in tensors.items():
    if tensor.name.startswith(scope):
      copies[name] = graph.get_tensor_by_name(tensor.name)
    elif tensor.op in ops:
      alike, others = list_alike(tensor.op, ops), list_alike(tensor.op, graph.get_operations())
      if len(alike) == len(others):
        copies[name] = others[alike.index(tensor.op)].outputs[0]
  return copies


def _list_padded_alone(batch) -> Dict[str, Any]:
  """Returns the shapes of what is padded by itself in each tower or micro-batch, by name."""
  place, sharding = batch.row_offset, batch.sharding
  if place is None or sharding is None or sharding.num_shards == 1 and isinstance(place.begin, int):
    return {}
  shapes = {tensor.name: tensor.shape.as_list() for tensor in tf.nest.flatten(batch.tensors)
            if tensor.shape.ndims}
  return {name: [num_rows, *(size or _LONGEST for size in sizes)]
          for name, (num_rows, *sizes) in shapes.items() if None in sizes}


def _mark_cut(layouts, draws, shapes, own) -> None:
  """Marks draws whose shapes are known once the tower's `own` sizes are numbers."""
  found = {name: tensor for name, tensor in draws.items()
           if layouts.get(name) and not tensor.shape.is_fully_defined()}
  before, after = [copy_resized(list(found.values()), sizes) for sizes in (
      shapes, {**shapes, **own})]
  for name, tensor in found.items() if before and after else ():
    if _count_open(after[tensor.name]) < _count_open(before[tensor.name]):
      layouts[name] = layouts[name]._replace(is_cut=True)


def _count_open(tensor) -> int:
  return (tensor.shape.as_list() if tensor.shape.ndims else []).count(None)


def _copy_open(tensors, resized):
  """Returns tensors for `_ROWS` rows, by name, of a batch whose number of rows is open."""
  copies = copy_resized(list(tensors.values()), resized)
  several = [tensors[name] for name, tensor in tensors.items()
             if any(factor > 1 for _, factor in list_grown(copies.get(tensor.name), _ROWS))]
  # The order of several rows is in the ops around a draw. A farther one may take no such sizes, as
  # where nothing reads it.
  near = list(walk([draw.op for draw in several], lambda op: [
      reader for tensor in op.outputs for reader in tensor.consumers()], nearest_first=True))
  around: Dict[str, Tensor] = {}
  while near and not around:
    around = copy_resized([tensor for op in near for tensor in op.outputs], resized)
    near = near[:len(near) // 2]
  return {**copies, **around}


def _copy_met(draws, batch, known) -> Dict[str, Tensor]:
  """Returns for draws that ops take together with rows of a static batch those of `_ROWS` rows.

  Of each that is found, what it is taken with is `known` to the later ones.
  """
  of_batch = find_dependents([tensor.op for tensor in tf.nest.flatten(batch.tensors)],
                             by_control=False)
  copies: Dict[str, Tensor] = {}
  for draw in draws.values():
    own = find_dependents([draw.op], by_control=False, without=of_batch)
    met = {op: None for before in own for tensor in before.outputs
           for op in tensor.consumers() if op in of_batch}
    outputs = [tensor for op in met for tensor in op.outputs]
    beside = _infer_shapes([tensor for op in met for tensor in op.inputs
                            if tensor.op in of_batch], known)
    sizes, fits = draw.shape.as_list(), []
    for axis in _list_candidates(draw.shape, batch) if beside else ():
      given, more = ({**known, **beside, draw.name: [
          size // batch.num_rows * num_rows if index == axis else size
          for index, size in enumerate(sizes)]} for num_rows in (_ROWS, _ROWS + 1))
      found = _infer_shapes(outputs, given)
      # A single row may be that of all examples.
      if found and sizes[axis] != 1 and not _infer_shapes(outputs, more):
        fits.append((given, found))
    if len(fits) == 1:  # A reshape before may take either axis for that of the rows.
      [(given, found)] = fits
      # Of the ops around it some may hold old sizes as constants.
      around = copy_resized([tensor for op in own for tensor in op.outputs], given)
      copies.update({draw.name: around[draw.name]} if around else {})
      known = {**given, **found}
  return copies


def _infer_shapes(tensors, shapes) -> Dict[str, Any]:
  """Returns the shapes that tensors would have if some had others; {} if an op cannot."""
  return {name: tensor.shape for name, tensor in copy_resized(tensors, shapes).items()}


def _read_layouts(unknown, layouts, copies, counted=(_ANY,)) -> None:
  """Moves from the unknown tensors to layouts what their copies for `_ROWS` rows tell.

  What is a multiple of one of the `counted` sizes is counted in a run.
  """
  for name, tensor in list(unknown.items()):
    copy = copies.get(tensor.name)
    rows = list_grown(copy, _ROWS)
    if tensor.op.type == 'RandomShuffle':  # It draws for the first axis alone.
      rows = [row for row in rows if row[0] == 0]
    if len(rows) == 1:
      [(axis, factor)] = rows
      # A loop that takes apart another axis than this one has its rows in any order.
      is_any = factor == 1 or axis and not (
          randomness.is_random(tensor.op) or randomness.is_stateless(tensor.op))
      for outer in [1] if is_any else find_outer(copy, _ROWS):
        before, within = [None if any(number % size == 0 for size in counted) else number
                          for number in (outer, factor // outer)]
        if (before, within) != (None, None):
          layouts[name] = Layout(axis, before, within)
    elif not rows and copy is not None and copy.shape.is_fully_defined():
      layouts[name] = None
    if name in layouts:
      del unknown[name]


def _read_longest(unknown, layouts, shared, shapes) -> None:
  """Moves to layouts the unknown ones with sizes of the longest example of all towers."""
  if unknown and shared:
    copies = _copy_open(unknown, {**shapes, **shared})
    _read_layouts(unknown, layouts, copies, counted=(_ANY, _LONGEST))


def _read_kept(unknown, layouts, masks, shapes) -> None:
  """Moves to layouts the unknown ones of which an axis is what a mask keeps, where some others are
  to have the `shapes`."""
  needed = find_needed([tensor.op for tensor in unknown.values()])
  for number, mask in enumerate(masks):
    if mask in needed and unknown:
      places, [condition] = mask.outputs[0], mask.inputs
      copies = copy_resized(list(unknown.values()),
                            {**shapes, places.name: [_KEPT, *places.shape.as_list()[1:]]})
      of_mask: Layouts = {}
      _read_layouts({'': condition}, of_mask, copy_resized([condition], shapes))
      for name, tensor in list(unknown.items()):
        copy = copies.get(tensor.name)
        sizes = copy.shape.as_list() if copy is not None and copy.shape.ndims else []
        if of_mask and _KEPT in sizes:
          layout = of_mask['']
          layouts[name] = layout and layout._replace(kept=number, kept_axis=sizes.index(_KEPT))
          del unknown[name]
