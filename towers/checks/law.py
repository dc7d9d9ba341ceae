"""Law 1, measured on the program as it is: whether its parts are sums over their examples.

A step is taken in parts: towers, micro-batches, workers. They equal one if the model is a sum over
its examples. Then, for batches X1 and X2 of one size whose rows are, taken together, those of X
twice,

  f(X1) + f(X2) = 2 f(X)      f(X in another order) = f(X)      f(X, X) = 2 f(X)

with f the sums that a tower makes of loss and metrics. The first tower is in the graph already: its
batch is fed (see `forward`), and nothing else runs, no input, no other tower, no other worker.

A penalty or an update is no sum over examples if it depends on the batch at all. What a branch or a
loop does on other data than these, no single batch tells.
"""

import functools
import logging
import time
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

import numpy as np

from tensorflow_v1 import tf
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.checks.forward import AS_IS, BESIDE, LAYOUTS, Forward, LeftOut, take_rows
from towers.data.composite import decode_batch
from towers.graph.source import format_op
from towers.input.batch import Batch
from towers.tower.batch_norm import is_moving_average
from towers.tower.forward_pass import Tower
from towers.tower.losses import sum_returned

# The relative differences that rounding makes, of sums and of single values.
_ROUNDING = {False: (1e-4, 1e-3), True: (1e-2, 5e-2)}
# What a kind of values is called.
_NAMES = {'sum': 'the model\'s {}', 'gradient': 'the gradient of {}',
          'input': 'the input of {}, batch normalisation,'}
# What takes longer than both of these is left out.
_LONG_SECONDS, _LONG_SHARE = 2.0, 1 / 20
_FIX = ('For batch normalisation use towers.tower.batch_norm_layer with batch_norm=sync; for a '
        'mean by weights return towers.Weighted(losses, weights). What a loss needs of the whole '
        'batch is the sum towers.all_sum(tf.reduce_sum(x, 0)), in place of tf.reduce_sum(x, 0), '
        'or its rows towers.all_rows(x), in place of x. Inside of a model take tf.gradients of '
        'values per example or of their sum.')
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
                  runs_per_epoch: Optional[int] = None, moves_state: bool = False) -> List[str]:
  """Returns a sentence for each part of a tower that depends on other examples of its batch.

  For the arguments, and what is raised, see `check_towers`. Of random ops with a state of their
  own, it measures nothing unless `moves_state`.
  """
  forward = Forward(tower, batch, session, rows, moves_state)
  if not forward.size:
    return []
  with tower.loss.graph.as_default():
    found = _find_dependent(forward) if num_parts > 1 else []
    try:
      if batch.is_padded:
        _check_filler(forward)
      if num_parts > 1 and forward.size > 1:
        found = _find_gap(forward, num_parts, model, runs_per_epoch) + found
    except LeftOut as reason:
      write_line(f'Whether {num_parts} parts of a step equal one was not measured, since {reason}; '
                 '--check, or towers.check, tries them out.')
    except tf.errors.OpError:
      pass  # The first step tells, with the reason.
  return found


def _find_dependent(forward) -> List[str]:
  """Returns a sentence on the first penalty and the first write that depend on the batch."""
  found = [f'The penalty {format_op(penalty.op)} depends on the examples of a batch.'
           for penalty in forward.tower.penalties if penalty.op in forward.of_batch][:1]
  return found + [
      f'The variable {write.variables[0].name} is changed by the examples of a batch, those of '
      f'each part by themselves ({format_op(write.op)}).' for write in forward.find_writes()
      if not all(map(is_moving_average, write.variables))][:1]


def _check_filler(forward) -> None:
  """Refuses a tower of which rows that only fill its batch up change the loss or an update."""
  what = 'last_batch=pad fills batches up with rows that must not count, and'
  for write in forward.find_writes():
    raise UsageError(f'{what} {format_op(write.op)} is computed from all rows, as batch '
                     f'normalisation is: {_PAD_FIX}.')
  index, count = forward.index, max(forward.size // 2, 1)
  if count == forward.size:
    return
  forward.prepare(feeds_moments=False)
  fillers = [np.where(index < count, index, other)
             for other in (count - 1, index, forward.size - 1 - index)]
  first, *others = [forward.run(filler, AS_IS, count) for filler in fillers]
  for other in others:
    gap = _find_largest([(key, other[key], first[key]) for key in first if key[0] == 'sum'],
                        [first], forward.is_half)
    if gap.is_beyond:
      where = forward.locate([fillers[0], fillers[2]], lambda a, b: _is_near(
          np.atleast_1d(a)[:count], np.atleast_1d(b)[:count]))
      raise UsageError(f'{what} {gap.name} depends on them, by {gap.share:.2g} of itself{where}: '
                       f'{_PAD_FIX}.')


def _find_gap(forward, num_parts, model, runs_per_epoch) -> List[str]:
  """Returns a sentence on the sum that differs most, if any does.

  Raises:
    UsageError: a sum is in no proportion to the number of examples.
    LeftOut: why it cannot be measured.
  """
  forward.prepare()
  index, size = forward.index, forward.size
  best = Gap('', float('inf'), True)
  for layout in LAYOUTS if forward.has_rows else LAYOUTS[:1]:
    runs = [forward.run(index, layout)]
    values = runs[0].get(('values', 'loss'), index)
    # Examples of small losses in one batch, of large ones in the other.
    twice = np.repeat(np.argsort(values) if values.shape == index.shape else index, 2)
    orders = [index, twice[:size], twice[size:], index[::-1]]
    began = time.monotonic()
    runs.append(forward.run(orders[1], layout))
    seconds = time.monotonic() - began
    check_price = functools.partial(_check_price, runs_per_epoch=runs_per_epoch, of_run=seconds)
    check_price('four more forward runs', 5 * seconds)
    runs += [forward.run(order, layout) for order in orders[2:]]
    best = min(best, _compare(runs, orders, forward, layout), key=lambda gap: gap.share)
    if not best.is_beyond:
      _check_scale(forward, runs[0], layout, num_parts, model, check_price)
      return []
  where = forward.locate(orders, functools.partial(_is_alone, orders=orders, size=size))
  return [f'{best.name[0].upper()}{best.name[1:]} depends on other examples of the batch, by '
          f'{best.share:.2g} of itself{where}.']


def _compare(runs, orders, forward, layout) -> Gap:
  """Returns the largest gap between runs of X, X1, X2 and X reversed."""
  x, x1, x2, reverse = runs
  pairs = []
  for key in x:
    if key[0] == 'input':
      pairs += [(key, run[key], take_rows(x[key], order, forward.size, layout))
                for run, order in zip(runs, orders)]
    elif key[0] != 'values':
      pairs.append((key, x1[key] + x2[key], 2 * x[key]))
      pairs += [(key, reverse[key], x[key])] if key[0] == 'sum' else []
  return _find_largest(pairs, runs, forward.is_half)


def _find_largest(pairs, runs, is_half) -> Gap:
  """Returns the largest gap between pairs of values, of which rounding explains a share."""
  of_sums, of_values = _ROUNDING[is_half]
  largest, most = Gap('', 0.0, False), 0.0
  gradients = [_size(value) for run in runs for key, value in run.items() if key[0] == 'gradient']
  for (kind, name), ours, expected in pairs:
    # Values of both signs may cancel, and gradients of one variable.
    beside = gradients if kind == 'gradient' else [
        float(np.sum(np.abs(run['values', name]))) for run in runs if ('values', name) in run]
    scale = max([_size(ours), _size(expected), *beside])
    difference = _size(ours - expected) if ours.shape == expected.shape else scale
    share = difference / scale if scale else 0.0
    if np.isnan(share) and np.isfinite(expected).all():
      share = 1.0  # The same rows in other company are not finite.
    times = share / (of_sums if kind == 'sum' else of_values)
    if times > most:
      most, largest = times, Gap(_NAMES[kind].format(name), share, times > 1)
  return largest


def _check_scale(forward, once, layout, num_parts, model, check_price) -> None:
  """Refuses sums that do not double with the examples."""
  try:
    if all(tensor.shape.ndims and tensor.shape.as_list()[0] is None for tensor in forward.tensors):
      twice = forward.run(np.concatenate([forward.index, forward.index]), layout)
    elif model is not None:
      once, twice = _call_again(model, forward, check_price)
    else:
      return
  except LeftOut:
    raise
  except Exception:  # A model may hold a row for each example, and do anything in another graph.
    return
  gap = _find_largest([(key, twice[key], 2 * once[key]) for key in once if key[0] == 'sum'],
                      [once, twice], forward.is_half)
  if gap.is_beyond:
    raise UsageError(
        f'{gap.name[0].upper()}{gap.name[1:]} is no mean over the examples of a batch: over twice '
        f'as many examples its sum is not twice as large, but differs by {gap.share:.2g} of it. So '
        f'the update of a step in {num_parts} parts (towers x micro-batches x workers) would not '
        f'equal that of one. {_SCALE_FIX}')


def _call_again(model, forward, check_price):
  """Returns the sums of the model on the rows, and on the rows twice, in a graph of its own."""
  began = time.monotonic()
  with tf.Graph().as_default(), tf.Session(
      config=tf.ConfigProto(device_count={'GPU': 0})) as session:
    towers = []
    for times in (1, 2):
      count = times * forward.size
      batch = Batch(tf.nest.pack_sequence_as(forward.batch.tensors, [
          tf.placeholder(tensor.dtype, [count, *tensor.shape.as_list()[1:]])
          for tensor in forward.tensors]), count)
      with tf.name_scope(f'times_{times}') as scope, tf.variable_scope(
          tf.get_variable_scope(), reuse=tf.AUTO_REUSE, use_resource=True,
          auxiliary_name_scope=False):
        sums = sum_returned(model(decode_batch(batch.tensors)), batch)
      tower = forward.tower._replace(
          scope=scope, loss=sums.values['loss'], sums=sums.values, weights=sums.weights,
          gradients=[], update_ops=[], penalties=[])
      towers.append(Forward(tower, batch, session, [
          *(np.concatenate([value] * times) for value in forward.rows), count], moves_state=True))
      check_price('calling the model on twice as many examples', 2 * (time.monotonic() - began))
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    session.run(tf.tables_initializer())
    once, twice = towers
    for tower in towers:
      tower.prepare(feeds_moments=False)
    index = np.concatenate([once.index, once.index])
    twice.take_draws({name: take_rows(value, index, once.size, BESIDE)
                      for name, value in once.name_draws().items()})
    return once.run(once.index, AS_IS), twice.run(twice.index, AS_IS)


def _check_price(what, seconds, *, of_run, runs_per_epoch) -> None:
  """Raises LeftOut where something takes longer than `_LONG_SECONDS` and a share of an epoch."""
  if (runs_per_epoch is not None
      and seconds > max(_LONG_SECONDS, of_run * runs_per_epoch * _LONG_SHARE)):
    raise LeftOut(f'{what} would take {seconds:.1f} s, and an epoch has {runs_per_epoch} of '
                  f'{of_run:.2g} s')


def _is_alone(x, x1, x2, reverse, *, orders, size) -> bool:
  """Returns whether a value has the same rows in all orders, or is a sum over examples."""
  if not np.isfinite(x).all():
    return True
  if any(all(_is_near(value, take_rows(x, order, size, layout))
             for value, order in zip((x, x1, x2, reverse), orders)) for layout in LAYOUTS):
    return True
  return (x.shape == x1.shape == x2.shape and _is_near(x1 + x2, 2 * x) and _is_near(reverse, x))


def _is_near(ours, expected) -> bool:
  return ours.shape == expected.shape and _size(ours - expected) <= 1e-3 * _size(expected) + 1e-6


def _size(value) -> float:
  """Returns the largest absolute value; NaN if any is."""
  return float(np.max(np.abs(value))) if value.size else 0.0
