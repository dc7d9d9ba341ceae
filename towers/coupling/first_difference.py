"""The first difference: the first op of which both sides compute other values from the same ones.

No layout of rows is believed. A value is the same on both sides if all entries of all shares are,
in any order, or their sum or mean. Integers may be numbers of rows, what is in a branch or a loop
cannot be fetched, and rounding may decide: through these the way leads on to what they come from.
"""

import contextlib
from typing import Any, Dict, Iterable, NamedTuple, Optional, Tuple

import numpy as np

from towers.coupling.comparison import find_share
from towers.coupling.fed_towers import FedTowers, LeftOut
from towers.coupling.sides import Sides
from towers.graph.source_lines import format_op
from towers.graph.walk import find_dead, find_needed
from towers.placement.randomness import find_drawn
from towers.tensorflow_v1 import Tensor, tf

_CHUNK = 150  # Tensors that are fetched in one run.
LEAST = 1e-3  # What an op computes is compared with no less than this.
NOISE_SHARE = 1 / 4  # Of a difference, by which rounding explains it.


class Culprit(NamedTuple):
  """The first op that makes values differ, as the end of a sentence, and whether it does so by what
  is drawn; the text is '' if there is none to be seen."""
  text: str = ''
  is_drawn: bool = False


def describe_culprit(fed: FedTowers, sides: Sides, shaken: Dict[Any, Any], roots: Iterable[Any],
                     limit: float) -> Culprit:
  """Describes the first op of the first tower that makes `roots` differ by more than a share of
  their size.

  `shaken` is what makes weights a little other, see `FedTowers.shake`.
  """
  tensor = _find_culprit(fed, sides, shaken, [getattr(root, 'values', root) for root in roots],
                         limit)
  if tensor is None:
    return Culprit()
  drawn = {value: find_drawn(value) for value in (tensor, *tensor.op.inputs)}
  for value, draw in drawn.items():
    if draw is not None and _has_rows(value, fed.towers[0].batch.num_rows):
      return Culprit(f'; what {format_op(draw)} draws for an example does not follow from its '
                     'place in the global batch', is_drawn=True)
  made = [tensor.op]
  if tensor.op._id > fed.towers[0].loss.op._id:  # What adds up gradients is made for no op alone.
    made += [value.op for value in reversed(tensor.op.inputs)]
  forward = next(filter(None, (getattr(op, '_original_op', None) for op in made)), tensor.op)
  mixer = format_op(tensor.op) if forward is tensor.op else (
      f'{tensor.op.name}, in the gradient of {format_op(forward)}')
  return Culprit(f'; its rows are first mixed by {mixer}{_describe_broadcast(forward)}',
                 is_drawn=any(draw is not None for draw in drawn.values()))


def _has_rows(value, size) -> bool:
  """Returns whether a value may have a part for each row; as a sum over them it has none."""
  count = value.shape.num_elements()
  return count is None or bool(size) and count % size == 0


def _describe_broadcast(op) -> str:
  """Describes what an op does that takes values of the shapes [n, 1] and [n] to be pairs of all."""
  shapes = [value.shape.as_list() for value in op.inputs if value.shape.ndims]
  column, row = sorted(shapes, key=len, reverse=True) if len(shapes) == 2 else ([], [])
  if (len(column), column[1:], len(row)) != (2, [1], 1) or row == [1] or column[0] == 1:
    return ''
  return (f', which broadcasts the shapes {column} and {row} to {column[:1] + row}'.replace(
      'None', '?') + ': unless pairs are meant, take x[:, 0] of the former')


def _find_culprit(fed, sides, shaken, roots, limit) -> Optional[Tensor]:
  """Returns the first of the values that differ, from the roots back through all that may."""
  gaps = _compare(fed, sides, shaken, roots)
  pending, seen = list(roots), {tensor for values in fed.given for tensor in values}
  while pending:
    tensor = pending.pop()
    if tensor not in seen and tensor.op.name.startswith(fed.scope) and (
        tensor not in gaps or gaps[tensor][0] > limit):
      seen.add(tensor)
      pending += [fed.totals[tensor]] if tensor in fed.totals else tensor.op.inputs
  sure = {tensor for tensor, (share, noise) in gaps.items()
          if share > limit and noise <= NOISE_SHARE * share and tensor.dtype.is_floating}
  return min(sure & seen, key=lambda tensor: tensor.op._id, default=None)


def _compare(fed, sides, shaken, roots) -> Dict[Tensor, Tuple[float, float]]:
  """Returns by what share values differ, and by what if weights are shaken, of all that the roots
  need and that can be fetched."""
  needed = find_needed([*(root.op for root in roots), *(own.op for own in fed.totals.values())])
  ops = sorted((op for op in needed if op.name.startswith(fed.scope)), key=lambda op: op._id)
  dead, peers, gaps = find_dead(ops), {}, {}
  for tensor in (tensor for op in ops if op not in dead for tensor in op.outputs):
    if not tensor.dtype._is_ref_dtype and (
        tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype == tf.bool):
      with contextlib.suppress(LeftOut):
        peers[tensor] = [fed.find_peer(tensor, index) for index in range(len(fed.towers))]
  for begin in range(0, len(peers), _CHUNK):
    chunk = list(peers)[begin:begin + _CHUNK]

    def fetch(share, chunk=chunk):
      return [peers[tensor][share.tower] for tensor in chunk]

    with contextlib.suppress(tf.errors.OpError):
      found = [list(fed.run(side, fetch, given)) for side, given in (
          (sides.reference, ()), (sides.other, fed.given), (sides.reference, [shaken]))]
      for tensor, ours, *others in zip(chunk, *(zip(*side) for side in found)):
        share, noise = [find_least_share(Sides(sides.reference, side), (ours, values))
                        for side, values in zip((sides.other, sides.reference), others)]
        gaps[tensor] = share, noise
  return gaps


def find_least_share(sides: Sides, values: Iterable[Any], by_set: bool = False) -> float:
  """Returns by what share values differ, in the way of being the same in which they do least.

  They may also be the same `by_set`, as of distinct rows of a table, which parts may share.
  """
  ways = [[np.sort(np.concatenate([np.ravel(value) for value in side]).astype(np.float64))
           for side in values]]
  if by_set:
    ways.append([entries[np.diff(entries, prepend=-np.inf) > LEAST * np.abs(entries)]
                 for entries in ways[0]])
  if len({np.shape(value) for side in values for value in side}) == 1:
    ways += [[sum(np.asarray(value, np.float64) * (share.num_real if weighs else 1)
                  for share, value in zip(*side)) for side in zip(sides, values)]
             for weighs in (False, True)]
  return min(find_share(ours, theirs, LEAST) for ours, theirs in ways)
