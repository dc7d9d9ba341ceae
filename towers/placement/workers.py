"""Workers: processes that train one model together, each with all variables and its own towers.

                    chief, worker 0          worker 1
  start             variables ─────────────► variables    broadcast (`build_broadcast`)
  step              gradients ◄── mean ────► gradients    one all-reduce (see `average`)
  validation        sums      ◄── sum ─────► sums         one all-reduce of a few numbers at the end

All workers build the same graph, except for the input that each reads.
"""

from typing import Callable, List, NamedTuple

import numpy as np

from towers.placement.collectives import join_group
from towers.placement.host import HOST
from towers.tensorflow_v1 import Session, Tensor, collectives, tf

_PIECE = 2 ** 16  # Numbers that cross at a time.


class Workers(NamedTuple):
  """The number of workers and the rank of this one; rank 0 is the chief."""
  num_workers: int = 1
  rank: int = 0


ALONE = Workers()


def sum_over_workers(value: Tensor, workers: Workers) -> Tensor:
  """Returns the sum of all workers' tensors of one static shape, on the device of the call."""
  if workers.num_workers == 1:
    return value
  value, group = join_group(value, workers.num_workers, 'sum of workers')
  return collectives.all_reduce(value, kind='ring', **group)


def build_sum_of_numbers(size: int,
                         workers: Workers) -> Callable[[Session, np.ndarray], np.ndarray]:
  """Returns a function `(session, numbers)` that sums `[size]` numbers over the workers.

  All workers must call it at once.
  """
  with tf.device(HOST), tf.name_scope('numbers'):
    given = tf.placeholder(tf.float64, [size])
    total = sum_over_workers(given, workers)
  return lambda session, numbers: session.run(total, {given: numbers})


def build_gather(workers: Workers) -> Callable[[Session, bytes], List[bytes]]:
  """Returns a function `(session, own)` to the bytes of each worker, by rank.

  All workers must call it at once. A sum of workers has one static shape, so the bytes cross in
  pieces, each worker's where the others have zeros.
  """
  add_up = build_sum_of_numbers(_PIECE, workers)

  def gather(session, own):
    sizes = np.zeros(_PIECE)
    sizes[workers.rank] = len(own)
    sizes = add_up(session, sizes)[:workers.num_workers].astype(int)
    # A float64 holds any uint32 exactly.
    ends = np.cumsum([0, *-(-sizes // 4)])
    numbers = np.zeros(-(-ends[-1] // _PIECE) * _PIECE)
    first = ends[workers.rank]
    numbers[first:ends[workers.rank + 1]] = np.frombuffer(own + bytes(-len(own) % 4), np.uint32)
    found = [add_up(session, piece) for piece in numbers.reshape(-1, _PIECE)]
    packed = np.concatenate(found).astype(np.uint32)
    return [packed[first:last].tobytes()[:size] for first, last, size in zip(ends, ends[1:], sizes)]

  return gather
