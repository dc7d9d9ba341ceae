"""The coupling check, before the first step: whether what the parts of a step compute adds up.

A step is taken in parts: towers, micro-batches, workers. They equal one if losses, metrics and
gradients are sums over examples. The live towers are fed (see `fed_towers`) with a few rows, at
chosen places of the global batch, which are divided or exchanged (see `sides`).

Where exchanges are equal and divided rows are not, a sum stands where a mean belongs: that is
refused. So it is where towers of unequal static sizes exchange, if what differs is the same once
each tower's part is divided, or multiplied, by its size.
Batches of one static size can only be exchanged: on other sizes the model is called beside.

What a branch or a loop does on other data than these, no few rows tell. But they tell what values
others make, of those that are compared with limits; and what counts once weights have grown.
"""

import contextlib
import logging
import math
import re
from typing import Any, List, Optional, Sequence

from towers.base.output import write_line
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError
from towers.coupling.fed_towers import FedTowers, LeftOut
from towers.coupling.filler import check_filler, warn_of_filler, warn_of_padding
from towers.coupling.gaps import try_out
from towers.coupling.later_values import grown, labelled
from towers.coupling.sides import FEW, divide, exchange
from towers.graph.source_lines import format_op
from towers.tensorflow_v1 import replaced, tf
from towers.tower.all_towers import OF_ONE, SUMS
from towers.tower.batch_norm.layer import BATCH_SUMS
from towers.tower.scratch_graph import opened_scratch
from towers.tower.tower import Tower

_SIZES = 2 * FEW, FEW  # Of batches on which a model is called whose own have a static size.
# What Python needs to call a model, for each op of its forward pass; and the most that it is worth
# where only a division by the batch's size could be wrong.
_OP_SECONDS, _SHORT_SECONDS = 2e-3, 0.1
# Ops that compute with a static size, and what it is there.
_TAKES_SIZE = {('Cast', 'Const'), *((op, 'StridedSlice') for op in (
    'Cast', 'FloorDiv', 'Add', 'AddV2', 'Sub'))}
FIX = ('For batch normalisation use batch_norm=sync with accumulate=1; for a mean by weights '
       'return towers.Weighted(losses, weights). What a loss needs of the whole batch is the sum '
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


def check_towers(towers: Sequence[Tower], session: Any, rows: Optional[Sequence[Any]], *,
                 num_parts: Optional[int] = None, num_workers: int = 1,
                 runs_per_epoch: Optional[int] = None) -> None:
  """Warns of a model whose loss, metrics, gradients, penalties or updates are no sums over
  examples.

  It is to be called before the first step, once variables have their values. It takes no batch,
  leaves variables as they were and adds no op to the graph (examples/by_hand.py calls it).

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
  sums, of_one, of_layers = [
      set(program.graph.get_collection(key)) for key in (SUMS, OF_ONE, BATCH_SUMS)]
  if plan.accumulate > 1 and (sums | of_one) - of_layers:
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
    warn_of_filler(program.validation, session, rows)
  padding, is_shard = program.train_examples.padding, program.given.input_mode == 'shard'
  if rows is not None and padding and padding.pad_to == 'batch' and (
      num_parts > (1 if is_shard else len(program.towers))):
    warn_of_padding(program, session, rows, padding.values, num_parts)


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
        check_filler(fed)
      if num_parts > 1:
        fed.check()
        return _find_mixed(fed, num_parts) or _judge_later(
            fed, lambda: _find_mixed(fed, num_parts, is_later=True))
    except LeftOut as reason:
      write_line(f'Whether {num_parts} parts of a step equal one was not measured, since {reason}; '
                 '--check, or towers.check, tries them out.')
    except tf.errors.OpError as error:
      op = '' if error.op is None else f', in {format_op(error.op)}'
      write_line(f'Whether {num_parts} parts of a step equal one was not measured, since the model '
                 f'fails on a few rows of its first batch{op}: '
                 f'{advise_size(find_reason(error), towers[0])}')
    return _describe_updates(write for write, _ in fed.updates) if num_parts > 1 else []


def _find_mixed(fed, num_parts, is_later=False) -> List[str]:
  """Returns a sentence on what differs most, if anything does; refuses what a size decides."""
  if fed.sizes[0] is None:
    found = _judge_size(fed, num_parts)
  else:
    gaps, culprit = try_out(fed, exchange)
    for gap in gaps:
      if gap.goes_by_size:
        raise UsageError(_describe_size(fed, gap, num_parts))
    found = _describe(fed, gaps, culprit)
    if not (found or is_later):  # Beside, what may come later is tried too.
      found = _judge_beside(fed, num_parts)
  # On a few rows it may assign the same by chance, as where no reward comes.
  return found or _describe_updates(write for write, _ in fed.updates if write in fed.writes)


def _judge_later(fed, judge) -> List[str]:
  """Returns a sentence on what `judge` finds only after the first step, or with labels that the
  first batch does not have; what it would refuse too, for these are guesses."""
  for changed in (grown, labelled):
    with changed(fed) as names, replaced((fed, 'is_guess', True)), contextlib.suppress(
        LeftOut, tf.errors.OpError):
      try:
        found = names and judge()
      except UsageError as error:
        found = [str(error)]
      if found:
        return [f'At {", ".join(names[:3])}: {found[0]}', *found[1:]]
  return []


def _judge_beside(fed, num_parts) -> List[str]:
  """Calls a model whose batches have one static size on others, as `_judge_size` needs them."""
  seconds = len(_SIZES) * len(fed.forward) * _OP_SECONDS
  is_by_example = all(_is_by_example(fed, name) for name in fed.towers[0].sums)
  if is_by_example and seconds > _SHORT_SECONDS and not any(
      _takes_size(op, fed.sizes[0]) for op in fed.forward):
    return []
  fed.check_price('calling the model twice more', seconds)
  few = None
  try:
    with opened_scratch(fed.towers[0], _SIZES) as (towers, session):
      # Sums over all towers are here as they are where there are others.
      few = FedTowers(towers, session, [[*fed.pool, fed.size]], 2, fed.runs_per_epoch)
      return _judge_size(few, num_parts) or _judge_later(few, lambda: _judge_size(few, num_parts))
  except Exception as error:  # A model may hold its size as a number, or layers of this graph.
    # Of what has been exchanged already, no more needs to be known.
    if few and isinstance(error, UsageError if is_by_example else (LeftOut, UsageError)):
      raise
    if not is_by_example:
      write_line('No example depends on others of its batch. Whether the loss is their mean, and '
                 'no sum, was not measured, since the model cannot be called on '
                 f'{_SIZES[0]} rows in a graph of its own: {find_reason(error)}. One loss per '
                 'example, [batch], needs no other call.')
    return []


def _takes_size(op, size) -> bool:
  """Returns whether an op takes this size as a number, or a gradient, as of a mean."""
  if '_grad/' in op.name:
    return True
  if not op.outputs or op.outputs[0].shape.ndims != 0:
    return False
  if op.type == 'Const' and op.outputs[0].dtype.is_floating and size > 1:
    value = tf.get_static_value(op.outputs[0])
    return any(math.isclose(value, each, rel_tol=1e-6) for each in (size, 1 / size))
  return bool(op.inputs) and (op.type, op.inputs[0].op.type) in _TAKES_SIZE


def _judge_size(fed, num_parts) -> List[str]:
  """Returns a sentence on what the parts of a batch do not add up to; refuses a sum for a mean."""
  gaps, culprit = try_out(fed, divide)
  if not gaps or gaps[0].kind != 'sum' or culprit.is_drawn:
    return _describe(fed, gaps, culprit)
  if fed.sizes[0] is None:  # Others have been exchanged.
    found = _describe(fed, *try_out(fed, exchange))
    if found:
      return found
  gap = gaps[0]
  if _is_by_example(fed, gap.name) and not gap.goes_by_size:
    return _describe(fed, gaps, culprit)  # Too weak a mixing for the few that were exchanged.
  raise UsageError(_describe_size(fed, gap, num_parts))


def _is_by_example(fed, name) -> bool:
  """Returns whether a sum is of one value per example, and of no mean of the model's own."""
  results, losses = fed.list_results(0), fed.towers[0].losses
  parts = losses if name == 'loss' and losses else [name]
  return all(results['sum', part].op.type == 'Sum' for part in parts)


def _find_returned(total, batch):
  """Returns the op of which a total is made, behind what counts no filler and no empty tower."""
  op = total.op
  if op.type.startswith('Select'):
    op = op.inputs[1].op
  returned = op.inputs[0].op
  if total.op.type == 'Sum' and batch.has_filler:
    returned = returned.inputs[1].op
  return returned.inputs[0].op if returned.type == 'Cast' else returned  # Sums are of float32.


def _describe_size(fed, gap, num_parts) -> str:
  returned = _find_returned(fed.list_results(0)[gap.kind, gap.name], fed.towers[0].batch)
  return (f'{gap.subject}, {format_op(returned)}, is no mean over the examples of a batch: what '
          f'parts add up to depends on how many examples each of them has, by {gap.share:.2g} of '
          f'it. So the update of a step in {num_parts} parts (towers x micro-batches x workers) '
          f'would not equal that of one. {_SCALE_FIX}')


def _describe(fed, gaps, culprit) -> List[str]:
  """Returns sentences on what differs first of what is mixed, on a penalty and on an update."""
  found, first = [], {gap.kind: gap for gap in reversed(gaps)}
  # The gradient of a penalty is a part of all.
  if gaps and gaps[0].subject and not (gaps[0].kind == 'gradient' and 'penalty' in first):
    found.append(f'{gaps[0].subject} depends on other examples of the batch, by '
                 f'{gaps[0].share:.2g} of itself{culprit.text}.')
  if 'penalty' in first:
    op = fed.graph.get_operation_by_name(first['penalty'].name)
    found.append(f'The penalty {format_op(op)}, depends on the examples of a batch: return it as a '
                 'loss beside the others, with a value for each example.')
  return found + _describe_updates(write for write, _ in fed.updates if 'update' in first
                                   and write.op.name == first['update'].name)


def _describe_updates(updates) -> List[str]:
  return [f'The variable {write.variables[0].name} is changed by the examples of a batch, those of '
          f'each part by themselves ({format_op(write.op)}).' for write in updates][:1]
