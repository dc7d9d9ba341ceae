"""Law 1, measured on the program as it is: whether its parts are sums over their examples.

A step is taken in parts: towers, micro-batches, workers. They equal one if the model is a sum over
its examples. Then, for batches X1 and X2 of one size whose rows are, taken together, those of X
twice,

  f(X1) + f(X2) = 2 f(X)      f(X in another order) = f(X)      f(X, X) = 2 f(X)

with f the sums that a tower makes of loss and metrics. The first tower is in the graph already: its
batch is fed (see `fed_tower`), and nothing else runs, no input, no other tower, no other worker.

A penalty or an update is no sum over examples if it depends on the batch at all. What a branch or a
loop does on other data than these, no single batch tells.
"""

import functools
import logging
import time
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from tensorflow_v1 import tf
from towers.base.output import write_line
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError
from towers.checks.comparison import find_norm
from towers.checks.fed_tower import AS_IS, LAYOUTS, FedTower, LeftOut, take_rows
from towers.graph.source import format_op
from towers.tower.all_towers import SUMS
from towers.tower.batch_norm import is_moving_average
from towers.tower.batch_norm_layer import BATCH_SUMS
from towers.tower.forward_pass import Tower
from towers.tower.losses import sum_returned

# The relative differences that rounding makes, of sums and of single values.
_ROUNDING = {False: (1e-4, 1e-3), True: (1e-2, 5e-2)}
# What an op computes is compared with no less than this.
_LEAST = 1e-3
_MOST = 2.0  # The largest share by which two values can differ.
# What a kind of values is called.
_NAMES = {'sum': 'The model\'s {}', 'gradient': 'The gradient of {}',
          'input': 'The input of {}, batch normalisation,'}
# What takes longer than both of these is left out.
_LONG_SECONDS, _LONG_SHARE = 2.0, 1 / 20
_NOISE_SHARE = 1 / 4  # Of a difference, by which rounding explains it.
# Rows of which sums are compared with those of twice as many.
_FEW = 4
_MOST_KEYS = 3  # By which the examples of a scalar loss are sorted.
# What Python needs to call a model, for each op of its forward pass; and the most that it is worth
# where only a division by the batch's size could be wrong.
_OP_SECONDS, _SHORT_SECONDS = 2e-3, 0.1
FIX = ('For batch normalisation use towers.tower.batch_norm_layer.batch_norm with '
       'batch_norm=sync; for a mean by weights return towers.Weighted(losses, weights). What a '
       'loss needs of the whole batch is the sum towers.all_sum(tf.reduce_sum(x, 0)), in place '
       'of tf.reduce_sum(x, 0), or its rows towers.all_rows(x), in place of x. Inside of a '
       'model take tf.gradients of values per example or of their sum. A metric that needs the '
       'whole split, as an IoU does, is a towers.Whole.')
_SCALE_FIX = ('Return one loss per example, [batch], or the mean over the batch; or '
              'towers.Weighted(losses, weights). A division by a constant does not help.')
_PAD_FIX = 'use last_batch=drop, whose batches have one shape too, or keep'


def check_towers(towers: Sequence[Tower], session: Any, rows: Optional[Sequence[Any]], *,
                 num_parts: Optional[int] = None, runs_per_epoch: Optional[int] = None) -> None:
  """Warns of a model whose loss, metrics, penalties or updates are no sums over examples.

  It is to be called before the first step, once variables have their values. It takes no batch,
  changes no variable and adds no op to the graph (examples/by_hand.py calls it).

  Args:
    towers, session: of the program.
    rows: the first tower's examples, as `Feed.start` returns them; without any nothing is done.
    num_parts: into which a step's global batch is divided: towers, workers, micro-batches.
    runs_per_epoch: forward runs of all towers in an epoch; where the measurement takes longer than
      a share of them and some seconds, a line says that it was left out. None for no limit.

  Raises:
    UsageError: the loss or a metric grows otherwise than the number of examples, or rows that only
      fill a batch up change it.
  """
  if rows is None:
    return
  num_parts = num_parts or len(towers)
  found = find_coupling(towers[0], session, rows, num_parts=num_parts,
                        runs_per_epoch=runs_per_epoch)
  if towers[0].call_beside is not None:
    towers[0].call_beside.cache_clear()  # Some MB for a deep net.
  if found:
    logging.getLogger('towers').warning(
        '%s A tower has only its own examples, so %d parts of a step (towers x micro-batches x '
        'workers) do not equal one. %s --check, or towers.check, shows by how much they differ.',
        ' '.join(found), num_parts, FIX)


def judge(program: Any, session: Any, rows: Optional[Sequence[Any]]) -> None:
  """Does what `check_towers` does for a program, from the rows that its feed has let see."""
  plan = program.plan
  if plan.accumulate > 1 and set(program.graph.get_collection(SUMS)).difference(
      program.graph.get_collection(BATCH_SUMS)):
    logging.getLogger('towers').warning(
        'towers.all_sum and towers.all_rows are those of a micro-batch, of which a step has %d: '
        'without accumulate they are those of the whole batch.', plan.accumulate)
  check_towers(program.towers, session, rows, num_parts=_count_parts(program),
               runs_per_epoch=plan.steps_per_epoch * plan.accumulate * len(program.towers))


def has_parts(program: Any) -> bool:
  """Returns whether there is anything to judge: several parts of a step, or rows that fill up."""
  return _count_parts(program) > 1 or program.towers[0].batch.is_padded


def _count_parts(program):
  return len(program.towers) * program.plan.accumulate * program.workers.num_workers


def find_coupling(tower: Tower, session: Any, rows: Sequence[Any], *, num_parts: int,
                  runs_per_epoch: Optional[int] = None, moves_state: bool = False) -> List[str]:
  """Returns a sentence for each part of a tower that depends on other examples of its batch.

  For the arguments, and what is raised, see `check_towers`. Of random ops with a state of their
  own, it measures nothing unless `moves_state`.
  """
  fed = FedTower(tower, session, rows, moves_state)
  if not fed.size:
    return []
  found: List[str] = []
  with tower.loss.graph.as_default():
    try:
      if tower.batch.is_padded:
        _check_filler(fed)
      if num_parts > 1 and fed.size > 1:
        find = functools.partial(_find_mixed, num_parts=num_parts, runs_per_epoch=runs_per_epoch)
        found += find(fed) if fed.size <= fed.most else _run_beside(fed, fed.most, find)
    except LeftOut as reason:
      write_line(f'Whether {num_parts} parts of a step equal one was not measured, since {reason}; '
                 '--check, or towers.check, tries them out.')
    except tf.errors.OpError:
      pass  # The first step tells, with the reason.
  return found + (_find_dependent(fed) if num_parts > 1 else [])


def _find_dependent(fed) -> List[str]:
  """Returns a sentence on the first penalty and the first write that depend on the batch."""
  found = [f'The penalty {format_op(penalty.op)} depends on the examples of a batch.'
           for penalty in fed.tower.penalties if penalty.op in fed.of_batch][:1]
  return found + [
      f'The variable {write.variables[0].name} is changed by the examples of a batch, those of '
      f'each part by themselves ({format_op(write.op)}).' for write in fed.writes
      if not all(map(is_moving_average, write.variables))][:1]


def _check_filler(fed) -> None:
  """Refuses a tower of which rows that only fill its batch up change the loss or an update."""
  what = 'last_batch=pad fills batches up with rows that must not count.'
  for write in fed.writes:
    raise UsageError(f'{what} {format_op(write.op)} is computed from all rows, as batch '
                     f'normalisation is: {_PAD_FIX}.')
  index, count = fed.index, max(fed.size // 2, 1)
  if count == fed.size:
    return

  def law(values):
    first, *others = [np.atleast_1d(value)[:count] for value in values]
    yield [(other, first) for other in others]

  fed.prepare(feeds_moments=False)
  fillers = [np.where(index < count, index, other)
             for other in (count - 1, index, fed.size - 1 - index)]
  times, name, share = _find_gap(
      law, [fed.run(filler, AS_IS, count) for filler in fillers], fed.is_half)
  if times > 1:
    raise UsageError(f'{what} {name} depends on them, by {share:.2g} of itself'
                     f'{_locate(law, fed, fillers, share)}: {_PAD_FIX}.')


def _find_mixed(fed, num_parts, runs_per_epoch) -> List[str]:
  """Returns a sentence on the sum that differs most, if any does; raises as `_check_scale`."""
  fed.prepare()
  index, size, gaps = fed.index, fed.size, []
  once = fed.run(index, AS_IS)
  values = once.get(('values', 'loss'))
  # Examples of small losses in one batch, of large ones in the other; or of small inputs, as 0.
  keys = [values] if np.shape(values) == index.shape else [index, *fed.list_sums(_MOST_KEYS)]
  orders = [index, index[::-1], *(half for key in keys for half in np.split(
      np.repeat(np.argsort(key, kind='stable'), 2), 2))]

  def law(values, layouts=LAYOUTS):
    x, reverse, *halves = values
    if len({value.shape for value in values}) == 1:
      yield [(reverse, x), *((x1 + x2, 2 * x) for x1, x2 in zip(halves[::2], halves[1::2]))]
      for layout in layouts:
        yield [(value, take_rows(x, order, size, layout)) for value, order in zip(values, orders)]

  for layout in LAYOUTS if fed.by_row else LAYOUTS[:1]:
    began = time.monotonic()
    runs = [once, fed.run(orders[1], layout)]
    seconds = time.monotonic() - began
    limit = float('inf') if runs_per_epoch is None else max(
        _LONG_SECONDS, seconds * runs_per_epoch * _LONG_SHARE)
    _check_price(f'{len(orders)} more forward runs', (len(orders) + 1) * seconds, limit)
    runs += [fed.run(order, layout) for order in orders[2:]]
    gaps.append(_find_gap(functools.partial(law, layouts=[layout]), runs, fed.is_half))
    if gaps[-1][0] <= 1:
      _check_scale(fed, once, layout, num_parts, limit)
      return []
  times, name, share = min(gaps)
  _check_rounding(fed, once, times)
  return [f'{name} depends on other examples of the batch, by {share:.2g} of itself'
          f'{_locate(law, fed, orders, share)}.']


def _find_gap(law, runs, is_half) -> Tuple[float, str, float]:
  """Returns for what differs most from a law: how many times what rounding explains, its name, and
  by what share of its size.

  A law yields the ways of keeping it: pairs of a value and what it is then.
  """
  of_sums, of_values = _ROUNDING[is_half]
  # Gradients of one variable may cancel, and values of both signs.
  gradients = [find_norm(value) for run in runs for (kind, _), value in run.items()
               if kind == 'gradient']
  gaps = [(0.0, '', 0.0)]
  for kind, name in runs[0]:
    if kind != 'values':
      least = max(gradients if kind == 'gradient' else [
          float(np.sum(np.abs(run.get(('values', name), 0.0)))) for run in runs])
      share = _find_share(law, [run[kind, name] for run in runs], least)
      gaps.append((share / (of_sums if kind == 'sum' else of_values),
                   _NAMES[kind].format(name), share))
  return max(gaps)


def _find_share(law, values, least) -> float:
  """Returns by what share of their size, or of `least`, values break a law."""
  if not np.isfinite(values[0]).all():
    return 0.0

  def differ(ours, expected):
    # Infinite if the same rows in other company are more, or not finite.
    return find_norm(ours, expected) / (max(find_norm(ours), find_norm(expected), least) or 1.0)

  return min([_MOST, *(max(differ(*pair) for pair in pairs) for pairs in law(values))])


def _locate(law, fed, orders, share) -> str:
  """Describes the first op whose values break a law, which sums break by a share."""
  most = min(_ROUNDING[fed.is_half][1], share / 2)
  return fed.locate(orders, lambda values: _find_share(law, values, _LEAST) <= most)


def _check_scale(fed, once, layout, num_parts, limit) -> None:
  """Refuses sums that do not double with the examples."""
  def double(few):
    few.prepare()
    return [[few.run(np.concatenate([few.index] * times), way) for times in (1, 2)]
            for way in (LAYOUTS[:2] if layout == AS_IS else [layout])]  # As it is, it lacks rows.

  if fed.is_open:
    try:
      pairs = [[once, fed.run(np.concatenate([fed.index] * 2), layout)]]
    except Exception as error:  # What is drawn may have as many entries as there are rows.
      raise _leave_out(error) from error
  else:
    seconds = len(fed.ops) * _OP_SECONDS
    if seconds > _SHORT_SECONDS and all(('values', name) in once for name in fed.tower.sums):
      return
    _check_price('calling the model once more', seconds, limit)
    pairs = _run_beside(fed, _FEW, double)
  times, name, share = min(_find_gap(lambda values: [[(values[1], 2 * values[0])]], [
      {key: value for key, value in run.items() if key[0] in ('sum', 'values')}
      for run in pair], fed.is_half) for pair in pairs)
  if times > 1:
    _check_rounding(fed, once, times)
    raise UsageError(
        f'{name} is no mean over the examples of a batch: over twice as many examples its sum is '
        f'not twice as large, but differs by {share:.2g} of it. So the update of a step in '
        f'{num_parts} parts (towers x micro-batches x workers) would not equal that of one. '
        f'{_SCALE_FIX}')


def _check_rounding(fed, once, times) -> None:
  """Raises LeftOut where the last bits of the same batch make about as large a difference."""
  shaken = fed.run(fed.index, AS_IS, shakes=True)
  if _find_gap(lambda values: [[values]], [once, shaken], fed.is_half)[0] > _NOISE_SHARE * times:
    raise LeftOut('rounding decides in this model')


def _run_beside(fed, num_rows, measure) -> Any:
  """Returns what `measure` returns for a fed tower like another, of few rows, in another graph."""
  config = tf.ConfigProto(device_count={'GPU': 0})
  config.graph_options.rewrite_options.disable_meta_optimizer = True  # For a few small runs.
  few = None
  try:
    graph, batch, returned = fed.tower.call_beside()
    with graph.as_default(), tf.Session(config=config) as session:
      sums = sum_returned(returned, batch)
      session.run([tf.global_variables_initializer(), tf.local_variables_initializer(),
                   tf.tables_initializer()])
      tower = fed.tower._replace(batch=batch, loss=sums.values['loss'], sums=sums.values,
                                 weights=sums.weights, gradients=[], update_ops=[])
      size = min(fed.size, num_rows)
      few = FedTower(tower, session, [*(row[:size] for row in fed.rows), size], moves_state=True)
      return measure(few)
  except Exception as error:  # A model may hold a row for each example, or layers of this graph.
    if few and isinstance(error, (LeftOut, UsageError)):
      raise
    raise _leave_out(error) from error


def _leave_out(error) -> LeftOut:
  return LeftOut('the model cannot be called on other rows, in a graph of their own: '
                 f'{find_reason(error)}')


def _check_price(what, seconds, limit) -> None:
  """Raises LeftOut where something takes longer than it may."""
  if seconds > limit:
    raise LeftOut(f'{what} would take {seconds:.1f} s, more than {limit:.1f} s, the larger of '
                  f'{_LONG_SECONDS:g} s and a twentieth of an epoch\'s forward runs')
