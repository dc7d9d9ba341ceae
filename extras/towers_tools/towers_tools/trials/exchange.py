"""Exchange: what workers tell each other between two trials of autotune, so that all decide alike.

  worker 0   trial ─┐            ┌─► what all found ─► the same next trial
  worker 1   trial ─┴─ exchange ─┴─► what all found ─► the same next trial

The processes of a trial meet by the TF_CONFIG of the run, and leave its ports when they end. Then
the processes that started them meet on the same port. If a trial has failed in one worker, its
processes in the others may still wait for it: they find an exchange, which has no flags, and end.
"""

import contextlib
import math
import time
from typing import Any, List

from towers.base.output import write_line
from towers.placement.cluster import Cluster
from towers.process.run_error import RunError
from towers.workers.meeting import Peers

# What a trial, or a run without autotune, does not report.
_ROUND = 'autotune'


class Exchange:
  """The meetings of one autotune; one worker meets nobody."""

  def __init__(self, cluster: Cluster, *, limit_seconds: float):
    """Meets nobody yet; waits `limit_seconds` for the others, besides what `share` takes."""
    self.cluster = cluster
    self._limit_seconds = limit_seconds
    self._round = 0

  def share(self, value: Any, *, others_seconds: float = 0.0) -> List[Any]:
    """Returns the values of all workers, by rank; all call it equally often.

    Raises:
      UsageError: the port is in use, or the clusters of two workers do not fit together.
      WorkerGone: a worker is missing after the time; names it.
      RunError: a worker has begun anew.
    """
    if not self.cluster.trains_together:
      return [value]
    self._round += 1
    until = time.monotonic() + self._limit_seconds + others_seconds
    while True:
      # Only at the start a worker that is not there is worth a line.
      peers = Peers(self.cluster, tell=write_line if self._round == 1 else lambda text: None)
      with contextlib.closing(peers):
        peers.meet(math.ceil(until - time.monotonic()),
                   'start_seconds and stall_seconds, for a trial')
        found = peers.share({_ROUND: self._round, 'value': value})
      rounds = [facts.get(_ROUND) for facts in found]
      # Processes of a trial have met this one, and end.
      if None not in rounds:
        break
    if len(set(rounds)) > 1:
      raise RunError(f'The workers are not at the same trial of autotune, but at {rounds}. One of '
                     'them was started again alone: end all of them, and start all again.')
    return [facts['value'] for facts in found]
