"""Average: a step's mean loss and gradients, over towers, micro-batches and workers.

  towers ──► sum ──► accumulate over micro-batches ──► divide by weights, where losses have any
         ──► all-reduce over replicas and workers ──► mean over the global batch
"""

from typing import Sequence

from towers.base.garbage_collector import uncollected
from towers.placement.collectives import FUSION_BYTES
from towers.placement.workers import ALONE, Workers
from towers.reduce.accumulate import accumulate_gradients
from towers.reduce.all_reduce import all_reduce_gradients
from towers.reduce.gradients import ReducedGradients, sum_towers
from towers.reduce.weights import divide_by_weights
from towers.tower.tower import Tower


@uncollected()
def average_gradients(towers: Sequence[Tower], *, workers: Workers = ALONE,
                      collective: str = 'auto', fusion_bytes: int = FUSION_BYTES,
                      wire: str = 'float32') -> ReducedGradients:
  """Returns the mean loss and gradients over the global batch; sparse gradients stay sparse.

  The towers are all of this worker; one collective sums gradients of `fusion_bytes`.

  Raises:
    UsageError: a collective or a wire that these devices do not have, or gradients that none can
      sum.
  """
  summed = sum_towers(towers)
  if towers[0].global_batch.num_micro_batches > 1:
    summed = accumulate_gradients(summed)
  summed = divide_by_weights(summed, workers)
  return all_reduce_gradients(summed, workers=workers, collective=collective,
                              fusion_bytes=fusion_bytes, wire=wire)
