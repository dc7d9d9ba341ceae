"""Law 1, measured on the program as it is: whether its parts are sums over their examples.

A step is taken in parts: towers, micro-batches, workers. They equal one if the model is a sum over
its examples. Then, for batches X1 and X2 of one size whose rows are, taken together, those of X
twice,

  f(X1) + f(X2) = 2 f(X)      f(X in another order) = f(X)      f(X, X) = 2 f(X)

with f the sums that a tower makes of loss and metrics. The first tower is in the graph already: its
batch is fed, and nothing else runs, no input, no other tower, no other worker, and no write.

What is drawn for a row goes where the row goes: draws are fed. So are the moments of layers of
batch normalisation, which have a setting of their own: what its kernels return is fed with its
rows, and what goes into them must be the same for the same rows.

A penalty or an update is no sum over examples if it depends on the batch at all. What a branch or a
loop does on other data than these, no single batch tells.
"""

import contextlib
import functools
import logging
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from tensorflow_v1 import Operation, tf
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.checks.draws import draw, find_draws, find_unfed, has_state
from towers.data.composite import decode_batch
from towers.graph.source import format_op
from towers.graph.walk import find_dependents, find_needed
from towers.graph.writes import find_step_writes, find_writes
from towers.input.batch import Batch
from towers.tower.all_towers import OWN_SUMS, SUMS
from towers.tower.batch_norm import is_moving_average
from towers.tower.batch_norm_layer import BATCH_SUMS
from towers.tower.losses import sum_returned
from towers.tower.tower import Tower

# The relative differences that rounding makes, of sums and of single values.
_ROUNDING = {False: (1e-4, 1e-3), True: (1e-2, 5e-2)}
# Where the rows of examples stand in a value that has several for each.
_AS_IS = 'as is'
_LAYOUTS = ('beside', 'within', _AS_IS)
# Tensors that are fetched in one run.
_CHUNK = 100
# Five forward runs are left out if they take longer than both of these.
_LONG_SECONDS, _LONG_SHARE = 2.0, 1 / 20
_FIX = ('For batch normalisation use towers.tower.batch_norm_layer with batch_norm=sync; for a '
        'mean by weights return towers.Weighted(losses, weights); inside of a model take '
        'tf.gradients of values per example or of their sum.')
_SCALE_FIX = ('Return one loss per example, [batch], or the mean over the batch; or '
              'towers.Weighted(losses, weights). A division by a constant does not help.')
_PAD_FIX = 'use last_batch=drop, whose batches have one shape too, or keep'


class Gap(NamedTuple):
  """By how much the identity does not hold.

  Attributes:
    name: of the sum or value that differs most.
    share: of its size.
    is_beyond: whether rounding explains less.
  """
  name: str
  share: float
  is_beyond: bool


def check_towers(towers: Sequence[Tower], batches: Sequence[Batch], session: Any,
                 rows: Optional[Sequence[Any]], *, num_parts: Optional[int] = None,
                 model: Optional[Callable[[Any], Any]] = None,
                 runs_per_epoch: Optional[int] = None) -> None:
  """Warns of a model whose loss, metrics, penalties or updates are no sums over examples.

  It is to be called before the first step, once variables have their values. It takes no batch,
  changes no variable and adds no op to the graph.

    rows = feed.start(session, peeks=True)
    towers.check_towers(built, batches, session, rows)

  Args:
    towers: all of the program.
    batches: of the towers.
    session: with the program's variables.
    rows: the first tower's examples, as `Feed.start` returns them.
    num_parts: into which a step's global batch is divided: towers, workers, micro-batches.
    model: from a batch's tensors to what the model returns, to be called once more where batches
      have one static size, to find a sum in place of a mean. Or None.
    runs_per_epoch: forward runs of all towers in an epoch; where the measurement takes longer than
      a share of them and some seconds, a line says that it was left out. None for no limit.

  Raises:
    UsageError: the loss or a metric grows otherwise than the number of examples, or rows that only
      fill a batch up change it.
  """
  num_parts = num_parts or len(towers)
  if rows is None or (num_parts == 1 and not batches[0].is_padded):
    return
  found = find_coupling(towers[0], batches[0], session, rows, num_parts=num_parts, model=model,
                        runs_per_epoch=runs_per_epoch)
  if found:
    logging.getLogger('towers').warning(
        '%s A tower has only its own examples, so %d parts of a step (towers x micro-batches x '
        'workers) do not equal one. %s --check, or towers.check, shows by how much they differ.',
        ' '.join(found), num_parts, _FIX)


def judge(program: Any, session: Any, rows: Optional[Sequence[Any]]) -> None:
  """Does what `check_towers` does for a program, from the rows that its feed has let see."""
  if rows is None:
    return
  plan, switch = program.plan, program.validation and program.validation.is_validating

  def call(tensors):
    is_training = True if switch is None else tf.placeholder_with_default(True, [])
    return program.model(tensors, is_training)

  check_towers(program.towers, program.batches, session, rows, num_parts=_count_parts(program),
               model=call,
               runs_per_epoch=plan.steps_per_epoch * plan.accumulate * len(program.towers))


def has_parts(program: Any) -> bool:
  """Returns whether there is anything to judge: several parts of a step, or rows that fill up."""
  return _count_parts(program) > 1 or program.batches[0].is_padded


def _count_parts(program):
  return len(program.towers) * program.plan.accumulate * program.workers.num_workers


def find_coupling(tower: Tower, batch: Batch, session: Any, rows: Sequence[Any], *, num_parts: int,
                  model: Optional[Callable[[Any], Any]] = None,
                  runs_per_epoch: Optional[int] = None) -> List[str]:
  """Returns a sentence for each part of a tower that depends on other examples of its batch.

  For the arguments, and what is raised, see `check_towers`.
  """
  measured = _Measured(tower, batch, session, rows)
  if not measured.size:
    return []
  with tower.loss.graph.as_default():
    found = measured.find_dependent() if num_parts > 1 else []
    try:
      if batch.is_padded:
        measured.check_filler()
      if num_parts > 1 and measured.size > 1:
        found = measured.find_gaps(num_parts, model, runs_per_epoch) + found
    except _LeftOut as reason:
      write_line(f'Whether {num_parts} parts of a step equal one was not measured, since {reason}; '
                 '--check, or towers.check, tries them out.')
    except tf.errors.OpError:
      pass  # The first step tells, with the reason.
  return found


class _LeftOut(Exception):
  """Why nothing is measured."""


class _Measured:
  """The first tower on chosen rows of one batch.

  Attributes:
    size: the number of rows.
  """

  def __init__(self, tower: Tower, batch: Batch, session: Any, rows: Sequence[Any]):
    self._tower, self._batch, self._session = tower, batch, session
    self._tensors = tf.nest.flatten(batch.tensors)
    *values, count = rows
    self.size = len(values[0]) if batch.is_padded else int(count)
    # Rows that only fill a batch up give way to others.
    self._rows = [value[np.arange(self.size) % max(int(count), 1)] for value in values]
    self._sums = {**tower.sums, **{f'{name} (weights)': weight
                                   for name, weight in tower.weights.items()}}
    self._graph = tower.loss.graph
    self._of_batch = find_dependents([tensor.op for tensor in self._tensors], by_control=False)
    # Without what other towers do for its batch normalisation.
    ends = {tensor.op for tensor in [*self._tensors, *self._graph.get_collection(SUMS)]}
    self._of_sums = _find_needed([value.op for value in self._sums.values()], ends)
    self._needed = sorted(self._of_sums, key=lambda op: op._id)
    self._is_half = any(tensor.dtype in (tf.float16, tf.bfloat16)
                        for op in self._needed for tensor in op.outputs)
    self._fetches: Dict[Tuple[str, str], Any] = {}
    self._fixed: Dict[Any, Any] = {}
    self._by_row: Dict[Any, Any] = {}

  def find_dependent(self) -> List[str]:
    """Returns a sentence on the first penalty and the first write that depend on the batch."""
    found = [f'The penalty {format_op(penalty.op)} depends on the examples of a batch.'
             for penalty in self._tower.penalties if penalty.op in self._of_batch][:1]
    for write in self._find_updates():
      if not all(map(is_moving_average, write.variables)):
        found.append(f'The variable {write.variables[0].name} is changed by the examples of a '
                     f'batch, those of each part by themselves ({format_op(write.op)}).')
        break
    return found

  def _find_updates(self):
    """Returns the writes of update ops, loss and metrics that depend on the batch."""
    needed = find_needed([getattr(op, 'op', op) for op in self._tower.update_ops])
    return [write for write in find_writes(self._graph) if write.op in self._of_batch
            and (write.op in needed or write.op in self._of_sums) and write.variables]

  def check_filler(self) -> None:
    """Refuses a tower of which rows that only fill its batch up change the loss or an update."""
    what = 'last_batch=pad fills batches up with rows that must not count, and'
    for write in self._find_updates():
      raise UsageError(f'{what} {format_op(write.op)} is computed from all rows, as batch '
                       f'normalisation is: {_PAD_FIX}.')
    count = max(self.size // 2, 1)
    if count == self.size:
      return
    self._prepare(feeds_moments=False)
    index = np.arange(self.size)
    fillers = [np.where(index < count, index, other)
               for other in (count - 1, index, self.size - 1 - index)]
    first, *others = [self._run(filler, _AS_IS, count=count) for filler in fillers]
    for other in others:
      gap = self._find_gap([(key, other[key], first[key]) for key in first if key[0] == 'sum'],
                           [first])
      if gap.is_beyond:
        where = self._locate([fillers[0], fillers[2]], lambda a, b: _is_near(a[:count], b[:count]))
        raise UsageError(f'{what} {_name(gap.name)} depends on them, by {gap.share:.2g} of '
                         f'itself{where}: {_PAD_FIX}.')

  def find_gaps(self, num_parts: int, model: Optional[Callable[[Any], Any]],
                runs_per_epoch: Optional[int]) -> List[str]:
    """Returns a sentence on the sum that differs most, if any does.

    Raises:
      UsageError: a sum is in no proportion to the number of examples.
      _LeftOut: why it cannot be measured.
    """
    self._prepare()
    index = np.arange(self.size)
    best = Gap('', float('inf'), True)
    for layout in _LAYOUTS if self._by_row else _LAYOUTS[:1]:
      runs = [self._run(index, layout)]
      values = runs[0].get(('values', 'loss'), index)
      # Examples of small losses in one batch, of large ones in the other.
      twice = np.repeat(np.argsort(values) if values.shape == index.shape else index, 2)
      orders = [index, twice[:self.size], twice[self.size:], index[::-1]]
      began = time.monotonic()
      runs.append(self._run(orders[1], layout))
      _check_price(time.monotonic() - began, runs_per_epoch)
      runs += [self._run(order, layout) for order in orders[2:]]
      gap = self._compare(runs, orders, layout)
      if gap.share < best.share:
        best = gap
      if not best.is_beyond:
        break
    if best.is_beyond:
      where = self._locate(orders, functools.partial(_is_alone, orders=orders, size=self.size))
      return [f'{_name(best.name)} depends on other examples of the batch, by {best.share:.2g} of '
              f'itself{where}.']
    self._check_scale(runs[0], layout, num_parts, model)
    return []

  def _compare(self, runs, orders, layout) -> Gap:
    """Returns the largest gap between runs of X, X1, X2 and X reversed."""
    x, x1, x2, reverse = runs
    pairs = []
    for key in x:
      if key[0] == 'input':
        pairs += [(key, run[key], _take(x[key], order, self.size, layout))
                  for run, order in zip(runs, orders)]
      elif key[0] != 'values':
        pairs.append((key, x1[key] + x2[key], 2 * x[key]))
        pairs += [(key, reverse[key], x[key])] if key[0] == 'sum' else []
    return self._find_gap(pairs, runs)

  def _find_gap(self, pairs, runs) -> Gap:
    """Returns the largest gap between pairs of values; there is none between what is not finite."""
    of_sums, of_values = _ROUNDING[self._is_half]
    largest, times = Gap('', 0.0, False), 0.0
    gradients = [_size(value) for run in runs for key, value in run.items()
                 if key[0] == 'gradient']
    for key, ours, expected in pairs:
      scale = max(_size(ours), _size(expected))
      if key[0] == 'sum':
        # Values of both signs may cancel.
        scale = max([scale, *(float(np.sum(np.abs(run['values', key[1]]))) for run in runs
                              if ('values', key[1]) in run)])
      elif key[0] == 'gradient':
        scale = max([scale, *gradients])
      rounding = of_sums if key[0] == 'sum' else of_values
      difference = _size(ours - expected) if ours.shape == expected.shape else scale
      share = difference / scale if scale else 0.0
      if np.isnan(share) and np.isfinite(expected).all():
        share = 1.0  # The same rows in other company are not finite.
      if share / rounding > times:
        times = share / rounding
        largest = Gap(key[1] if key[0] == 'sum' else key[0], share, times > 1)
    return largest

  def _check_scale(self, once, layout, num_parts, model):
    """Refuses sums that do not double with the examples."""
    if all(tensor.shape.ndims and tensor.shape.as_list()[0] is None for tensor in self._tensors):
      index = np.arange(self.size)
      try:
        twice = self._run(np.concatenate([index, index]), layout)
      except tf.errors.OpError:
        return  # A model may hold a row for each example.
    elif model is not None:
      try:
        once, twice = self._call_again(model)
      except Exception:  # Whatever a model does that is called in another graph.
        return
    else:
      return
    gap = self._find_gap([(key, twice[key], 2 * once[key]) for key in once if key[0] == 'sum'],
                         [once, twice])
    if gap.is_beyond:
      grown = float(twice['sum', gap.name] / once['sum', gap.name])
      raise UsageError(
          f'{_name(gap.name)} is no mean over the examples of a batch: over twice as many examples '
          f'its sum is {grown:.3g} times as large, and not 2. So the update of a step in '
          f'{num_parts} parts (towers x micro-batches x workers) would not equal that of one. '
          f'{_SCALE_FIX}')

  def _call_again(self, model):
    """Returns the sums of the model on the rows, and on the rows twice, in a graph of its own."""
    results, index = [], np.arange(self.size)
    with tf.Graph().as_default(), tf.Session(
        config=tf.ConfigProto(device_count={'GPU': 0})) as session:
      measured = []
      for times in (1, 2):
        tensors = [tf.placeholder(tensor.dtype, [times * self.size, *tensor.shape.as_list()[1:]])
                   for tensor in self._tensors]
        batch = Batch(tf.nest.pack_sequence_as(self._batch.tensors, tensors), times * self.size)
        with tf.name_scope(f'times_{times}') as scope, tf.variable_scope(
            tf.get_variable_scope(), reuse=tf.AUTO_REUSE, use_resource=True,
            auxiliary_name_scope=False):
          sums, weights, _ = sum_returned(model(decode_batch(batch.tensors)), batch)
        tower = self._tower._replace(scope=scope, loss=sums['loss'], sums=sums, weights=weights,
                                     gradients=[], update_ops=[], penalties=[])
        measured.append(_Measured(tower, batch, session, [
            *(np.concatenate([value] * times) for value in self._rows), times * self.size]))
      session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
      session.run(tf.tables_initializer())
      once, twice = measured
      once._prepare(feeds_moments=False)
      drawn = {tensor.name.split('/', 1)[1]: value for tensor, value in once._by_row.items()}
      results.append(once._run(index, 'beside'))
      twice._prepare(feeds_moments=False)
      twice._by_row = {
          tensor: _take(drawn[tensor.name.split('/', 1)[1]], np.concatenate([index, index]),
                        self.size, 'beside') for tensor in twice._by_row}
      results.append(twice._run(np.arange(2 * self.size), _AS_IS))
    return results

  def _prepare(self, feeds_moments=True):
    """Finds what is fed beside the batch, and what is fetched.

    Raises:
      _LeftOut: a run of the tower would change the program's state, or draw what cannot be fed.
    """
    unfed = find_unfed(self._needed)
    if not unfed and find_step_writes(self._sums.values()).early:
      unfed = 'the loss or a metric changes a variable'
    if unfed:
      raise _LeftOut(unfed)
    self._fetches = {('sum', name): value for name, value in self._sums.items()}
    for name, value in self._tower.sums.items():
      if value.op.type == 'Sum':
        self._fetches['values', name] = value.op.inputs[0]
    self._fixed = {
        sums: np.float32([0.0] * (sums.shape.as_list()[0] // 2) + [1.0] * (
            sums.shape.as_list()[0] // 2 + 1))
        for sums in self._graph.get_collection(BATCH_SUMS, self._tower.scope)}
    self._by_row = {}
    self._read_draws()
    self._read_sums()
    kernels = [op for op in self._needed
               if op.type.startswith('FusedBatchNorm') and op.get_attr('is_training')]
    averages = self._find_moments()
    if feeds_moments and (kernels or averages):
      returned, moments = self._fetch([[op.outputs[0] for op in kernels], list(averages)],
                                      self._feed(np.arange(self.size), _AS_IS))
      self._by_row.update((op.outputs[0], value) for op, value in zip(kernels, returned))
      self._fixed.update((tensor, value) for tensor, value in zip(averages, moments)
                         if value.size == averages[tensor])
      self._fetches.update((('input', op.name), op.inputs[0]) for op in kernels)
    elif not self._fixed and any(
        op.type == 'IdentityN' and b'CustomGradient' in op.node_def.attr['_gradient_op_type'].s
        for op in self._needed):
      self._fetches.update(
          (('gradient', variable.op.name), tf.convert_to_tensor(gradient)) for variable, gradient
          in zip(self._tower.variables, self._tower.gradients) if gradient is not None)

  def _read_draws(self):
    """Feeds what random ops draw for the rows, without moving their state."""
    draws, index = find_draws(self._needed), np.arange(self.size)
    for op in filter(has_state, draws):
      with contextlib.suppress(tf.errors.InvalidArgumentError):  # In a branch that is not taken.
        inputs = self._fetch(list(op.inputs), self._feed(index, _AS_IS))
        self._by_row.update(zip(op.outputs, draw(op, inputs)))
    others = [output for op in draws if not has_state(op) for output in op.outputs[:1]]
    groups = [others] if others else []
    while groups:
      group = groups.pop()
      try:
        self._by_row.update(zip(group, self._fetch(group, self._feed(index, _AS_IS))))
      except tf.errors.InvalidArgumentError:
        groups += [[output] for output in group] if len(group) > 1 else []

  def _read_sums(self):
    """Feeds the sums over all towers as they would be without the others."""
    own = self._graph.get_collection(SUMS, self._tower.scope)
    for total, value in zip(own, self._graph.get_collection(OWN_SUMS)):
      if total not in self._fixed:
        self._fixed[total] = self._fetch(value, self._feed(np.arange(self.size), _AS_IS))

  def _find_moments(self) -> Dict[Any, int]:
    """Returns what both the loss and updates of moving averages take from the batch: tensors, each
    with the size that a moment has."""
    moving = [write for write in self._find_updates() if all(map(is_moving_average,
                                                                write.variables))]
    found: Dict[Any, int] = {}
    for write in moving:
      shape = write.variables[0].outputs[0].shape if write.variables[0].type != 'VarHandleOp' else (
          tf.TensorShape(write.variables[0].get_attr('shape')))
      updating = find_needed([write.op], within=self._of_batch)
      for op in updating & self._of_sums:
        for tensor in op.outputs:
          readers = tensor.consumers()
          if (any(reader in self._of_sums for reader in readers)
              and any(reader in updating and reader not in self._of_sums for reader in readers)):
            found[tensor] = shape.num_elements()
    return found

  def _feed(self, index, layout, count=None):
    """Returns the feed of these rows, of which `count` are real."""
    feed = {tensor: value[index] for tensor, value in zip(self._tensors, self._rows)}
    count = len(index) if count is None else count
    feed.update({number: count for number in (
        self._batch.num_examples, self._tower.num_global_examples) if tf.is_tensor(number)})
    feed.update(self._fixed)
    feed.update({tensor: _take(value, index, self.size, layout)
                 for tensor, value in self._by_row.items()})
    return feed

  def _run(self, index, layout, count=None):
    """Returns what is fetched for these rows, as float64, by key."""
    keys = list(self._fetches)
    values = self._fetch([self._fetches[key] for key in keys], self._feed(index, layout, count))
    return {key: np.asarray(value, np.float64) for key, value in zip(keys, values)}

  def _fetch(self, fetches, feed):
    with _all_fetchable(self._graph):
      return self._session.run(fetches, feed)

  def _locate(self, orders, is_alone) -> str:
    """Describes the first op of which `is_alone` is false for its values in all orders, or ''."""
    left_out = find_dead(self._needed) | {tensor.op for tensor in self._by_row}
    tensors = [tensor for op in self._needed if op in self._of_batch and op not in left_out
               for tensor in op.outputs
               if tensor.dtype.is_floating and not tensor.dtype._is_ref_dtype]
    for begin in range(0, len(tensors), _CHUNK):
      chunk = tensors[begin:begin + _CHUNK]
      try:
        values = [self._fetch(chunk, self._feed(order, 'beside')) for order in orders]
      except tf.errors.OpError:
        break
      for tensor, *of_orders in zip(chunk, *values):
        if not is_alone(*of_orders):
          return f'; its rows are first mixed by {format_op(tensor.op)}'
    return ''


@contextlib.contextmanager
def _all_fetchable(graph):
  """Lets what is inside of branches be fed and fetched, which TensorFlow leaves to its kernels."""
  kept = graph._unfeedable_tensors, graph._unfetchable_ops
  graph._unfeedable_tensors, graph._unfetchable_ops = type(kept[0])(), type(kept[1])()
  try:
    yield
  finally:
    graph._unfeedable_tensors, graph._unfetchable_ops = kept


def _check_price(seconds: float, runs_per_epoch: Optional[int]) -> None:
  """Raises _LeftOut where five runs of so many seconds are too many."""
  if (runs_per_epoch is not None and 5 * seconds > _LONG_SECONDS
      and runs_per_epoch * _LONG_SHARE < 5):
    raise _LeftOut(f'a forward run takes {seconds:.1f} s, of which an epoch has {runs_per_epoch}')


def _take(value, index, size, layout):
  """Returns the rows `index` of a value; as it is where no axis has all `size` rows.

  An axis may have several for each example, beside each other (all first ones, all second ones) or
  within each example (all of the first example, all of the second).
  """
  if layout == _AS_IS:
    return value
  for axis in range(min(value.ndim, 2)):
    outer, rest = divmod(value.shape[axis], size)
    if outer and not rest and (axis == 0 or outer == 1):
      chosen = (np.arange(outer)[:, None] * size + index if layout == 'beside'
                else np.asarray(index)[:, None] * outer + np.arange(outer))
      return np.take(value, chosen.ravel(), axis)
  return value


def _is_alone(x, x1, x2, reverse, *, orders, size):
  """Returns whether a value has the same rows in all orders, or is a sum over examples."""
  values = [np.asarray(value, np.float64) for value in (x, x1, x2, reverse)]
  if not np.isfinite(values[0]).all():
    return True
  for layout in _LAYOUTS:
    if all(_is_near(value, _take(values[0], order, size, layout))
           for value, order in zip(values, orders)):
      return True
  return (values[0].shape == values[1].shape == values[2].shape
          and _is_near(values[1] + values[2], 2 * values[0]) and _is_near(values[3], values[0]))


def _is_near(ours, expected):
  return ours.shape == expected.shape and _size(ours - expected) <= 1e-3 * _size(expected) + 1e-6


def _size(value) -> float:
  """Returns the largest absolute value; NaN if any is."""
  return float(np.max(np.abs(value))) if value.size else 0.0


def _find_needed(roots, fed):
  """Returns the ops that a run of the roots takes if the outputs of some ops are fed."""
  needed = set()
  pending = list(roots)
  while pending:
    op = pending.pop()
    if op not in needed and op not in fed:
      needed.add(op)
      pending.extend([*(tensor.op for tensor in op.inputs), *op.control_inputs])
  return needed


def find_dead(ops: Sequence[Operation]) -> Set[Operation]:
  """Returns the ops of branches and loops, which may not run, or run often."""
  dead: Set[Operation] = set()
  for op in ops:
    is_inside = op._get_control_flow_context() is not None
    if op.type != 'Exit' and (is_inside or op.type == 'Switch' or op.type != 'Merge' and any(
        tensor.op in dead for tensor in op.inputs)):
      dead.add(op)
  return dead


def _name(name: str) -> str:
  """Returns what to call a sum, for the beginning of a sentence."""
  if name in ('gradient', 'input'):
    return {'gradient': 'The gradient of the loss',
            'input': 'What goes into a layer of batch normalisation'}[name]
  return f'The {name} of the model' if name.startswith('loss') else f'The metric {name}'
