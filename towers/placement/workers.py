"""Workers: processes, each with towers of its own and all variables, that train one model together.

                    chief, worker 0          worker 1
  start             variables ─────────────► variables    broadcast (`build_broadcast`)
  step              gradients ◄── mean ────► gradients    one all-reduce (see `all_reduce`)
  validation        sums      ◄── sum ─────► sums         one all-reduce of a few numbers at the end

All of them build the same graph, but for what each reads.
"""

from typing import Any, Callable, NamedTuple

import numpy as np

from tensorflow_v1 import tf
from towers.placement.collectives import sum_of_workers
from towers.placement.host import HOST


class Workers(NamedTuple):
  """The number of workers and the rank of this one; rank 0 is the chief."""
  num_workers: int = 1
  rank: int = 0


ALONE = Workers()


def sum_over_workers(value: Any, workers: Workers) -> Any:
  """Returns the sum of all workers' tensors of one static shape, on the device where it is called.
  """
  return value if workers.num_workers == 1 else sum_of_workers(value,
                                                               num_workers=workers.num_workers)


def build_sum_of_numbers(size: int, workers: Workers) -> Callable[[Any, np.ndarray], np.ndarray]:
  """Returns a function `(session, numbers)`, called by all workers at once, that gives the sum of
  their `[size]`.
  """
  with tf.device(HOST), tf.name_scope('numbers'):
    given = tf.placeholder(tf.float64, [size])
    total = sum_over_workers(given, workers)
  return lambda session, numbers: session.run(total, {given: numbers})
