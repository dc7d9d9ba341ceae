"""Workers: processes that train one model together, each with all variables and its own towers.

                    chief, worker 0          worker 1
  start             variables ─────────────► variables    broadcast (`build_broadcast`)
  step              gradients ◄── mean ────► gradients    one all-reduce (see `all_reduce`)
  validation        sums      ◄── sum ─────► sums         one all-reduce of a few numbers at the end

All workers build the same graph, except for the input that each reads.
"""

from typing import Callable, NamedTuple

import numpy as np

from tensorflow_v1 import Session, Tensor, tf
from towers.placement.collectives import sum_of_workers
from towers.placement.host import HOST


class Workers(NamedTuple):
  """The number of workers and the rank of this one; rank 0 is the chief."""
  num_workers: int = 1
  rank: int = 0


ALONE = Workers()


def sum_over_workers(value: Tensor, workers: Workers) -> Tensor:
  """Returns the sum of all workers' tensors of one static shape, on the device where it is called.
  """
  if workers.num_workers == 1:
    return value
  return sum_of_workers(value, num_workers=workers.num_workers)


def build_sum_of_numbers(size: int,
                         workers: Workers) -> Callable[[Session, np.ndarray], np.ndarray]:
  """Returns a function `(session, numbers)` that sums `[size]` numbers over the workers.

  All workers must call it at once.
  """
  with tf.device(HOST), tf.name_scope('numbers'):
    given = tf.placeholder(tf.float64, [size])
    total = sum_over_workers(given, workers)
  return lambda session, numbers: session.run(total, {given: numbers})
