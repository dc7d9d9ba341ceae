"""The coupling check, before the first step: whether what the parts of a step compute adds up.

A step is taken in parts: towers, micro-batches, workers. They equal one if losses, metrics and
gradients are sums over examples. The live towers are fed (see `fed_towers`) with a few rows, at
chosen places of the global batch:

  size        tower 0, places 0 … 8                =   tower 0, places 0 … 3  +  tower 1, 4 … 8
  exchange    tower 0, rows A B  +  tower 1, C D   =   tower 0, rows A C  +  tower 1, B D
              where B and C are at the same places

Where exchanges are equal and sizes are not, a sum stands where a mean belongs: that is refused. So
it is where towers of unequal static sizes exchange, if what differs is the same once each tower's
part is divided, or multiplied, by its size.
Batches of one static size can only be exchanged: on other sizes the model is called beside.

What a branch or a loop does on other data than these, no few rows tell.
"""

import contextlib
import itertools
import logging
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from towers.base.output import write_line
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError
from towers.coupling.comparison import find_norm, find_share
from towers.coupling.fed_towers import FedTowers, LeftOut, Share, Sides
from towers.coupling.first_difference import LEAST, NOISE_SHARE, Culprit, describe_culprit
from towers.graph.source_lines import format_op
from towers.tensorflow_v1 import tf
from towers.tower.all_towers import SUMS
from towers.tower.batch_norm_layer import BATCH_SUMS
from towers.tower.scratch_graph import opened_scratch
from towers.tower.tower import Tower

# The relative differences that rounding makes, of sums and of other values, by `is_half`.
_ROUNDING = {False: (1e-4, 1e-3), True: (1e-2, 5e-2)}
_LEAST_GRADIENT = 1e-2  # Of the largest: gradients may cancel.
# What a kind of values is called, in order of what a warning names.
_NAMES = {'sum': 'The model\'s {}', 'rows': 'The metric {}', 'gradient': 'The gradient of {}',
          'input': 'The input of {}, batch normalisation,'}
_FEW = 4  # Rows of a tower; more only where draws need them, in blocks of as many numbers.
_SIZES = 2 * _FEW, _FEW  # Of batches on which a model is called whose own have a static size.
_MOST_KEYS = 3  # By which the examples of a scalar loss are sorted.
# What Python needs to call a model, for each op of its forward pass; and the most that it is worth
# where only a division by the batch's size could be wrong.
_OP_SECONDS, _SHORT_SECONDS = 2e-3, 0.1
FIX = ('For batch normalisation use batch_norm=sync; for a mean by weights return '
       'towers.Weighted(losses, weights). What a loss needs of the whole batch is the sum '
       'towers.all_sum(tf.reduce_sum(x, 0)), in place of tf.reduce_sum(x, 0), or its rows '
       'towers.all_rows(x), in place of x (with_places=True adds where the own ones are). '
       'Inside of a model take tf.gradients of values per example or of their sum. A metric that '
       'needs the whole split, as an IoU does, is a towers.Whole. Draw numbers with a row for each '
       'example.')
_SCALE_FIX = ('Return one loss per example, [batch], or the mean over the batch; or '
              'towers.Weighted(losses, weights). A division by a constant does not help.')
_SIZE_FIX = ('. If the model holds a batch size as a number, it needs batches of one size: use '
             'last_batch=drop, carry or pad.')
_OF_SIZES = re.compile('shape|size|dimension', re.IGNORECASE)  # What an error of them speaks of.
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
  if found:
    logging.getLogger('towers').warning(
        '%s A tower has only its own examples, so %d parts of a step (towers x micro-batches x '
        'workers) do not equal one. %s --check, or towers.check, shows by how much they differ.',
        ' '.join(found), num_parts, FIX)


def check_program(program: Any, session: Any, rows: Optional[Sequence[Any]]) -> None:
  """Does what `check_towers` does for a program, from the rows that its feed has let see."""
  plan = program.plan
  sums, of_layers = [set(program.graph.get_collection(key)) for key in (SUMS, BATCH_SUMS)]
  if plan.accumulate > 1 and sums - of_layers:
    logging.getLogger('towers').warning(
        'Values of all towers, of towers.all_sum, towers.all_rows or the moments that '
        'batch_norm=sync joins, are those of a micro-batch, of which a step has %d: without '
        'accumulate they are those of the whole batch.', plan.accumulate)
  num_parts = _count_parts(program)
  check_towers(program.towers, session, rows, num_parts=num_parts,
               num_workers=program.workers.num_workers,
               runs_per_epoch=plan.steps_per_epoch * plan.accumulate * len(program.towers))
  # What is mixed within one of several parts is named already.
  if (sums - of_layers or num_parts == 1) and rows is not None and _fills_validation(program):
    _warn_of_filler(program.validation, session, rows)
  padding, is_shard = program.train_examples.padding, program.given.input_mode == 'shard'
  if rows is not None and padding and padding.pad_to == 'batch' and (
      num_parts > (1 if is_shard else len(program.towers))):
    _warn_of_padding(program, session, rows, padding.values)


def _warn_of_padding(program, session, rows, values) -> None:
  """Warns of a model that depends on how far examples are padded, where each part of a step pads
  to its own longest one."""
  towers, plan = program.towers, program.plan
  with program.graph.as_default(), contextlib.suppress(LeftOut, tf.errors.OpError):
    fed = FedTowers(towers, session, rows, plan.num_workers, plan.steps_per_epoch * len(towers))
    values = tf.nest.flatten(values) if values is not None else [None] * len(fed.pool)
    if not fed.size or len(values) != len(fed.pool):  # Of a component in several tensors.
      return
    fed.check()
    count = fed.sizes[0] or min(fed.size, 2 * _FEW)
    side = [Share(0, np.arange(count), 0, count, np.arange(count))]
    few, _ = fed.measure(Sides(side, []))
    for index, (value, tensor) in enumerate(zip(values, tf.nest.flatten(towers[0].batch.tensors))):
      array = fed.pool[index]
      more = [(0, _FEW if size is None else 0) for size in tensor.shape.as_list()[1:]]
      filler = value if value is not None else b'' if array.dtype.hasobject else 0
      fed.pool[index] = np.pad(array, [(0, 0), *more], 'constant', constant_values=filler)
    most, _ = fed.measure(Sides(side, []))
    # What a kernel takes has another shape.
    gaps = _find_gaps(fed, *[
        {key: values for key, values in measured.items() if key[0] in ('sum', 'gradient')}
        for measured in (few, most)])
    if gaps:
      logging.getLogger('towers').warning(
          "pad_to='batch' pads each of %d parts of a step to its own longest example. %s depends "
          'on that, by %.2g of itself, so that they do not equal one: give padded positions a '
          'weight of 0, and draw no numbers for them; or pad to one size, as pad_to=128; or use '
          'input_mode=split or next, without accumulate.', _count_parts(program),
          _NAMES[gaps[0].kind].format(gaps[0].name), gaps[0].share)


def _warn_of_filler(validation, session, rows) -> None:
  """Warns of a model that counts rows which only fill batches of validation up."""
  plan, towers = validation.feed.inputs.plan, validation.towers
  if plan.is_even and plan.num_rows * len(towers) * plan.num_workers == plan.micro_batch_size:
    return
  with towers[0].loss.graph.as_default(), contextlib.suppress(LeftOut, tf.errors.OpError):
    fed = FedTowers(towers, session, rows, plan.num_workers, plan.steps_per_epoch * len(towers))
    if validation.has_tower:
      session.run(validation.snapshot_op)
    else:
      fed.mode = {validation.is_validating: True}
    found = _find_filler(fed, names_op=False) if fed.size and fed.sizes[0] else ''
    if found:
      logging.getLogger('towers').warning(
          'last_batch=carry fills batches of validation up with rows that must not count. %s: take '
          'sums of towers.all_rows(x), which leaves such rows out, or use last_batch=keep or drop.',
          found)


def has_parts(program: Any) -> bool:
  """Returns whether there is anything to check: several parts of a step, or rows that fill up."""
  return (_count_parts(program) > 1 or program.towers[0].batch.is_padded
          or _fills_validation(program))


def _fills_validation(program) -> bool:
  return bool(program.validation) and program.plan.carries


def _count_parts(program):
  return len(program.towers) * program.plan.accumulate * program.workers.num_workers


def advise_size(reason: str, tower: Tower) -> str:
  """Returns why a tower failed, with what to do if the size of a batch may have been at fault."""
  may_be = tower.batch.num_rows is None and _OF_SIZES.search(reason)
  return reason + (_SIZE_FIX if may_be else '')


def find_coupling(towers: Sequence[Tower], session: Any, rows: Sequence[Any], *, num_parts: int,
                  num_workers: int = 1, runs_per_epoch: Optional[int] = None) -> List[str]:
  """Returns a sentence for each part of a model that depends on other examples of its batch.

  For the arguments, and what is raised, see `check_towers`.
  """
  with towers[0].loss.graph.as_default():
    fed = FedTowers(towers, session, rows, num_workers, runs_per_epoch)
    if not fed.size:
      return []
    try:
      if towers[0].batch.is_padded:
        _check_filler(fed)
      if num_parts > 1:
        fed.check()
        return _find_mixed(fed, num_parts) or _find_later(fed, num_parts)
    except LeftOut as reason:
      write_line(f'Whether {num_parts} parts of a step equal one was not measured, since {reason}; '
                 '--check, or towers.check, tries them out.')
    except tf.errors.OpError as error:
      op = '' if error.op is None else f', in {format_op(error.op)}'
      write_line(f'Whether {num_parts} parts of a step equal one was not measured, since the model '
                 f'fails on a few rows of its first batch{op}: '
                 f'{advise_size(find_reason(error), towers[0])}')
    return _describe_updates(write for write, _ in fed.updates) if num_parts > 1 else []


def _check_filler(fed) -> None:
  """Refuses towers of which rows that only fill a batch up change the loss or an update."""
  what = 'last_batch=pad fills batches up with rows that must not count.'
  for op in (*(write.op for write in fed.writes), *fed.kernels):
    raise UsageError(f'{what} {format_op(op)} is computed from all rows, as batch normalisation '
                     f'is: {_PAD_FIX}.')
  found = _find_filler(fed)
  if found:
    raise UsageError(f'{what} {found}: {_PAD_FIX}.')


def _find_filler(fed, names_op=True) -> str:
  """Returns what rows change that only fill a batch up, and by how much; or ''."""
  fed.check()
  index = np.arange(fed.sizes[0])
  count = max(len(index) // 2, 1)
  # Two batches, filled up by two kinds of rows in turn.
  shares = [Share(0, np.where(index < count, real, filler), 0, count, index)
            for real in (index, index[::-1]) for filler in (count - 1, index)]
  sides = Sides(shares[::3], shares[1:3])
  reference, other = fed.measure(sides)
  firsts = [{key: values[:1] for key, values in side.items() if key[0] == 'sum'}
            for side in (reference, other)]
  for gap in _find_gaps(fed, *firsts):
    # Behind sums of all towers the first op that is not linear would be named.
    culprit = Culprit() if fed.totals or not names_op else _locate(
        fed, sides, fed.shake(sides.reference), [gap])
    return (f'{_NAMES["sum"].format(gap.name)} depends on them, by {gap.share:.2g} of itself'
            f'{culprit.text}')
  return ''


def _find_mixed(fed, num_parts, is_later=False) -> List[str]:
  """Returns a sentence on what differs most, if anything does; refuses what a size decides."""
  if fed.sizes[0] is None:
    found = _judge_size(fed, num_parts)
  else:
    gaps, culprit = _try_out(fed, _exchange)
    for gap in gaps:
      if gap.goes_by_size:
        raise UsageError(_describe_size(fed, gap, num_parts))
    found = _describe(fed, gaps, culprit)
    if not (found or is_later):  # Beside, variables have their first values.
      found = _judge_beside(fed, num_parts)
  # On a few rows it may assign the same by chance, as where no reward comes.
  return found or _describe_updates(write for write, _ in fed.updates if write in fed.writes)


def _find_later(fed, num_parts) -> List[str]:
  """Returns a sentence on what other examples count for only after the first step, if anything."""
  found, (names, fed.mode) = [], fed.find_later()
  if names:
    with contextlib.suppress(LeftOut, tf.errors.OpError):
      found = _find_mixed(fed, num_parts, is_later=True)
  return found and [f'At {", ".join(names[:3])}: {found[0]}', *found[1:]]


def _judge_beside(fed, num_parts) -> List[str]:
  """Calls a model whose batches have one static size on others, as `_judge_size` needs them."""
  seconds = len(_SIZES) * len(fed.forward) * _OP_SECONDS
  is_by_example = all(map(_is_by_example, fed.towers[0].sums.values()))
  if is_by_example and seconds > _SHORT_SECONDS:
    return []
  fed.check_price('calling the model twice more', seconds)
  few = None
  try:
    with opened_scratch(fed.towers[0], _SIZES) as (towers, session):
      # Sums over all towers are here as they are where there are others.
      few = FedTowers(towers, session, [[*fed.pool, fed.size]], 2, fed.runs_per_epoch)
      return _judge_size(few, num_parts)
  except Exception as error:  # A model may hold its size as a number, or layers of this graph.
    if few and isinstance(error, (LeftOut, UsageError)):
      raise
    if not is_by_example:
      write_line('No example depends on others of its batch. Whether the loss is their mean, and '
                 'no sum, was not measured, since the model cannot be called on '
                 f'{_SIZES[0]} rows in a graph of its own: {find_reason(error)}. One loss per '
                 'example, [batch], needs no other call.')
    return []


def _judge_size(fed, num_parts) -> List[str]:
  """Returns a sentence on what the parts of a batch do not add up to; refuses a sum for a mean."""
  gaps, culprit = _try_out(fed, _divide)
  if not gaps or gaps[0].kind != 'sum' or culprit.is_drawn:
    return _describe(fed, gaps, culprit)
  if fed.sizes[0] is None:  # Others have been exchanged.
    found = _describe(fed, *_try_out(fed, _exchange))
    if found:
      return found
  gap = gaps[0]
  if _is_by_example(fed.list_results(0)[gap.kind, gap.name]) and not gap.goes_by_size:
    return _describe(fed, gaps, culprit)  # Too weak a mixing for the few that were exchanged.
  raise UsageError(_describe_size(fed, gap, num_parts))


def _is_by_example(total) -> bool:
  """Returns whether a total is of one value per example, and no mean of the model's own."""
  return total.op.type == 'Sum'


def _find_returned(total, batch):
  """Returns the op of which a total is made, behind what counts no filler and no empty tower."""
  op = total.op
  if op.type.startswith('Select'):
    op = op.inputs[1].op
  returned = op.inputs[0].op
  return returned.inputs[1].op if _is_by_example(total) and batch.has_filler else returned


def _describe_size(fed, gap, num_parts) -> str:
  returned = _find_returned(fed.list_results(0)[gap.kind, gap.name], fed.towers[0].batch)
  return (f'{_NAMES["sum"].format(gap.name)}, {format_op(returned)}, is no mean over the examples '
          'of a batch: what parts add up to depends on how many examples each of them has, by '
          f'{gap.share:.2g} of it. So the update of a step in {num_parts} parts (towers x '
          f'micro-batches x workers) would not equal that of one. {_SCALE_FIX}')


def _deal(counts, towers, firsts=None) -> List[Share]:
  """Returns shares of neighbouring rows, of towers in turn, at these places or the rows' own."""
  ends = [0, *itertools.accumulate(counts)]
  each = zip(itertools.cycle(towers), ends, counts, firsts or ends)
  return [Share(tower, np.arange(begin, begin + count), first, count, first + np.arange(count))
          for tower, begin, count, first in each]


def _divide(fed, is_last=False) -> Sides:
  """Returns all rows on one tower, and divided among all towers; of one, in other parts of two.

  They are a few, or what a tower has memory for in a step; many towers take one or two each. At
  last all but the first have one each, far from the mean of all and of no pair.
  """
  num_towers, unit = len(fed.towers), fed.unit
  if fed.sizes[0] is not None:  # Of two towers one has the size of the other's parts.
    whole, part = fed.sizes
    return Sides(_deal([whole], [0]), _deal([part] * (whole // part), [1]))
  num_parts = max(num_towers, 2)
  share = fed.size // num_towers
  room = max(share, 2 * min(share, _FEW) + 1) // num_parts
  least = max(min(room, fed.size // num_parts, _FEW), 1) if unit == 1 else unit
  counts = [least + (number % 2 if unit == 1 else number == num_parts - 1)
            for number in range(num_parts)]
  if sum(counts) > fed.size:  # `all_rows` has a slot for each.
    counts = [least] * (num_parts - 1) + [max(least - 1, 1)]
  if is_last and unit == 1:
    counts = [max(sum(counts) - num_parts, 1)] + [1] * (num_parts - 1)
  return Sides(_deal([sum(counts)], [0]), _deal(counts, range(num_towers)))


def _exchange(fed, is_last=False) -> Sides:
  """Returns towers with rows of their own beside others, and these exchanged.

  Every other tower begins later, so that it has among its first rows what it exchanges. At last
  they have fewer, and all begin later still, where other numbers are drawn.
  """
  num_towers, unit = len(fed.towers), fed.unit
  num_shares = max(num_towers, 2)
  counts = [size or 2 * max(unit, 1 if is_last else _FEW // 2)
            for size in fed.sizes * (num_shares // num_towers)]
  shift = min(counts) // (2 * unit) * unit
  # Where none can begin later, they exchange the later half.
  begin = shift or min(counts) // 2
  firsts = [shift * (number % 2) for number in range(num_shares)]
  reference = _deal(counts, range(num_towers), firsts)
  exchanged = [share.rows.copy() for share in reference]
  for number, rows in enumerate(exchanged):
    to, source = [slice(begin - first, min(counts) - first)
                  for first in (firsts[number], firsts[number - 1])]
    rows[to] = reference[number - 1].rows[source]
  if is_last:
    reference = [share._replace(first=share.first + 2 * shift) for share in reference]
  other = [share._replace(rows=rows) for share, rows in zip(reference, exchanged)]
  if fed.sizes[0] is None:
    return Sides(reference, other)
  # All slots are filled, of which a model may know the number.
  return Sides(*([share._replace(slots=share.rows) for share in side]
                 for side in (reference, other)))


def _list_orders(fed, side) -> List[np.ndarray]:
  """Returns orders of the pool in which examples of small losses come first, and so are in one
  part, those of large ones in another; or of small inputs, as 0. So may those of a label be in one
  part: the last is the order in which they have come.

  A loss of 0 may be a large one that the model leaves out: it comes last.
  """
  losses = fed.find_losses(side)
  if losses is not None:
    keys = [np.concatenate(losses)[:fed.size]]
    keys[0][keys[0] == 0] = np.inf
  else:
    numeric = [value for value in fed.pool if value.size and value.dtype.kind in 'biuf']
    keys = [value.reshape([fed.size, -1]).sum(1)
            for value in sorted(numeric, key=np.size)[:_MOST_KEYS]]
  return [*(np.argsort(key, kind='stable') for key in keys), np.arange(fed.size)]


class Gap(NamedTuple):
  """What differs between two sides, by what share, and whether sizes alone explain it."""
  kind: str
  name: str
  share: float
  goes_by_size: bool = False


def _try_out(fed, make_sides) -> Tuple[List[Gap], Culprit]:
  """Returns what differs between the sides by more than rounding explains, of rows in the first
  order in which anything does; and the first op that makes it differ."""
  orders = _list_orders(fed, make_sides(fed).reference)
  for number, order in enumerate(orders, 1):
    sides = make_sides(fed, is_last=number == len(orders))
    count = 1 + max(share.rows.max() for share in sides.reference)
    chosen = order[np.linspace(0, len(order) - 1, count).astype(int)]  # Of all, evenly.
    # The first order that is measured tells enough.
    with contextlib.nullcontext() if number == 1 else contextlib.suppress(LeftOut):
      gaps, culprit = _try_sides(fed, Sides(*(
          [share._replace(rows=chosen[share.rows]) for share in side] for side in sides)))
      if gaps:
        return gaps, culprit
  return [], Culprit()


def _try_sides(fed, sides) -> Tuple[List[Gap], Culprit]:
  reference, other = fed.measure(sides)
  gaps = _find_gaps(fed, reference, other)
  if gaps:
    shaken = fed.shake(sides.reference)
    noise = _compare(reference, fed.compute_reference(sides, [shaken]))
    # Where rounding turns a ReLU, the gradients of all layers before it jump.
    most = max([share for (kind, _), share in noise.items() if kind == 'gradient'], default=0.0)
    sure = [gap for gap in gaps if NOISE_SHARE * gap.share >= (
        most if gap.kind == 'gradient' else noise[gap[:2]])]
    found = sure or [gap for gap in gaps if gap.kind != 'gradient']
    culprit = _locate(fed, sides, shaken, found)
    if sure or culprit.text:
      return [gap._replace(goes_by_size=gap.kind == 'sum' and _goes_by_size(
          fed, sides, gap, reference, other)) for gap in found], culprit
    if found:
      raise LeftOut('rounding decides in this model')
  elif not np.any(reference['sum', 'loss']):
    raise LeftOut('the loss of the few rows that were tried is 0')
  return [], Culprit()


def _find_gaps(fed, reference, other) -> List[Gap]:
  """Returns what differs by more than rounding alone makes, as a warning names it: what the model
  returns before others, and the largest first."""
  kinds, (of_sums, of_values) = [*_NAMES, 'penalty', 'update'], _ROUNDING[fed.is_half]
  gaps = [Gap(*key, share) for key, share in _compare(reference, other).items()
          if share > (of_sums if key[0] == 'sum' else of_values)]
  return sorted(gaps, key=lambda gap: (kinds.index(gap.kind), -gap.share))


def _goes_by_size(fed, sides, gap, reference, other) -> bool:
  """Returns whether a sum is the same if the part of each share is divided, or multiplied, by the
  number of its examples."""
  explained = min(_ROUNDING[fed.is_half][0], NOISE_SHARE * gap.share)
  values = [side.get((gap.kind, gap.name), []) for side in (reference, other)]
  totals = [[sum(float(value) * share.num_real ** power for share, value in zip(*side))
             for side in zip(sides, values)] for power in (-1.0, 1.0)]
  return any(find_share(ours, theirs, 0.0) <= explained for ours, theirs in totals)


def _compare(reference, other) -> Dict[Tuple[str, str], float]:
  """Returns by what share finite values differ between two sides."""
  largest = max([find_norm(_join(kind, values, values)[0])
                 for (kind, _), values in reference.items() if kind == 'gradient'], default=0.0)
  floors, shares = {'sum': 0.0, 'gradient': _LEAST_GRADIENT * largest}, {}
  for key, values in reference.items():
    ours, theirs = _join(key[0], values, other.get(key, []))
    if key[0] != 'returned' and np.isfinite(ours).all():
      shares[key] = find_share(theirs, ours, floors.get(key[0], LEAST))
  return shares


def _join(kind, ours, theirs) -> List[np.ndarray]:
  """Returns what both sides come to, which is the same if all is right."""
  if kind not in ('sum', 'gradient'):
    return [np.concatenate([np.ravel(part) for part in tf.nest.flatten(values)])
            for values in (ours, theirs)]
  if not hasattr(ours[0], 'indices'):
    return [np.sum(np.asarray(values, np.float64), 0) for values in (ours, theirs)]
  rows = np.unique(np.concatenate([value.indices for value in ours + theirs]))
  totals = [np.zeros([len(rows), *ours[0].values.shape[1:]]) for _ in (ours, theirs)]
  for total, values in zip(totals, (ours, theirs)):
    for value in values:
      np.add.at(total, np.searchsorted(rows, value.indices), value.values)
  return totals


def _describe(fed, gaps, culprit) -> List[str]:
  """Returns sentences on what differs first of what is mixed, on a penalty and on an update."""
  found, first = [], {gap.kind: gap for gap in reversed(gaps)}
  # The gradient of a penalty is a part of all.
  if gaps and gaps[0].kind in _NAMES and not (gaps[0].kind == 'gradient' and 'penalty' in first):
    found.append(f'{_NAMES[gaps[0].kind].format(gaps[0].name)} depends on other examples of the '
                 f'batch, by {gaps[0].share:.2g} of itself{culprit.text}.')
  if 'penalty' in first:
    op = fed.graph.get_operation_by_name(first['penalty'].name)
    found.append(f'The penalty {format_op(op)}, depends on the examples of a batch: return it as a '
                 'loss beside the others, with a value for each example.')
  return found + _describe_updates(write for write, _ in fed.updates if 'update' in first
                                   and write.op.name == first['update'].name)


def _describe_updates(updates) -> List[str]:
  return [f'The variable {write.variables[0].name} is changed by the examples of a batch, those of '
          f'each part by themselves ({format_op(write.op)}).' for write in updates][:1]


def _locate(fed, sides, shaken, gaps) -> Culprit:
  """Describes the first op that makes what differs first, and its like, differ."""
  alike = [gap for gap in gaps if gap.kind == gaps[0].kind and gap.kind in _NAMES]
  if not alike:
    return Culprit()
  results, fed.runs_per_epoch = fed.list_results(0), None  # A name is worth its time.
  return describe_culprit(fed, sides, shaken, [results[gap[:2]] for gap in alike],
                          min(_ROUNDING[fed.is_half][1], gaps[0].share / 2))
