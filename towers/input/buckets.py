"""Buckets: examples of similar lengths come in the same global batches, which need less padding.

  a window of the epoch, some global batches ──► sorted by length ──► cut into global batches again
                                                                  ──► these in a shuffled order

A window is positions of the permuted epoch, so the examples of any step still follow from (seed,
epoch, step), and nothing is buffered. A last batch that is smaller stays last. Its examples are
those at a random place of the sorted window, since at its end they would always be the longest.
"""

import functools
from typing import Any, Callable, Optional

import numpy as np

from towers.base.splitmix import GOLDEN, as_int64, mix
from towers.data.examples import Buckets
from towers.input.permutation import permute

_KEPT = 2  # Windows, of which blocks of positions take one after another.


def order_by_length(buckets: Buckets, *, num_examples: int, examples_per_epoch: int,
                    batch_size: int, seed: Optional[int]) -> Callable[[Any, int], np.ndarray]:
  """Returns a function from positions, int64 `[n]`, and an epoch to the examples there, int64.

  Args:
    buckets, num_examples: of the split.
    examples_per_epoch: positions from there on are not taken.
    batch_size: the global batch.
    seed: of the shuffling; None without any.
  """
  window_size = buckets.window * batch_size

  @functools.lru_cache(maxsize=_KEPT)
  def order(window, epoch):
    indices = np.arange(window * window_size, min((window + 1) * window_size, examples_per_epoch))
    if seed is not None:
      indices = permute(indices, size=num_examples, seed=seed, epoch=epoch)
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

  def take(positions, epoch):
    windows = positions // window_size
    indices = np.empty_like(positions)
    for window in np.unique(windows).tolist():
      is_there = windows == window
      indices[is_there] = order(window, int(epoch))[positions[is_there] - window * window_size]
    return indices

  return take
