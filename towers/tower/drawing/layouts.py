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
size of the batch's longest example, or one that is drawn for all: with two numbers for it, of which
a sum or a limit may make others. Each tower has another longest one of its own, so only those that
all find together, as by `all_rows`, make the numbers of an example the same.

A loop whose turns take the rows of the batch one by one, as of `tf.map_fn`, has the layout of what
it takes apart.
"""

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from towers.graph.resized import copy_resized, find_outer, list_grown
from towers.graph.walk import find_dependents, find_loops, find_needed, find_taken_apart, walk
from towers.input.batch import Batch
from towers.placement import philox, randomness
from towers.tensorflow_v1 import Operation, Tensor, tf
from towers.tower.all_towers import is_of_all, is_own

# Primes that no model has: of rows, which Python may go through, and of what a mask keeps.
_ROWS, _KEPT = 211, 1000003
# For axes of any size, and for a size that a run computes, two numbers each: what differs between
# the two is counted in a run. Nothing has less than the latter.
_ANY, _SIZES = (23, 29), (5, 6)
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


def find_layouts(ops: Sequence[Operation], masks: Sequence[Operation], made: Sequence[Operation],
                 batch: Batch, *, scope: str, call_in_scratch: Any) -> Layouts:
  """Returns the layouts of a tower's draws, and of the loops around them.

  What nothing but a guess is left for is left out.

  Args:
    ops: that draw.
    masks: of type `Where`, in order.
    made: all ops of the tower.
    batch, scope, call_in_scratch: of their tower.
  """
  draws = {op.name.replace(scope, ''): op.outputs[0] for op in ops}
  # A loop may take several tensors apart, all of as many rows.
  loops = {loop.name.replace(scope, ''): tensor for op in ops for loop in find_loops(op)
           for tensor in find_taken_apart(loop)}
  flat = tf.nest.flatten(batch.tensors)
  resized = [{tensor.name: tensor.shape if tensor.shape.ndims is None else [
      _ROWS, *(size or number for size in tensor.shape.as_list()[1:])] for tensor in flat}
             for number in _ANY]
  if resized[0] == resized[1]:
    resized.pop()
  own, shared = _list_sizes(made, batch)
  layouts: Layouts = {}
  unknown = {}
  for name, tensor in {**draws, **loops}.items():
    if tensor.name in resized[0]:
      layouts[name] = Layout()
    # A later tower may have as many rows as one of the others by chance.
    elif not _list_candidates(tensor.shape, batch) or is_of_all(tensor.op, batch.tensors):
      layouts[name] = None
    else:
      unknown[name] = tensor
  if unknown and batch.num_rows is None:
    _read_views(unknown, layouts, [_View(dict(unknown), masks, *shapes) for shapes in zip(
        2 * resized, shared)])
  elif unknown:
    met = {name: draw for name, draw in draws.items() if name in unknown
           and draw.shape.is_fully_defined()}
    _read_layouts(unknown, layouts, [_copy_met(met, batch, shapes) for shapes in resized])
  # Sizes may be constants of the model's, come out of a loop, or several axes be one. What its
  # placeholders get is known to a second call.
  fed: List[Dict[str, Any]] = [{} for _ in resized]
  for is_first in (True, False):
    if unknown and (is_first or any(fed)):
      try:
        graphs = [call_in_scratch([_ROWS], other=number, shapes=shapes).graph
                  for number, shapes in zip(_ANY, fed)]
        views = [_View(_find_copies(unknown, ops, graph, scope),
                       [graph.get_operation_by_name(mask.name) for mask in masks], {}, sizes)
                 for graph, sizes in zip(2 * graphs, shared)]
      except Exception:  # A model that takes no such number of rows, or layers of another graph.
        break
      _read_layouts(unknown, layouts, [view.tensors for view in views])
      _read_views(unknown, layouts, views)
  if own and batch.row_offset is not None:
    as_they_are = {tensor.name: tensor.shape for tensor in flat}
    _mark_cut(layouts, draws, {**as_they_are, **shared[0]}, own)
  return layouts


def _list_sizes(made, batch):
  """Returns what gives the sizes that a run computes a number, by name: of those that follow from
  the values of a tower's own batch, and twice of those that are alike in all towers."""
  # What is no row's, all towers draw alike. What follows from a shape is as alike as the shape is.
  alike = {op for op in made if op.type in philox.KINDS and op.outputs[0].shape.ndims == 0}
  shapes = {op for op in made if op.type in ('Shape', 'Size')}
  sizes = [op for op in made if _is_size(op)]
  own = [op for op in sizes if is_own(op, batch.tensors, alike | shapes)]
  shared = [op for op in sizes if op not in own and not is_own(op, batch.tensors, alike)]
  if batch.row_offset is None:  # One tower's own are those of all.
    own, shared = [], own + shared
  numbers = [{op.outputs[0].name: number for op in shared} for number in _SIZES]
  return {**{op.outputs[0].name: _SIZES[0] for op in own}, **_list_padded_alone(batch)}, numbers


def _is_size(op) -> bool:
  """Returns whether an op gives an integer that may be a size, and is computed of no integers: the
  largest of many, a draw, or what a number is rounded to."""
  is_number = op.type in ('Max', *philox.KINDS) or (
      op.type == 'Cast' and op.inputs[0].dtype.is_floating)
  # Those that only a loop asks for are where TensorFlow's own ends.
  return (is_number and op.outputs[0].dtype.is_integer and op.outputs[0].shape.ndims == 0
          and any(user.type != 'Enter' for user in op.outputs[0].consumers()))


def _find_copies(tensors, ops, graph, scope) -> Dict[str, Tensor]:
  """Returns tensors like those of a tower in a graph of its model alone, by their names in the
  tower; there ops outside of the scope, as of a getter of weights, may have other numbers."""
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
  return {name: [num_rows, *(size or _SIZES[0] for size in sizes)]
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


class _View(NamedTuple):
  """Tensors of a tower's graph, or of one of its model alone, by their names in the tower.

  Attributes:
    masks: of type `Where`, in order.
    shapes: that other tensors have in copies of these.
    sizes: numbers for what gives the sizes that a run computes.
  """
  tensors: Dict[str, Tensor]
  masks: Sequence[Operation]
  shapes: Dict[str, Any]
  sizes: Dict[str, int]

  def copy(self, more: Mapping[str, Any]) -> Dict[str, Tensor]:
    return _copy_around(self.tensors, {**self.shapes, **more})


def _read_views(unknown, layouts, views) -> None:
  """Moves from the unknown tensors to layouts what two views tell, whose sizes differ."""
  _read_layouts(unknown, layouts, [view.copy({}) for view in views])
  for less in (0, 3) if views[0].sizes else ():  # A limit may be below the larger sizes.
    _read_layouts(unknown, layouts, [view.copy({
        name: size - less for name, size in view.sizes.items()}) for view in views], has_sizes=True)
  needed = find_needed([tensor.op for tensor in views[0].tensors.values()])
  for number, mask in enumerate(views[0].masks):
    if mask in needed and unknown:
      places, [condition] = mask.outputs[0], mask.inputs
      of_mask: Layouts = {}
      _read_layouts({'': condition}, of_mask, [_copy_around(
          {'': view.masks[number].inputs[0]}, view.shapes) for view in views])
      kept = views[0].copy({places.name: [_KEPT, *places.shape.as_list()[1:]]})
      for name in list(unknown):
        sizes = kept[name].shape.as_list() if name in kept and kept[name].shape.ndims else []
        if of_mask and _KEPT in sizes:
          layout = of_mask['']
          layouts[name] = layout and layout._replace(kept=number, kept_axis=sizes.index(_KEPT))
          del unknown[name]


def _read_layouts(unknown, layouts, found, has_sizes=False) -> None:
  """Moves from the unknown tensors to layouts what their copies for `_ROWS` rows tell, found by
  name: one of each, or two whose other sizes differ.

  Copies that `has_sizes` of a run tell nothing of several rows for each example where these make no
  difference, as beyond a limit.
  """
  for name, tensor in list(unknown.items()):
    copies = [each[name] for each in found if name in each]
    told = [_tell_layout(copy, tensor.op) for copy in copies]
    if len(told) == len(found) and all(told):
      is_limited = has_sizes and str(copies[0].shape) == str(copies[1].shape)
      for layout in _join(*told[0], *told[-1]):
        if not is_limited or layout is None or layout[1:3] == (1, 1):
          layouts[name] = layout
          del unknown[name]


def _join(layout, other) -> List[Optional[Layout]]:
  """Returns the layout of which copies of two sizes tell these, in a list; [] for none."""
  if layout is None or other is None or layout.axis != other.axis:
    return [layout] if layout == other else []
  # What differs is counted in a run; one of the two has to be known.
  outer, inner = (one if one == another else None
                  for one, another in zip(layout[1:3], other[1:3]))
  return [] if (outer, inner) == (None, None) else [Layout(layout.axis, outer, inner)]


def _tell_layout(copy, op) -> List[Optional[Layout]]:
  """Returns the layout that a copy for `_ROWS` rows of what an op returns tells; [] for none."""
  rows = list_grown(copy, _ROWS)
  if op.type == 'RandomShuffle':  # It draws for the first axis alone.
    rows = [row for row in rows if row[0] == 0]
  if not rows:
    return [None] if copy.shape.is_fully_defined() else []
  [(axis, factor), *others] = rows
  if others:
    return []
  # A loop that takes apart another axis than this one has its rows in any order.
  is_any = factor == 1 or axis and not (randomness.is_random(op) or randomness.is_stateless(op))
  return [Layout(axis, outer, factor // outer) for outer in (
      [1] if is_any else find_outer(copy, _ROWS))]


def _copy_around(tensors, shapes, num_rows=None) -> Dict[str, Tensor]:
  """Returns copies for `_ROWS` rows, by name, with the ops around those of several for each
  example, which have the order; a farther one may take no such sizes, as where nothing reads it."""
  copies = copy_resized(list(tensors.values()), shapes, num_rows)
  near = list(walk([tensor.op for tensor in tensors.values() if any(
      factor > 1 for _, factor in list_grown(copies.get(tensor.name), _ROWS))], lambda op: [
          reader for tensor in op.outputs for reader in tensor.consumers()], nearest_first=True))
  around: Dict[str, Tensor] = {}
  while near and not around:
    around = copy_resized([tensor for op in near for tensor in op.outputs], shapes, num_rows)
    near = near[:len(near) // 2]
  copies = {**copies, **around}
  return {name: copies[tensor.name] for name, tensor in tensors.items() if tensor.name in copies}


def _copy_met(draws, batch, known) -> Dict[str, Tensor]:
  """Returns for draws that ops take together with rows of a static batch those of `_ROWS` rows.

  Of each that is found, what it is taken with is `known` to the later ones.
  """
  of_batch = find_dependents([tensor.op for tensor in tf.nest.flatten(batch.tensors)],
                             by_control=False)
  copies: Dict[str, Tensor] = {}
  for name, draw in draws.items():
    own = find_dependents([draw.op], by_control=False, without=of_batch)
    met = {op: None for before in own for tensor in before.outputs
           for op in tensor.consumers() if op in of_batch}
    outputs = [tensor for op in met for tensor in op.outputs]
    beside = _infer_shapes([tensor for op in met for tensor in op.inputs
                            if tensor.op in of_batch], known, batch.num_rows)
    sizes, fits = draw.shape.as_list(), []
    for axis in _list_candidates(draw.shape, batch) if beside else ():
      given, more = ({**known, **beside, draw.name: [
          size // batch.num_rows * num_rows if index == axis else size
          for index, size in enumerate(sizes)]} for num_rows in (_ROWS, _ROWS + 1))
      found = _infer_shapes(outputs, given, batch.num_rows)
      # A single row may be that of all examples.
      if found and sizes[axis] != 1 and not _infer_shapes(outputs, more, batch.num_rows):
        fits.append((given, found))
    if len(fits) == 1:  # A reshape before may take either axis for that of the rows.
      [(given, found)] = fits
      copies.update(_copy_around(
          {name: draw}, {**known, draw.name: given[draw.name]}, batch.num_rows))
      known = {**given, **found}
  return copies


def _infer_shapes(tensors, shapes, num_rows) -> Dict[str, Any]:
  """Returns the shapes that tensors would have if some had others; {} if an op cannot."""
  copies = copy_resized(tensors, shapes, num_rows)
  return {name: tensor.shape for name, tensor in copies.items()}
