"""Draws: random numbers of a model that depend on an example's place in the global batch.

An op such as dropout's draws from a state of its own, by tower, so that two towers would train
another model than one. Its stateless twin takes its place, which draws by

  key        (seed, name of the op in the tower)
  counter    (step, turn of the loop), and the place of the tower's first row; a loop over the rows,
             as of `tf.map_fn`, counts by their places; in validation and what predicts also by the
             number of the batch

so that neither the number of towers, workers and micro-batches nor the input mode changes what is
drawn for an example, and neither a validation, a second try nor a resumed run moves it. What has
no rows, as noise on weights, all towers draw alike. Numbers are drawn row by row, and then brought
to where the draw has its rows (see `layouts`); those for what a mask keeps are drawn for all that
it could keep. A warning names what draws by rows that are not found, if what a tower computes needs
it. What gradients draw by themselves is drawn in the same way.

  the global batch's numbers     row 0 │ row 1 │ row 2 │ row 3 │ row 4 │ row 5 │
  drawn by tower 1 on 2.x                              └───────────────────────┘
  drawn by tower 1 on 1.14       └────────────── left out ────┴────────────────┘

On 2.x a tower begins at the generator's block of its first row. 1.14 has no op that takes the
counter, nor has any version one that leaves out rows: there a tower draws the rows before or
between its own as well, and cuts these out.

An op of `tf.random.stateless_*` keeps the seed that its caller gives it, and draws the same way,
where it draws for each example; one without rows, and one tower's on a first axis, stays as it is.

Some distributions have no stateless op that could begin anywhere. These keep their state, seeded by
tower, and a warning names them.
"""

import functools
import logging
import re
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from towers.base.splitmix import GOLDEN, as_int64
from towers.base.usage_error import UsageError
from towers.graph.source_lines import format_op
from towers.graph.walk import find_dependents, find_loops, find_taken_apart
from towers.input.batch import Batch
from towers.input.cut import leading_size
from towers.input.row_offsets import build_row_offsets
from towers.placement import philox, randomness
from towers.placement.counters import get_global_step
from towers.placement.host import HOST
from towers.tensorflow_v1 import Operation, Tensor, replace_tensor, replaced, tf
from towers.tower.all_towers import find_unfed
from towers.tower.drawing.layouts import Layout, Layouts, find_layouts, guess_layout, is_clear

# Numbers that 1.14 may draw for a global batch: 256 MB.
_MOST_NUMBERS = 2 ** 26
# The collection of what `read_pass_shift` has returned.
PASS_SHIFTS = 'towers/pass_shifts'
# The collection of blocks that are right only where a tower's first row has the place that the plan
# gives it: each row takes a part of a block.
ALIGNED_BLOCKS = 'towers/aligned_blocks'
# The collection of the names of ops whose rows were neither found nor counted.
UNKNOWN_DRAWS = 'towers/unknown_draws'
_UNKNOWN = (
    'What these ops draw may depend on the number of towers, for which numbers are those of an '
    'example was neither found nor counted: %s. Draw in a shape that has the rows of the batch as '
    'an axis of its own, as tf.random.normal([tf.shape(x)[0], ...]), and reshape it next to the '
    'draw; by tf.random.normal or tf.random.uniform, outside of any tf.function. Where the longest '
    'example gives a size, take that of all towers, tf.reduce_max(towers.all_rows(lengths)). '
    'Instead of the values of ragged examples, or of strings that the model splits, draw for rows '
    'that the data pads, as by towers.padded.')
_SHUFFLED = (
    '%s shuffles the rows of a batch, of which a tower has only its own: shuffle those of all, '
    'rows, places = towers.all_rows(x, with_places=True), and take tf.gather(tf.random.shuffle('
    'rows), places). Of numbers of rows shuffle tf.range(tf.shape(rows)[0]), and gather rows by '
    'those at the places.')
# A counter of 64 bits holds the step below the turn, and the turn below that of an outer loop.
_MOST_STEPS, _MOST_TURNS = 2 ** 32, 2 ** 16


class Draws(NamedTuple):
  """What the draws of all towers depend on.

  Attributes:
    seed: of the run.
    read_step: returns the step, a scalar int64 tensor; called only if an op needs it.
    names: of the first tower's random ops, in order, those of its forward pass, and by 'gradients'
      those of its backward pass. An op outside of the tower's scope, as in
      `tf.name_scope('head/')`, has another name in each tower.
    layouts: of these and of the loops around them, see `find_layouts`.
    unknown, shuffled: those of which the rows were not found, and that shuffle the tower's rows,
      until `warn_of_draws` has named them.
    twins: what ops that have twins draw, which a gradient may take, and what their twins draw.
    read_begin: of rows that no plan has dealt, returns the place of a run's first one, a scalar
      int64 tensor; called only if an op needs it. None for 0.
  """
  seed: int
  read_step: Callable[[], Tensor]
  names: Dict[str, List[str]]
  layouts: Layouts
  unknown: List[Operation]
  shuffled: List[Operation]
  twins: List[Tuple[Tensor, Tensor]]
  read_begin: Optional[Callable[[], Tensor]] = None


def begin_draws(seed: int, read_begin: Optional[Callable[[], Tensor]] = None,
                read_shift: Optional[Callable[[], Tensor]] = None) -> Draws:
  """Returns what the draws of a program's towers depend on, see `Draws`.

  What `read_shift` returns, as `shift_of` a batch's number, is added to the step; None for 0.
  """
  @functools.lru_cache(maxsize=None)
  def read_step():
    with tf.device(HOST), tf.name_scope('run/'), tf.control_dependencies(None):
      step = get_global_step().read_value()
      return step if read_shift is None else step + read_shift()

  return Draws(seed, read_step, {}, {}, [], [], [], read_begin)


def read_pass_shift() -> Tensor:
  """Returns the shift of a run that may validate, a tensor to feed there; 0 in training."""
  shift = tf.placeholder_with_default(np.int64(0), [], 'pass_shift')
  tf.add_to_collection(PASS_SHIFTS, shift)
  return shift


def shift_of(batch: int) -> int:
  """Returns what the draws of a pass's global batch of this number add to the step."""
  return as_int64(GOLDEN * batch)


def tie_draws(ops: Iterable[Operation], draws: Draws, *, tower: int, scope: str, batch: Batch,
              call_in_scratch: Any = None, before: Sequence[Operation] = ()) -> List[Operation]:
  """Ties the random ops of a tower's model to (seed, name, step, turn, place); returns those that
  keep a state of their own.

  Args:
    ops, scope, batch: of the tower's forward pass, without those of initial values.
    draws: of all towers; the first tower adds its names and layouts, and what is doubtful.
    tower: its index, which seeds what cannot be drawn by place.
    call_in_scratch: as of `Tower`; only the first tower needs them.
    before: the ops of the forward pass, where `ops` are those of the backward pass.

  Raises:
    UsageError: a generator or a function draws; names the op.
  """
  for drawn, twin in draws.twins:
    replace_tensor(drawn, twin)
  unfed = find_unfed()
  ops = [op for op in ops if op not in unfed]
  in_functions = _find_in_functions(ops)
  random = [op for op in ops if randomness.is_random(op) or randomness.is_stateless(op)]
  made = [*before, *ops]
  masks = [op for op in made if op.type == 'Where'] if random else []
  names = [op.name.replace(scope, '') for op in random + in_functions]
  if random and draws.read_begin is not None:
    offset = batch.row_offset or build_row_offsets([batch])[0]
    with tf.device(HOST), tf.name_scope('places/'):
      batch = batch._replace(row_offset=offset._replace(first=offset.first + draws.read_begin()))
  first_names = draws.names.setdefault('gradients' if before else '', names)
  is_first = first_names is names
  if is_first:
    # One tower draws all rows in their order, if their axis is the first.
    if batch.row_offset is not None or not all(is_clear(op, batch) for op in random):
      draws.layouts.update(find_layouts(
          random, masks, made, batch, scope=scope, call_in_scratch=call_in_scratch))
  elif len(first_names) == len(names):
    names = first_names
  drawer = _Drawer(draws, batch, scope, dict(zip(random, names)), masks)
  as_they_are = [op for op in random if not drawer.replace(op)]
  if is_first and batch.row_offset is not None:
    draws.unknown.extend(in_functions + [
        op for op in random if not drawer.is_exact(op, has_twin=op not in as_they_are)])
    draws.shuffled.extend(
        op for op in random if op.type == 'RandomShuffle' and draws.layouts.get(drawer.names[op]))
  left = list(filter(randomness.is_random, as_they_are))
  for op in left:
    seeds = randomness.tower_seeds(draws.seed, tower, op.type, op.name.replace(scope, ''))
    randomness.set_seeds(op, *seeds)
  return left + list(filter(randomness.is_seedless, ops))


def _find_in_functions(ops) -> List[Operation]:
  """Returns the ops that draw in a function; refuses those that do so by no seed."""
  found = list(filter(randomness.find_unseedable, ops))
  for op in found:
    unseedable = randomness.find_unseedable(op, is_stateless_fine=True)
    if unseedable:
      raise UsageError(
          f'Random numbers are drawn by {unseedable}, which cannot be tied to the seed and '
          'the step: draw by tf.random.uniform, tf.random.normal or tf.nn.dropout, outside of any '
          'tf.function.')
  return found


def warn_of_draws(draws: Draws, find_results: Callable[[], Set[Operation]]) -> None:
  """Warns of the first tower's doubtful draws among the ops of what is computed, once of each."""
  needed = find_results() if draws.unknown or draws.shuffled else set()
  # Twins have taken the place of draws.
  names = {op.name.split('_stateless/')[0] for op in needed}
  for doubtful, message in ((draws.unknown, _UNKNOWN), (draws.shuffled, _SHUFFLED)):
    ops = [op for op in doubtful if op.name in names]
    doubtful[:] = [op for op in doubtful if op not in ops]
    if ops:
      logging.getLogger('towers').warning(
          message, '; '.join(map(format_op, ops[:3])) + ('; …' if ops[3:] else ''))
    if doubtful is draws.unknown:
      tf.get_collection_ref(UNKNOWN_DRAWS).extend(op.name for op in ops)


def warn_of_left(ops: Sequence[Operation]) -> None:
  """Warns of ops that keep a state of their own, in one line."""
  if ops:
    names = '; '.join(f'{op.type} {format_op(op)}' for op in ops[:3]) + ('; …' if ops[3:] else '')
    # All towers sample the same candidates, unless by the labels that one has seen.
    is_alike = all(re.match('(LogU|U)niformC|Fixed|All', op.type) for op in ops)
    logging.getLogger('towers').warning(
        'Draws change with %saccumulate, a validation or a resumed run where TensorFlow %s cannot '
        'make them by an example\'s place in the global batch: those of %s.',
        '' if is_alike else 'the number of towers, ', tf.__version__, names)


class _Drawer:
  """Makes the stateless twins of a tower's random ops."""

  def __init__(self, draws, batch, scope, names, masks):
    self._draws, self._batch, self._place = draws, batch, batch.row_offset
    self._scope, self.names, self._masks = scope, names, masks
    self._turns: Dict[Any, Tensor] = {}
    self._begins: Dict[Any, Any] = {}

  def replace(self, op: Operation) -> bool:
    """Gives an op's consumers the numbers of its twin; returns whether it has one."""
    make = _TWINS.get(op.type)
    if make is None or randomness.is_stateless(op) and not self._is_moved(op):
      return False
    drawn = op.outputs[0]
    with replaced((op.graph, '_control_flow_context', op._get_control_flow_context())), \
        tf.name_scope(op.name + '_stateless/'):
      twin = make(self, op)
    if twin is None:
      return False
    twin.set_shape(drawn.shape)
    replace_tensor(drawn, twin)
    self._draws.twins.append((drawn, twin))
    return True

  def _is_moved(self, op):
    """Returns whether a tower draws other numbers than those that a stateless op begins with."""
    layout = self._draws.layouts.get(self.names[op])
    if layout is None or self._place is None and layout[:2] == (0, 1) and layout.kept is None:
      return False
    # By seeds out of its batch a tower draws what no other one does.
    of_batch = find_dependents([tensor.op for tensor in tf.nest.flatten(self._batch.tensors)],
                               by_control=False)
    return all(tensor.op not in of_batch for tensor in op.inputs[1:])

  def is_exact(self, op: Operation, has_twin: bool) -> bool:
    """Returns whether what an op draws is known to be the same on any number of towers."""
    if not has_twin and randomness.is_random(op):
      return True  # It has a warning of its own.
    layouts, name = self._draws.layouts, self.names[op]
    loops = [loop.name.replace(self._scope, '') for loop in find_loops(op)
             if find_taken_apart(loop)]
    if not all(one in layouts for one in [name, *loops]):
      return False
    return layouts[name] is None or has_twin and not layouts[name].is_cut

  def draw(self, op: Operation, kind: str, shape: Tensor, static: Any, dtype: Any,
           **limits: Tensor) -> Optional[Tensor]:
    """Returns numbers of a distribution in place of an op; None if they would be too many.

    `kind` is the distribution, `shape` a vector, `static` what is known of it.
    """
    layout = self._draws.layouts.get(self.names[op], guess_layout(static, self._batch))

    def make(shape, block):
      return self._make(op, kind, shape, block, **limits or dict(dtype=dtype))

    if layout is None:
      return make(shape, 0)
    draw = functools.partial(self._draw_rows, op, make, philox.BLOCKS.get(kind, 1), dtype, layout)
    if layout.kept is None:
      return draw(shape, static)
    [places], [mask] = self._masks[layout.kept].outputs, self._masks[layout.kept].inputs
    axis = layout.kept_axis
    with tf.device(HOST):
      others = tf.cast(tf.concat([shape[:axis], shape[axis + 1:]], 0), tf.int64)
      one = tf.reduce_prod(others, keepdims=True)
      whole = tf.concat([tf.shape(mask, out_type=tf.int64), one], 0)
    numbers = draw(whole, mask.shape.concatenate([
        static[:axis].concatenate(static[axis + 1:]).num_elements() if static.ndims else None]))
    with tf.colocate_with(op):
      if numbers is None:
        return None
      numbers = tf.gather_nd(numbers, places)
      if axis:  # One entry after the other, before they are brought to their axis.
        numbers = tf.reshape(numbers, tf.concat([[-1], others], 0))
        numbers = tf.transpose(numbers, [
            *range(1, axis + 1), 0, *range(axis + 1, numbers.shape.ndims)])
      return tf.reshape(numbers, shape)

  def _draw_rows(self, op, make, blocks, dtype, layout, shape, static):
    """Returns numbers of a shape by a layout, drawn row by row."""
    numbers = make(shape, 0) if self._place is None else self._cut(
        op, make, blocks, dtype, layout, shape, static)
    if layout[:2] == (0, 1) or numbers is None:
      return numbers
    axis = layout.axis
    with tf.device(HOST):
      sizes, (rows, outer, inner) = tf.cast(shape, tf.int64), self._factor(layout, shape)
      before, after = [part.num_elements() for part in (static[:axis], static[axis + 1:])]
      by_row = tf.stack([
          rows, (tf.reduce_prod(sizes[:axis]) if before is None else before) * outer,
          (tf.reduce_prod(sizes[axis + 1:]) if after is None else after) * inner])
    with tf.colocate_with(op):
      return tf.reshape(tf.transpose(tf.reshape(numbers, by_row), [1, 0, 2]), shape)

  def _cut(self, op, make, blocks, dtype, layout, shape, static):
    """Returns the numbers of the tower's rows, one row after the other."""
    others = static.as_list() if static.ndims else [None] * (layout.axis + 2)
    others[layout.axis:layout.axis + 1] = layout.outer, layout.inner
    is_known = all(others)
    with tf.device(HOST):
      size = tf.reduce_prod(tf.cast(shape, tf.int64))
      row_size = int(np.prod(others)) if is_known else tf.maximum(size // self._count_rows(), 1)
    most = None if philox.HAS_COUNTER or not is_known else _MOST_NUMBERS
    if most is not None and row_size * (self._place.batch_size or 1) > most:
      return None
    block, skipped = self._find_begin(row_size, dtype, blocks)
    stride = self._place.stride
    if stride == 1 and skipped is None:
      return make(shape, block)

    with tf.device(HOST):
      num_rows = -(-size // row_size)
      # Rows that are counted may be none.
      count = size if stride == 1 else (
          (num_rows - 1) * stride + 1 if is_known else num_rows * stride) * row_size
      count = tf.reshape(count if skipped is None else skipped + count, [1])
      by_row, first = tf.stack([-1, row_size]), tf.zeros([1], tf.int64)
      begin = first if skipped is None else tf.reshape(skipped, [1])
      rest, own = tf.constant([-1], tf.int64), tf.reshape(size, [1])
    numbers = make(count, block)
    with tf.colocate_with(op):
      if skipped is not None:
        numbers = tf.slice(numbers, begin, rest)
      if stride > 1:
        numbers = tf.reshape(numbers, by_row)[::stride]
        if not is_known:
          numbers = tf.slice(tf.reshape(numbers, [-1]), first, own)
      return tf.reshape(numbers, shape)

  def _make(self, op, kind, shape, block, **settings):
    """Returns numbers from the block on."""
    if randomness.is_stateless(op):
      return philox.draw_again(kind, shape, block=block, like=op, **settings)
    key, _ = randomness.name_seeds(self._draws.seed, f'draw {self.names[op]}')
    with tf.device(HOST):
      counter = self._read_when(op)
    return philox.draw_numbers(kind, shape, key=key, block=block, counter=counter, like=op,
                               **settings)

  def _count_rows(self):
    """Returns the number of the tower's rows, a scalar int64 tensor."""
    if 'rows' not in self._begins:
      with replaced((tf.get_default_graph(), '_control_flow_context', None)):
        self._begins['rows'] = leading_size(self._batch.tensors, tf.int64)
    return self._begins['rows']

  def _factor(self, layout, shape):
    """Returns the factors of the axis of rows: how many there are, outer and inner."""
    rows = self._batch.num_rows or self._count_rows()
    size = tf.cast(shape[layout.axis], tf.int64)
    return (rows, layout.outer or size // (rows * layout.inner),
            layout.inner or size // (rows * layout.outer))

  def _find_begin(self, row_size, dtype, blocks):
    """Returns the block of the first row's numbers, and how many to leave out; None for none."""
    in_block = 2 if dtype.size == 8 else 4
    is_static = isinstance(row_size, int)
    key = row_size, in_block, blocks
    if is_static and key in self._begins:
      return self._begins[key]
    graph = tf.get_default_graph()
    context = None if is_static else graph._get_control_flow_context()
    with replaced((graph, '_control_flow_context', context)), tf.device(HOST):
      number = self._place.first * row_size
      if not philox.HAS_COUNTER:
        begin = tf.constant(0, tf.int64), number
      elif is_static and row_size % in_block == 0:
        begin = self._place.first * (row_size // in_block * blocks), None
      elif is_static and row_size * self._place.multiple % in_block == 0:
        begin = number // in_block * blocks, None
        tf.add_to_collection(ALIGNED_BLOCKS, begin[0])
      else:
        begin = number // in_block * blocks, number % in_block
    if is_static:
      self._begins[key] = begin
    return begin

  def _read_when(self, op):
    """Returns the step and, in a loop, the turn, in one number."""
    turn = None
    for loop in find_loops(op):
      if loop not in self._turns:
        self._turns[loop] = self._count_turns(loop)
      inner = self._turns[loop]
      turn = inner if turn is None else turn * _MOST_TURNS + inner
    with replaced((op.graph, '_control_flow_context', None)):
      step = self._draws.read_step()
    return step if turn is None else step + turn * _MOST_STEPS

  def _count_turns(self, loop):
    """Returns the number of the turn of a loop, from 1, a tensor inside of it."""
    with replaced((tf.get_default_graph(), '_control_flow_context', loop.outer_context)):
      _, turn = loop.AddForwardLoopCounter(None)
    turn = tf.cast(turn.op.inputs[0], tf.int64)
    layout = self._draws.layouts.get(loop.name.replace(self._scope, ''))
    if layout is None or layout.axis or layout == Layout() and self._place is None:
      return turn
    first, stride = self._place[:2] if self._place else (0, 1)
    if layout == Layout():
      return first + 1 + (turn - 1) * stride
    with replaced((tf.get_default_graph(), '_control_flow_context', loop.outer_context)), \
        tf.device(HOST):
      rows, outer, inner = self._factor(layout, tf.shape(find_taken_apart(loop)[0]))
    before, place = (turn - 1) // (rows * inner), first + (turn - 1) // inner % rows * stride
    return 1 + (place * outer + before) * inner + (turn - 1) % inner


def _draw_plain(drawer, op):
  limits, drawn = philox.list_limits(op), op.outputs[0]
  return drawer.draw(op, philox.KINDS[op.type], op.inputs[0], drawn.shape, drawn.dtype, **limits)


def _draw_classes(drawer, op):
  """Draws classes by the inverse of their distribution function."""
  logits, number = op.inputs
  with tf.device(HOST):
    shape = tf.stack([tf.shape(logits)[0], number])
  drawn = drawer.draw(op, 'RandomUniform', shape, op.outputs[0].shape, tf.float64)
  if drawn is None:
    return None
  with tf.colocate_with(op):
    upto = tf.cumsum(tf.nn.softmax(tf.cast(logits, tf.float64)), 1)
    classes = tf.searchsorted(upto, drawn * upto[:, -1:], side='right',
                              out_type=op.outputs[0].dtype)
    return tf.minimum(classes, tf.shape(logits, out_type=classes.dtype)[1] - 1)


def _shuffle(drawer, op):
  """Draws an order by sorting."""
  [value] = op.inputs
  with tf.device(HOST):
    shape = tf.shape(value)[:1]
  drawn = drawer.draw(op, 'RandomUniform', shape, value.shape[:1], tf.float32)
  if drawn is None:
    return None
  with tf.colocate_with(op):
    return tf.gather(value, tf.argsort(drawn))


_TWINS = {**dict.fromkeys(philox.KINDS, _draw_plain), 'Multinomial': _draw_classes,
          'RandomShuffle': _shuffle}
