"""Law 1, measured on the program as it is stated: what the parts of a step compute adds up.

A step is taken in parts: towers, micro-batches, workers. They equal one if losses, metrics and
gradients are sums over examples. The live towers are fed (see `fed_towers`) with a few rows, at
chosen places of the global batch:

  size        tower 0, places 0 … 8                =   tower 0, places 0 … 3  +  tower 1, 4 … 8
  exchange    tower 0, rows A B  +  tower 1, C D   =   tower 0, rows A C  +  tower 1, B D
              where B and C are at the same places

Where exchanges are equal and sizes are not, a sum stands where a mean belongs: that is refused.
Batches of one static size can only be exchanged: for others the model is called beside.

What a branch or a loop does on other data than these, no few rows tell.
"""

import logging
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from towers.base.output import write_line
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError
from towers.coupling.comparison import find_norm, find_share
from towers.coupling.culprit import LEAST, describe_culprit, join_entries
from towers.coupling.fed_towers import FedTowers, LeftOut, Share, Sides
from towers.graph.source import format_op
from towers.tensorflow_v1 import tf
from towers.tower.all_towers import SUMS
from towers.tower.batch_norm_layer import BATCH_SUMS
from towers.tower.beside import opened_beside
from towers.tower.tower import Tower

# The relative differences that rounding makes, of sums, of gradients and of other values.
_ROUNDING = {False: dict(sum=1e-4, gradient=1e-3, value=1e-3),
             True: dict(sum=1e-2, gradient=5e-2, value=5e-2)}
_LEAST_GRADIENT = 1e-2  # Of the largest: gradients may cancel.
# Where a ReLU turns, gradients before it jump: by some hundredths in a deep net.
_JUMP = 5e-2
_MOST = 2.0  # The largest share by which two values can differ.
# What a kind of values is called, in order of what a warning names.
_NAMES = {'sum': 'The model\'s {}', 'rows': 'The metric {}', 'gradient': 'The gradient of {}',
          'input': 'The input of {}, batch normalisation,'}
# What takes longer than both of these is left out.
_LONG_SECONDS, _LONG_SHARE = 2.0, 1 / 20
_NOISE_SHARE = 1 / 4  # Of a difference, by which rounding explains it.
_FEW = 4  # Rows of a tower; more only where draws need them, in blocks of as many numbers.
_MOST_KEYS = 3  # By which the examples of a scalar loss are sorted.
# What Python needs to call a model, for each op of its forward pass; and the most that it is worth
# where only a division by the batch's size could be wrong.
_OP_SECONDS, _SHORT_SECONDS = 2e-3, 0.1
FIX = ('For batch normalisation use towers.tower.batch_norm_layer.batch_norm with '
       'batch_norm=sync; for a mean by weights return towers.Weighted(losses, weights). What a '
       'loss needs of the whole batch is the sum towers.all_sum(tf.reduce_sum(x, 0)), in place '
       'of tf.reduce_sum(x, 0), or its rows towers.all_rows(x), in place of x. Inside of a '
       'model take tf.gradients of values per example or of their sum. A metric that needs the '
       'whole split, as an IoU does, is a towers.Whole. Draw numbers with a row for each example.')
_SCALE_FIX = ('Return one loss per example, [batch], or the mean over the batch; or '
              'towers.Weighted(losses, weights). A division by a constant does not help.')
_PAD_FIX = 'use last_batch=drop, whose batches have one shape too, or keep'


def check_towers(towers: Sequence[Tower], session: Any, rows: Optional[Sequence[Any]], *,
                 num_parts: Optional[int] = None, num_workers: int = 1,
                 runs_per_epoch: Optional[int] = None) -> None:
  """Warns of a model whose loss, metrics, gradients, penalties or updates are no sums over
  examples.

  It is to be called before the first step, once variables have their values. It takes no batch,
  changes no variable and adds no op to the graph (examples/by_hand.py calls it).

  Args:
    towers, session: of the program.
    rows: the towers' examples, as `Feed.start` returns them; without any nothing is done.
    num_parts: into which a step's global batch is divided: towers, workers, micro-batches.
    num_workers: of the program.
    runs_per_epoch: forward runs of all towers in an epoch; where the measurement takes longer than
      a share of them and some seconds, a line says that it was left out. None for no limit.

  Raises:
    UsageError: the loss or a metric grows otherwise than the number of examples, or rows that only
      fill a batch up change it.
  """
  if rows is None:
    return
  num_parts = num_parts or len(towers)
  found = find_coupling(towers, session, rows, num_parts=num_parts, num_workers=num_workers,
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
               num_workers=program.workers.num_workers,
               runs_per_epoch=plan.steps_per_epoch * plan.accumulate * len(program.towers))


def has_parts(program: Any) -> bool:
  """Returns whether there is anything to judge: several parts of a step, or rows that fill up."""
  return _count_parts(program) > 1 or program.towers[0].batch.is_padded


def _count_parts(program):
  return len(program.towers) * program.plan.accumulate * program.workers.num_workers


def find_coupling(towers: Sequence[Tower], session: Any, rows: Sequence[Any], *, num_parts: int,
                  num_workers: int = 1, runs_per_epoch: Optional[int] = None) -> List[str]:
  """Returns a sentence for each part of a model that depends on other examples of its batch.

  For the arguments, and what is raised, see `check_towers`.
  """
  with towers[0].loss.graph.as_default():
    fed = FedTowers(towers, session, rows, num_workers)
    if not fed.size:
      return []
    try:
      if towers[0].batch.is_padded:
        _check_filler(fed)
      if num_parts > 1:
        fed.check()
        found = _find_mixed(fed, num_parts, runs_per_epoch)
        return found or _describe_writes(fed.list_writes(measured=False))
    except LeftOut as reason:
      write_line(f'Whether {num_parts} parts of a step equal one was not measured, since {reason}; '
                 '--check, or towers.check, tries them out.')
    except tf.errors.OpError as error:
      op = '' if error.op is None else f', in {format_op(error.op)}'
      write_line(f'Whether {num_parts} parts of a step equal one was not measured, since the model '
                 f'fails on a few rows of its first batch{op}: {find_reason(error)}. If it holds a '
                 'batch size as a number, it needs batches of one size: use last_batch=drop, carry '
                 'or pad.')
    return _describe_writes(fed.list_writes()) if num_parts > 1 else []


def _check_filler(fed) -> None:
  """Refuses towers of which rows that only fill a batch up change the loss or an update."""
  what = 'last_batch=pad fills batches up with rows that must not count.'
  for op in (*(write.op for write in fed.writes), *fed.kernels):
    raise UsageError(f'{what} {format_op(op)} is computed from all rows, as batch normalisation '
                     f'is: {_PAD_FIX}.')
  fed.check()
  index = np.arange(fed.sizes[0])
  count = max(len(index) // 2, 1)
  # Two batches, filled up by two kinds of rows in turn.
  shares = [Share(0, np.where(index < count, real, filler), 0, count)
            for real in (index, index[::-1]) for filler in (count - 1, index)]
  sides = Sides(shares[::3], shares[1:3])
  reference, other = fed.measure(sides)
  for gap in _find_gaps({key: values[:1] for key, values in reference.items() if key[0] == 'sum'},
                        {key: values[:1] for key, values in other.items()}, fed):
    raise UsageError(f'{what} {_NAMES["sum"].format(gap.name)} depends on them, by {gap.share:.2g} '
                     f'of itself{_locate(fed, sides, [gap])}: {_PAD_FIX}.')


def _find_mixed(fed, num_parts, runs_per_epoch) -> List[str]:
  """Returns a sentence on what differs most, if anything does; refuses what a size decides."""
  if fed.sizes[0] is None:
    return _judge_size(fed, num_parts, runs_per_epoch)
  sides, gaps = _try_out(fed, _exchange(fed), runs_per_epoch)
  if gaps:
    return _describe(fed, sides, gaps)
  seconds = len(fed.forward) * _OP_SECONDS
  is_by_example = all(value.op.type == 'Sum' for value in fed.towers[0].sums.values())
  if is_by_example and seconds > _SHORT_SECONDS:
    return []
  _check_price(fed, 'calling the model once more', seconds, runs_per_epoch)
  few = None
  try:
    with opened_beside(fed.towers[0]) as (tower, session):
      # Sums over all towers are here as they are where there are others.
      few = FedTowers([tower], session, [[*fed.pool, fed.size]], num_workers=2)
      return _judge_size(few, num_parts, runs_per_epoch) or _describe_writes(few.list_writes())
  except Exception as error:  # A model may hold a row for each example, or layers of this graph.
    if few and isinstance(error, (LeftOut, UsageError)):
      raise
    if is_by_example:
      return []
    raise LeftOut('the model cannot be called on other rows, in a graph of their own: '
                  f'{find_reason(error)}') from error


def _judge_size(fed, num_parts, runs_per_epoch) -> List[str]:
  sides, gaps = _try_out(fed, _divide(fed), runs_per_epoch)
  found = _describe(fed, sides, gaps) if gaps else []
  if gaps and gaps[0].kind == 'sum' and not any(
      gap.kind == 'sum' for gap in _try_out(fed, _exchange(fed), runs_per_epoch)[1]):
    raise UsageError(
        f'{_NAMES["sum"].format(gaps[0].name)} is no mean over the examples of a batch: over all '
        f'examples of some parts it is not the sum of theirs, but differs by {gaps[0].share:.2g} '
        f'of it. So the update of a step in {num_parts} parts (towers x micro-batches x workers) '
        f'would not equal that of one. {_SCALE_FIX}')
  return found


def _divide(fed) -> Sides:
  """Returns all rows on one tower, and divided among all towers; of one, in other parts of two.

  They are a few, or what a tower has memory for in a step; many towers take one or two each.
  """
  num_towers, unit = len(fed.towers), fed.unit
  num_parts = max(num_towers, 2)
  room = max(fed.size // num_towers, 2 * _FEW + 1) // num_parts
  least = max(min(room, fed.size // num_parts, _FEW), 1) if unit == 1 else unit
  counts = [least + (number % 2 if unit == 1 else number == num_parts - 1)
            for number in range(num_parts)]
  ends = np.cumsum([0, *counts])
  # One tower has its penalties in each part.
  of_one = [0, ends[-1]] if num_towers > 1 else [0, ends[-1] - 1, ends[-1]]
  return Sides(*([Share(number % num_towers if side is ends else 0, np.arange(*pair), int(pair[0]),
                        int(pair[1] - pair[0]))
                  for number, pair in enumerate(zip(side, side[1:]))] for side in (of_one, ends)))


def _exchange(fed) -> Sides:
  """Returns towers with rows of their own beside others, and these exchanged.

  Every other tower begins later, so that it has among its first rows what it exchanges.
  """
  num_towers, unit = len(fed.towers), fed.unit
  num_shares = max(num_towers, 2)
  sizes = [size or max(_FEW, 2 * unit) for size in fed.sizes * (num_shares // num_towers)]
  least, ends = min(sizes), np.cumsum([0, *sizes])
  shift = unit * max(1, least // (2 * unit))
  # Where none can begin later, they exchange the later half.
  begin, shift = (shift, shift) if shift < least else (least // 2, 0)
  rows = [np.arange(*pair) for pair in zip(ends, ends[1:])]
  if num_towers == 1:  # It may have the same rows in both.
    rows[1] = np.roll(rows[1], begin - shift)
  firsts = [shift * (number % 2) for number in range(num_shares)]
  parts = [slice(begin - first, least - first) for first in firsts]
  exchanged = [of_tower.copy() for of_tower in rows]
  for number, part in enumerate(parts):
    exchanged[number][part] = rows[number - 1][parts[number - 1]]
  return Sides(*([Share(number % num_towers, of_tower, firsts[number], len(of_tower))
                  for number, of_tower in enumerate(side)] for side in (rows, exchanged)))


class Gap(NamedTuple):
  """What differs between two sides: by how many times what rounding explains, by what share."""
  times: float
  kind: str
  name: str
  share: float


def _try_out(fed, sides, runs_per_epoch) -> Tuple[Sides, List[Gap]]:
  """Returns the sides, and what differs between them: of rows as they come, or in another order."""
  orders, is_noisy = [np.arange(fed.size)], False
  for number, order in enumerate(orders):
    fed.order = order
    reference, other = fed.measure(sides)
    gaps = _find_gaps(reference, other, fed)
    if gaps:
      shaken, _ = fed.measure(sides, shakes=True)
      noises = {gap[1:3]: gap.times for gap in _find_gaps(reference, shaken, fed, least=0)}
      sure = [gap for gap in gaps if noises.get(gap[1:3], 0.0) <= _NOISE_SHARE * gap.times]
      # Where a ReLU turns, gradients jump: then the rest is what can be measured.
      is_noisy = is_noisy or any(gap.kind != 'gradient' for gap in gaps if gap not in sure)
      gaps = sure
    if gaps:
      return sides, gaps
    if number == 0:
      orders += _sort(fed, sides, reference)
      num_runs = (len(orders) - 1) * (len(sides.reference) + len(sides.other))
      _check_price(fed, f'{num_runs} more runs of a tower', num_runs * fed.seconds, runs_per_epoch)
  if is_noisy:
    raise LeftOut('rounding decides in this model')
  return sides, []


def _sort(fed, sides, reference) -> List[np.ndarray]:
  """Returns orders in which examples of small losses come first, and so are in one part, those of
  large ones in another; or of small inputs, as 0."""
  rows, first = np.unique(np.concatenate([share.rows for share in sides.reference]) % fed.size,
                          return_index=True)
  losses = reference.get(('losses', 'loss'), [])
  if [np.shape(values) for values in losses] == [share.rows.shape for share in sides.reference]:
    keys = [np.concatenate(losses)[first]]
  else:
    numeric = [value for value in fed.pool if value.size and value.dtype.kind in 'biuf']
    keys = [value.reshape([len(value), -1]).sum(1)[rows]
            for value in sorted(numeric, key=np.size)[:_MOST_KEYS]]
  return [np.resize(rows[np.argsort(key, kind='stable')], fed.size) for key in keys]


def _check_price(fed, what, seconds, runs_per_epoch) -> None:
  """Raises LeftOut where something takes longer than it may."""
  limit = float('inf') if runs_per_epoch is None else max(
      _LONG_SECONDS, fed.seconds * runs_per_epoch * _LONG_SHARE)
  if seconds > limit:
    raise LeftOut(f'{what} would take {seconds:.1f} s, more than {limit:.1f} s, the larger of '
                  f'{_LONG_SECONDS:g} s and a twentieth of an epoch\'s runs')


def _find_gaps(reference, other, fed, least=1.0) -> List[Gap]:
  """Returns what differs by more than `least` times what rounding explains, as a warning names it:
  what the model returns before others, and the largest first."""
  pairs = {key: _join(key[0], values, other.get(key, [])) for key, values in reference.items()
           if key[0] not in ('losses', 'returned')}
  floors = {'sum': 0.0, 'gradient': _LEAST_GRADIENT * max(
      [find_norm(ours) for (kind, _), (ours, _) in pairs.items() if kind == 'gradient'] or [0.0])}
  gaps, kinds, limits = [], list(_NAMES), dict(_ROUNDING[fed.is_half])
  if fed.jumps:
    limits['gradient'] = _JUMP
  for (kind, name), (ours, theirs) in pairs.items():
    if np.isfinite(ours).all():
      share = min(find_share(theirs, ours, floors.get(kind, LEAST)), _MOST)
      gaps.append(Gap(share / limits.get(kind, limits['value']), kind, name, share))
  return sorted((gap for gap in gaps if gap.times > least), key=lambda gap: (
      kinds.index(gap.kind) if gap.kind in kinds else len(kinds), -gap.times))


def _join(kind, ours, theirs) -> List[np.ndarray]:
  """Returns what both sides come to, which is the same if all is right."""
  if kind in ('penalty', 'update'):  # In each share.
    return [np.asarray([ours[0]] * len(theirs), np.float64), np.asarray(theirs, np.float64)]
  if kind not in ('sum', 'gradient'):
    return [join_entries(ours), join_entries(theirs)]
  if not hasattr(ours[0], 'indices'):
    return [np.sum(np.asarray(values, np.float64), 0) for values in (ours, theirs)]
  rows = np.unique(np.concatenate([value.indices for value in ours + theirs]))
  totals = [np.zeros([len(rows), *ours[0].values.shape[1:]]) for _ in (ours, theirs)]
  for total, values in zip(totals, (ours, theirs)):
    for value in values:
      np.add.at(total, np.searchsorted(rows, value.indices), value.values)
  return totals


def _describe(fed, sides, gaps) -> List[str]:
  """Returns sentences on what differs first of what is mixed, on a penalty and on an update."""
  first: Dict[str, Gap] = {}
  for gap in gaps:
    first.setdefault(gap.kind, gap)
  found, penalty, update = [], first.pop('penalty', None), first.pop('update', None)
  for kind, gap in list(first.items())[:1]:
    if kind != 'gradient' or penalty is None:  # Of which the gradient is a part.
      found.append(f'{_NAMES[kind].format(gap.name)} depends on other examples of the batch, by '
                   f'{gap.share:.2g} of itself'
                   f'{_locate(fed, sides, [gap for gap in gaps if gap.kind == kind])}.')
  if penalty is not None:
    op = fed.graph.get_operation_by_name(penalty.name)
    found.append(f'The penalty {format_op(op)}, depends on the examples of a batch: return it as a '
                 'loss beside the others, with a value for each example.')
  return found + _describe_writes(write for write in fed.writes if update is not None
                                  and write.op.name == update.name)


def _describe_writes(writes) -> List[str]:
  return [f'The variable {write.variables[0].name} is changed by the examples of a batch, those of '
          f'each part by themselves ({format_op(write.op)}).' for write in writes][:1]


def _locate(fed, sides, gaps) -> str:
  """Describes the first op that makes them differ."""
  results = fed.list_results(0)
  return describe_culprit(fed, sides, [results[gap[1:3]] for gap in gaps],
                          min(_ROUNDING[fed.is_half]['value'], gaps[0].share / 2))
