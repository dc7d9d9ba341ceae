"""Draws: random numbers of a model that depend on an example's place in the global batch.

An op such as dropout's draws from a state of its own, by tower, so that two towers would train
another model than one. Its stateless twin takes its place, which draws by

  key        (seed, name of the op in the tower)
  counter    (step, turn of the loop), and the place of the tower's first row; a loop over the rows,
             as of `tf.map_fn`, counts by their places

so that neither the number of towers, workers and micro-batches nor the input mode changes what is
drawn for an example, and neither a validation, a second try nor a resumed run moves it. Where
neither the first nor the second axis of a draw is that of the rows, all towers draw the same.

  the global batch's numbers     row 0 │ row 1 │ row 2 │ row 3 │ row 4 │ row 5 │
  drawn by tower 1 on 2.x                              └───────────────────────┘
  drawn by tower 1 on 1.14       └────────────── left out ────┴────────────────┘

The generator, Philox, counts blocks of four numbers of 32 bits (Salmon et al. 2011, "Parallel
random numbers: as easy as 1, 2, 3"). On 2.x a tower begins at the block of its first row. 1.14 has
no op that takes the counter, nor has any version one that leaves out rows: there a tower draws the
rows before or between its own as well, and cuts these out.

Some distributions have no stateless op that could begin anywhere. These keep their state, seeded by
tower, and a warning names them.
"""

import functools
import logging
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence

from tensorflow_v1 import Operation, Tensor, replaced, tf
from towers.base.usage_error import UsageError
from towers.graph.walk import find_loops
from towers.input.batch import Batch
from towers.input.cut import leading_size
from towers.placement import randomness
from towers.placement.counters import get_global_step
from towers.placement.host import HOST
from towers.tower.drawing.folds import SECOND, find_folds, guess_fold, may_be_second

_HAS_COUNTER = hasattr(tf.raw_ops, 'StatelessRandomUniformV2')
_PHILOX = 1
# The stateless ops that make a distribution.
_KINDS = {kind: getattr(tf.raw_ops, 'Stateless' + kind.replace('Standard', '') +
                        'V2' * _HAS_COUNTER)
          for kind in ('RandomUniform', 'RandomStandardNormal', 'RandomUniformInt',
                       'TruncatedNormal')}
# Blocks that the generator counts for as many numbers as one block holds: this distribution
# reserves numbers to draw again.
_BLOCKS = {'TruncatedNormal': 256}
# Numbers that 1.14 may draw for a global batch: 256 MB.
_MOST_NUMBERS = 2 ** 26
# A counter of 64 bits holds the step below the turn, and the turn below that of an outer loop.
_MOST_STEPS, _MOST_TURNS = 2 ** 32, 2 ** 16


class Draws(NamedTuple):
  """What the draws of all towers depend on.

  Attributes:
    seed: of the run.
    read_step: returns the step, a scalar int64 tensor; called only if an op needs it.
    names: of the first tower's random ops, in order. A Keras layer that the model makes has another
      name in each tower.
    folds: of these and of the loops around them, see `find_folds`.
  """
  seed: int
  read_step: Callable[[], Tensor]
  names: List[str]
  folds: Dict[str, Optional[int]]


def begin_draws(seed: int) -> Draws:
  """Returns what the draws of a program's towers depend on."""
  @functools.lru_cache(maxsize=None)
  def read_step():
    with tf.device(HOST), tf.name_scope('run/'), tf.control_dependencies(None):
      return get_global_step().read_value()

  return Draws(seed, read_step, [], {})


def tie_draws(ops: Iterable[Operation], draws: Draws, *, tower: int, scope: str, batch: Batch,
              call_beside: Any = None) -> List[Operation]:
  """Ties the random ops of a tower's model to (seed, name, step, turn, place); returns those that
  keep a state of their own.

  Stateless ops stay as they are: a caller of `tf.random.stateless_*` decides by its seed which
  towers and steps draw alike.

  Args:
    ops, scope, batch: of the tower's forward pass, without those of initial values.
    draws: of all towers; the first tower adds its names and folds.
    tower: its index, which seeds what cannot be drawn by place.
    call_beside: as of `Tower`; only the first tower of a static size needs it.

  Raises:
    UsageError: a generator or a function draws; names the op.
  """
  ops = [op for op in ops if op.name.startswith(scope)]
  for op in ops:
    unseedable = randomness.find_unseedable(op, is_stateless_fine=True)
    if unseedable:
      raise UsageError(
          f'The model draws random numbers by {unseedable}, which cannot be tied to the seed and '
          'the step: draw by tf.random.uniform, tf.random.normal or tf.nn.dropout, outside of any '
          'tf.function.')
  random = list(filter(randomness.is_random, ops))
  names = [op.name.replace(scope, '') for op in random]
  if not draws.names:
    draws.names.extend(names)
    # One tower draws all rows in their order, if their axis is the first.
    if batch.place is not None or any(may_be_second(op.outputs[0].shape, batch) for op in random):
      draws.folds.update(find_folds(random, batch, scope=scope, call_beside=call_beside))
  elif len(draws.names) == len(names):
    names = draws.names
  drawer = _Drawer(draws, batch, scope, dict(zip(random, names)))
  left = [op for op in random if not drawer.replace(op)]
  for op in left:
    seeds = randomness.tower_seeds(draws.seed, tower, op.type, op.name[len(scope):])
    randomness.set_seeds(op, *seeds)
  return left


def warn_of_left(ops: Sequence[Operation]) -> None:
  """Warns of ops that keep a state of their own, in one line."""
  if ops:
    names = ', '.join(f'{op.name} ({op.type})' for op in ops[:3]) + (', …' if ops[3:] else '')
    logging.getLogger('towers').warning(
        'What %s draws depends on the number of towers, and a validation or a resumed run moves '
        'it, for TensorFlow %s cannot draw it by an example\'s place in the global batch.', names,
        tf.__version__)


class _Drawer:
  """Makes the stateless twins of a tower's random ops."""

  def __init__(self, draws, batch, scope, names):
    self._draws, self._batch, self._place = draws, batch, batch.place
    self._scope, self._names = scope, names
    self._turns: Dict[Any, Tensor] = {}
    self._begins: Dict[Any, Any] = {}

  def replace(self, op: Operation) -> bool:
    """Gives an op's consumers the numbers of its twin; returns whether it has one."""
    make = _TWINS.get(op.type)
    if make is None:
      return False
    drawn = op.outputs[0]
    consumers = drawn.consumers()
    with replaced((op.graph, '_control_flow_context', op._get_control_flow_context())), \
        tf.name_scope(op.name + '_stateless/'):
      twin = make(self, op)
    if twin is None:
      return False
    twin.set_shape(drawn.shape)
    for consumer in consumers:
      for index, tensor in enumerate(consumer.inputs):
        if tensor is drawn:
          consumer._update_input(index, twin)
    return True

  def draw(self, op: Operation, type_: str, shape: Tensor, static: Any, dtype: Any,
           **limits: Tensor) -> Optional[Tensor]:
    """Returns numbers of a distribution in place of an op; None if they would be too many.

    `type_` is of the ops of the distribution, `shape` a vector, `static` what is known of it.
    """
    fold = self._draws.folds.get(self._names[op], guess_fold(static, self._batch))
    if fold != SECOND or static.ndims == 1:
      return self._draw_rows(op, type_, shape, static, dtype, fold, **limits)
    order = [1, 0, *range(2, static.ndims)]
    with tf.device(HOST):
      shape = tf.gather(shape, order)
    static = tf.TensorShape([static[axis] for axis in order])
    numbers = self._draw_rows(op, type_, shape, static, dtype, 1, **limits)
    with tf.colocate_with(op):
      return None if numbers is None else tf.transpose(numbers, order)

  def _draw_rows(self, op, type_, shape, static, dtype, fold, **limits):
    """Returns numbers of which the first axis is that of the rows."""
    def make(shape, block):
      return self._make(op, type_, shape, block, **limits or dict(dtype=dtype))

    # A shuffle draws for the first axis alone.
    if self._place is None or fold in (0, SECOND):
      return make(shape, 0)
    is_known = fold and static[1:].is_fully_defined()
    with tf.device(HOST):
      size = tf.reduce_prod(tf.cast(shape, tf.int64))
      row_size = fold * static[1:].num_elements() if is_known else self._find_row_size(size)
    if is_known and not _HAS_COUNTER and row_size * (self._place.batch_size or 1) > _MOST_NUMBERS:
      return None
    block, skipped = self._find_begin(row_size, dtype, _BLOCKS.get(type_, 1))
    stride = self._place.stride
    if stride == 1 and skipped is None:
      return make(shape, block)

    with tf.device(HOST):
      num_rows = -(-size // row_size)
      count = size if stride == 1 else ((num_rows - 1) * stride + 1) * row_size
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

  def _make(self, op, type_, shape, block, **settings):
    """Returns numbers from the block on."""
    key, _ = randomness.name_seeds(self._draws.seed, f'draw {self._names[op]}')
    with tf.device(HOST):
      counter = tf.stack([block if _HAS_COUNTER else key, self._read_when(op)])
      counter = tf.cast(counter, tf.uint64) if _HAS_COUNTER else counter
    with tf.colocate_with(op):
      settings.update(dict(key=tf.constant([key], tf.uint64), counter=counter,
                           alg=tf.constant(_PHILOX)) if _HAS_COUNTER else dict(seed=counter))
      # XLA would draw other numbers by the same seeds.
      with tf.xla.experimental.jit_scope(compile_ops=False):
        return _KINDS[type_](shape=shape, **settings)

  def _find_row_size(self, size):
    """Returns how many of `size` numbers an example has, at least 1."""
    if 'rows' not in self._begins:
      with replaced((size.graph, '_control_flow_context', None)):
        self._begins['rows'] = leading_size(self._batch.tensors, tf.int64)
    return tf.maximum(size // self._begins['rows'], 1)

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
      if not _HAS_COUNTER:
        begin = tf.constant(0, tf.int64), number
      elif is_static and row_size % in_block == 0:
        begin = self._place.first * (row_size // in_block * blocks), None
      elif is_static and row_size * self._place.multiple % in_block == 0:
        begin = number // in_block * blocks, None
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
    if self._place is None or self._draws.folds.get(loop.name.replace(self._scope, '')) != 1:
      return turn
    return self._place.first + 1 + (turn - 1) * self._place.stride


def _draw_plain(drawer, op):
  limits = dict(zip(['minval', 'maxval'], op.inputs[1:]))
  drawn = op.outputs[0]
  return drawer.draw(op, op.type, op.inputs[0], drawn.shape, drawn.dtype, **limits)


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


_TWINS = {**dict.fromkeys(_KINDS, _draw_plain), 'Multinomial': _draw_classes,
          'RandomShuffle': _shuffle}
