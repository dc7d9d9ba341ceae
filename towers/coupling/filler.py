"""Filler: rows and padding that only fill batches up, and must not count."""

import contextlib
import logging
from typing import Any, Sequence

import numpy as np

from towers.base.usage_error import UsageError
from towers.coupling.fed_towers import FedTowers, LeftOut
from towers.coupling.first_difference import Culprit
from towers.coupling.gaps import find_gaps, locate
from towers.coupling.sides import FEW, Share, Sides
from towers.graph.source_lines import format_op
from towers.tensorflow_v1 import tf

_PAD_FIX = 'use last_batch=drop, whose batches have one shape too, or keep'


def warn_of_padding(program: Any, session: Any, rows: Sequence[Any], values: Any,
                    num_parts: int) -> None:
  """Warns of a model that depends on how far examples are padded, where each part of a step pads
  to its own longest one."""
  towers, plan = program.towers, program.plan
  with program.graph.as_default(), contextlib.suppress(LeftOut, tf.errors.OpError):
    fed = FedTowers(towers, session, rows, plan.num_workers, plan.steps_per_epoch * len(towers))
    values = tf.nest.flatten(values) if values is not None else [None] * len(fed.pool)
    if not fed.size or len(values) != len(fed.pool):  # Of a component in several tensors.
      return
    fed.check()
    count = fed.sizes[0] or min(fed.size, 2 * FEW)
    side = [Share(0, np.arange(count), 0, count, np.arange(count))]
    few, _ = fed.measure(Sides(side, []))
    for index, (value, tensor) in enumerate(zip(values, tf.nest.flatten(towers[0].batch.tensors))):
      array = fed.pool[index]
      more = [(0, FEW if size is None else 0) for size in tensor.shape.as_list()[1:]]
      filler = value if value is not None else b'' if array.dtype.hasobject else 0
      fed.pool[index] = np.pad(array, [(0, 0), *more], 'constant', constant_values=filler)
    most, _ = fed.measure(Sides(side, []))
    # What a kernel takes has another shape.
    gaps = find_gaps(fed, *[
        {key: values for key, values in measured.items() if key[0] in ('sum', 'gradient')}
        for measured in (few, most)])
    if gaps:
      logging.getLogger('towers').warning(
          "pad_to='batch' pads each of %d parts of a step to its own longest example. %s depends "
          'on that, by %.2g of itself, so that they do not equal one: give padded positions a '
          'weight of 0, and draw no numbers for them; or pad to one size, as pad_to=128; or use '
          'input_mode=split or next, without accumulate.', num_parts, gaps[0].subject,
          gaps[0].share)


def warn_of_filler(validation: Any, session: Any, rows: Sequence[Any]) -> None:
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


def check_filler(fed: FedTowers) -> None:
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
  for gap in find_gaps(fed, *firsts):
    # Behind sums of all towers the first op that is not linear would be named.
    culprit = Culprit() if fed.totals or not names_op else locate(
        fed, sides, fed.shake(sides.reference, 0), [gap])
    return f'{gap.subject} depends on them, by {gap.share:.2g} of itself{culprit.text}'
  return ''
