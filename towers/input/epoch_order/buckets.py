"""Buckets: examples of similar lengths come in the same global batches, which need less padding.

  a window of the epoch, some global batches ──► sorted by length ──► cut into global batches again
                                                                  ──► these in a shuffled order

A window is positions of the permuted epoch, so the examples of any step still follow from (seed,
epoch, step), and nothing is buffered. A last batch that is smaller stays last. Its examples are
those at a random place of the sorted window, since at its end they would always be the longest.
"""

import functools
from typing import Callable, Optional

import numpy as np

from towers.base.splitmix import GOLDEN, as_int64, mix
from towers.data.examples import Buckets
from towers.input.epoch_order.permutation import permute

_KEPT = 4  # Windows, of which blocks of positions take one after another.


def order_by_length(buckets: Buckets, *, num_examples: int, seed: Optional[int]
                    ) -> Callable[..., np.ndarray]:
  """Returns a function from positions, an epoch and its `Plan.cuts_of` to the examples there.

  A cut comes in windows of its own, out of the order that its examples had before. Without a seed
  nothing is shuffled.
  """
  @functools.lru_cache(maxsize=_KEPT)
  def order(window, epoch, cuts):
    begin, end, batch_size = cuts[-1]
    size = buckets.window * batch_size
    begin += window * size
    indices = take(np.arange(begin, min(begin + size, end)), epoch, cuts[:-1])
    indices = indices[np.argsort(buckets.lengths[indices], kind='stable')]

    num_batches = -(-len(indices) // batch_size)
    batches = np.arange(num_batches)
    if seed is not None:
      own_seed = mix(np.array([as_int64(seed)]) + as_int64(GOLDEN * (window + 1)), np)
      batches = permute(batches, size=num_batches, seed=int(own_seed[0]), epoch=epoch)
    sizes = np.full(num_batches, batch_size)
    sizes[batches[-1]] -= num_batches * batch_size - len(indices)
    parts = np.split(indices, np.cumsum(sizes)[:-1])
    return np.concatenate([parts[batch] for batch in batches])

  def take(positions, epoch, cuts):
    if not cuts:
      return positions if seed is None else permute(
          positions, size=num_examples, seed=seed, epoch=epoch)
    begin, end, batch_size = cuts[-1]
    windows, places = np.divmod(positions - begin, buckets.window * batch_size)
    windows = np.where(positions < end, windows, -1)
    indices = np.empty_like(positions)
    for window in np.unique(windows).tolist():
      is_there = windows == window
      indices[is_there] = (take(positions[is_there], epoch, cuts[:-1]) if window < 0 else
                           order(window, epoch, cuts)[places[is_there]])
    return indices

  return take
