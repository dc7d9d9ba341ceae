"""Sides: two ways to compute the same, each with the rows that towers have.

  divide      tower 0, places 0 … 8                =   tower 0, places 0 … 3  +  tower 1, 4 … 8
  exchange    tower 0, rows A B  +  tower 1, C D   =   tower 0, rows A C  +  tower 1, B D
              where B and C are at the same places
"""

import itertools
from typing import Any, List, NamedTuple, Sequence

import numpy as np

FEW = 4  # Rows of a tower; more only where draws need them, in blocks of as many numbers.
_MOST_KEYS = 3  # By which the examples of a scalar loss are sorted.


class Share(NamedTuple):
  """What a tower computes on: rows of the pool, the leading `num_real` of them real, at the places
  from `first` on, and at the `slots` among the rows of all towers."""
  tower: int
  rows: np.ndarray
  first: int
  num_real: int
  slots: np.ndarray


class Sides(NamedTuple):
  """Two ways to compute the same."""
  reference: List[Share]
  other: List[Share]


def divide(fed: Any, is_last: bool = False) -> Sides:
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
  room = max(share, 2 * min(share, FEW) + 1) // num_parts
  least = max(min(room, fed.size // num_parts, FEW), 1) if unit == 1 else unit
  counts = [least + (number % 2 if unit == 1 else number == num_parts - 1)
            for number in range(num_parts)]
  if sum(counts) > fed.size:  # `all_rows` has a slot for each.
    counts = [least] * (num_parts - 1) + [max(least - 1, 1)]
  if is_last and unit == 1:
    counts = [max(sum(counts) - num_parts, 1)] + [1] * (num_parts - 1)
  return Sides(_deal([sum(counts)], [0]), _deal(counts, range(num_towers)))


def exchange(fed: Any, is_last: bool = False) -> Sides:
  """Returns towers with rows of their own beside others, and these exchanged.

  Every other tower begins later, so that it has among its first rows what it exchanges. At last
  they have fewer, and all begin later still, where other numbers are drawn.
  """
  num_towers, unit = len(fed.towers), fed.unit
  num_shares = max(num_towers, 2)
  counts = [size or 2 * max(unit, 1 if is_last else FEW // 2)
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


def _deal(counts, towers, firsts=None) -> List[Share]:
  """Returns shares of neighbouring rows, of towers in turn, at these places or the rows' own."""
  ends = [0, *itertools.accumulate(counts)]
  each = zip(itertools.cycle(towers), ends, counts, firsts or ends)
  return [Share(tower, np.arange(begin, begin + count), first, count, first + np.arange(count))
          for tower, begin, count, first in each]


def list_orders(fed: Any, side: Sequence[Share]) -> List[np.ndarray]:
  """Returns orders of the pool in which examples of small losses come first, and so are in one
  part, those of large ones in another; or of small inputs, as 0. Copies of two examples make counts
  of the same ones large. Those of a label may be in one part: the last is the order in which they
  have come.

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
  orders = [np.argsort(key, kind='stable') for key in keys] or [np.arange(fed.size)]
  copies = np.resize(np.repeat(orders[0][[0, -1]], 2), fed.size)
  return [*orders, copies, np.arange(fed.size)]
