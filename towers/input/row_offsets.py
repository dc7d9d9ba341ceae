"""Row offsets: where the rows of each tower's batch stand in the global batch.

  split, next    012 345 67     tower 1 begins at place 3, and its rows stand side by side
  shard          036 147 25     tower 1 begins at place 1, and takes every third place

Micro-batches and workers shift the places (see `plan`). A row has the same place on any number of
towers, and what depends on places does not depend on towers.
"""

import itertools
from typing import Any, List, NamedTuple, Optional, Sequence, Union

import numpy as np

from towers.input.plan import Plan, Shard
from towers.placement.host import HOST
from towers.tensorflow_v1 import Tensor, tf


class Sharding(NamedTuple):
  """How a tower's rows are taken out of the examples of an epoch."""
  plan: Optional[Plan]  # Of the split.
  # Of the shard that they are taken from, among `num_shards` that batches are dealt to.
  position: int
  num_shards: int  # Of all workers.
  is_shared: bool  # Whether the towers of a worker take from one shard, one after the other.
  multiple: int  # Divides the place of the first row of every tower.


class RowOffset(NamedTuple):
  """Where a tower's rows stand in the global batch."""
  # The place of the first row, a scalar int64 tensor on the host; `stride` to the next.
  first: Tensor
  stride: int
  multiple: int  # Divides `first`, whatever its value.
  batch_size: Optional[int]  # Rows of a full global batch, None if no plan has dealt them.
  # The place at which the micro-batch begins, an int or a scalar int64 tensor on the host.
  begin: Union[int, Tensor]
  # Rows of the micro-batch; an int, or a tensor if no plan has dealt them.
  num_slots: Union[int, Tensor]


def build_sharding(plan: Plan, shard: Shard, *, is_shared: bool) -> Sharding:
  """Returns how a tower's rows are taken out of a shard."""
  size, last = plan.micro_batch_size, plan.examples_per_epoch % plan.micro_batch_size
  places = [size]
  for shares in (plan.shares(size), plan.shares(last)):
    places += itertools.accumulate(shares[:-1])
  multiple = int(np.gcd.reduce(places)) if shard.num_shards == 1 else 1
  return Sharding(plan, shard.position, shard.num_shards, is_shared, multiple)


def join_shardings(shardings: Sequence[Sharding]) -> Sharding:
  """Returns the first split's sharding of a tower whose batches come from one of several splits."""
  multiples = [sharding.multiple for sharding in shardings]
  return shardings[0]._replace(multiple=int(np.gcd.reduce(multiples)))


def build_row_offsets(batches: Sequence[Any],
                      micro_batch: Optional[Tensor] = None) -> List[RowOffset]:
  """Returns the place of the rows of each tower of this worker.

  Where no plan has dealt the batches, their rows follow each other. The number of the `micro_batch`
  in the step is a scalar int64 tensor; None if a step has but one.
  """
  offsets = []
  with tf.device(HOST), tf.name_scope('places/'):
    # What is known is added up by Python, without an op.
    counts = [batch.num_examples if batch.is_static else tf.cast(batch.num_examples, tf.int64)
              for batch in batches]
    before: Any = 0
    for batch, count in zip(batches, counts):
      plan, position, num_shards, is_shared, multiple = (
          batch.sharding or Sharding(None, 0, 1, True, 1))
      size = plan.micro_batch_size if plan else sum(counts)
      begin = 0 if micro_batch is None else micro_batch * size
      first = tf.convert_to_tensor(begin + position + before * num_shards, tf.int64)
      offsets.append(RowOffset(first, num_shards, multiple, plan and plan.batch_size, begin, size))
      if is_shared:
        before += count
  return offsets
