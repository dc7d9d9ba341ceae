"""Mixing: which part of a mixture each position of an epoch takes, and which of its examples.

  epoch      ──► global batches, each with a number of every part     16 = 10 + 4 + 2 of 5 : 2 : 1
  position   ──► place in its batch, permuted ──► part, and how many of it came before
             ──► pass over the part, and position there, permuted as an epoch is ──► example

So the example at any position of any epoch is known at once, and it is the same on any towers. A
part that is smaller than its share of an epoch begins again, in the middle of a batch if need be.

Shares of a batch are whole numbers plus fractions. A fraction is a task that wants that part of the
time on as many processors as all fractions add up to: a batch is a moment, and who runs gets one
example more. PD² of Anderson and Srinivasan 2001, "Mixed Pfair/ERfair scheduling of asynchronous
periodic tasks", runs each for as long as it should, up to less than one moment at any time.
"""

import functools
from typing import Callable, Optional, Tuple

import numpy as np

from towers.base.splitmix import GOLDEN, as_int64, mix
from towers.data.examples import Mixture
from towers.input.epoch_order.permutation import permute


def order_by_parts(mixture: Mixture, *, seed: Optional[int]) -> Callable[..., np.ndarray]:
  """Returns a function from positions, an epoch and its `Plan.cuts_of` to the examples there.

  A cut is dealt in the shares of what is left of the epoch. Without a seed the parts keep their own
  order, and only batches are mixed.
  """
  counts, sizes = np.array(mixture.counts), np.array(mixture.sizes)
  offsets = np.cumsum(sizes) - sizes

  def own_seeds(numbers):
    return mix(as_int64(seed or 0) + (1 + numbers) * np.array(GOLDEN), np)

  def find_parts(positions, epoch, cuts):
    """Returns the part at each position, and how many of it come before in the epoch."""
    parts, numbers = np.empty_like(positions), np.empty_like(positions)
    taken, ends_of_cuts = np.zeros_like(counts), [begin for begin, *_ in cuts[1:]]
    for (begin, _, size), end in zip(cuts, [*ends_of_cuts, mixture.num_examples]):
      left = tuple((counts - taken).tolist())
      batches = np.where(positions < end, (positions - begin) // size, -1)
      for batch in np.unique(batches[batches >= 0]).tolist():
        before, after = [taken + _count_before(left, size, number) for number in (batch, batch + 1)]
        ends = np.cumsum(after - before)
        is_there = batches == batch
        places = permute(positions[is_there] - begin - batch * size, size=int(ends[-1]),
                         epoch=epoch, seed=own_seeds(np.array([begin + batch])))
        part = parts[is_there] = np.searchsorted(ends, places, side='right')
        numbers[is_there] = places + (after - ends)[part]
      taken = taken + _count_before(left, size, (end - begin) // size)
    return parts, numbers

  def take(positions, epoch, cuts):
    if not mixture.per_batch:
      cuts = [(0, mixture.num_examples, mixture.num_examples)]
    parts, numbers = find_parts(positions, epoch, cuts)
    done = epoch * counts[parts]
    passes, places = np.divmod(done + numbers, sizes[parts])
    if seed is not None:
      places = permute(places, size=sizes[parts], seed=own_seeds(parts), epoch=passes)
    found = offsets[parts] + places
    if mixture.members is not None:
      found = mixture.members[found]
    # Distinct in an epoch, so that an example that comes again draws anew in `augmented`.
    return found + (passes - done // sizes[parts]) * sizes.sum()

  return take


def _count_before(counts: Tuple[int, ...], size: int, batch: int) -> np.ndarray:
  """Returns how many examples of each part the batches before one hold, int64 `[parts]`."""
  total = sum(counts)
  if batch * size >= total:
    return np.array(counts)
  more = _deal_rests(counts, size)
  cycles, row = divmod(batch, len(more) - 1)
  return batch * (size * np.array(counts) // total) + cycles * more[-1] + more[row]


@functools.lru_cache(maxsize=4)
def _deal_rests(counts: Tuple[int, ...], size: int) -> np.ndarray:
  """Returns how many more than whole shares the batches before each hold, until that repeats.

  They are int64 `[batches + 1, parts]`, for epochs with `counts` of each part.
  """
  total = sum(counts)
  rests = {part: size * count % total for part, count in enumerate(counts) if size * count % total}
  num_more = sum(rests.values()) // total
  cycle = total // int(np.gcd.reduce([total, *rests.values()]))
  taken = [0] * len(counts)
  rows = [list(taken)]

  def urgency(part):
    rest, number = rests[part], taken[part] + 1
    deadline = _divide_up(number * total, rest)
    # Until when a part of more than half would have no choice if it waited.
    free = total - rest
    forced = _divide_up(_divide_up(deadline * free, total) * total, free) if rest > free else 0
    return deadline, number * total % rest == 0, -forced

  for batch in range(max(1, min(cycle, total // size))):
    ready = [part for part, rest in rests.items() if taken[part] * total // rest <= batch]
    for part in sorted(ready, key=urgency)[:num_more]:
      taken[part] += 1
    rows.append(list(taken))
  return np.array(rows)


def _divide_up(number, by):
  return -(-number // by)
