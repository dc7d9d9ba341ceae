"""Roster: which workers take part in the next round, and until when the others are left out.

  lost       left out for --retry_seconds, or twice as long as the last time if lost again soon
  time over  stopped and started together with the others, in one round
  too few    those left out the longest take part before their time

A worker is a place here: the GPUs and cores that it is given. Its rank follows from who takes part.
"""

import math
import time
from typing import Callable, Collection, List, Sequence

from towers_launch.members import Member

_LONGEST_SECONDS = 3600.0


class _Place:
  """A worker's GPUs and cores; how many `seconds` it was left out last, and `until` when it is."""

  def __init__(self, member: Member):
    self.member = member
    self.seconds = 0.0
    self.until = -math.inf

  def leave_out(self, now: float, *, lasted: float, retry_seconds: float) -> None:
    """Leaves it out for some time, twice as long as before if it took part no longer."""
    is_again = self.seconds and lasted <= self.seconds
    self.seconds = min(2 * self.seconds, _LONGEST_SECONDS) if is_again else retry_seconds
    self.until = now + self.seconds


class Roster:
  """The workers of a launcher, and which of them take part."""

  def __init__(self, workers: Sequence[Member], *, min_workers: int, retry_seconds: float,
               clock: Callable[[], float] = time.monotonic):
    """Begins with all of them; no two rounds in `retry_seconds` differ only by more workers."""
    self._places = [_Place(worker) for worker in workers]
    self._min_workers = min_workers
    self._retry_seconds = retry_seconds
    self._clock = clock
    self._began = clock()

  @property
  def is_complete(self) -> bool:
    """Whether all take part."""
    return not self._absent()

  @property
  def num_present(self) -> int:
    """Of those that take part."""
    return len(self._present())

  def _present(self) -> List[_Place]:
    return [place for place in self._places if place.until == -math.inf]

  def _absent(self) -> List[_Place]:
    return [place for place in self._places if place.until > -math.inf]

  def begin(self) -> List[Member]:
    """Begins a round; returns the workers of it, named by their ranks."""
    self._began = self._clock()
    return [place.member._replace(name=f'worker {rank}', task_index=rank)
            for rank, place in enumerate(self._present())]

  def was_lost(self, rank: int) -> bool:
    """Returns whether a worker of this round has been left out before."""
    return self._present()[rank].seconds > 0

  def lose(self, ranks: Collection[int]) -> bool:
    """Leaves workers of this round out; returns whether fewer take part in the next one.

    If all of several were, the cause is no worker, and all stay.
    """
    present, now = self._present(), self._clock()
    if 1 < len(ranks) == len(present) or self._min_workers == len(self._places):
      return False
    lasted = now - self._began
    for place in [present[rank] for rank in ranks]:
      place.leave_out(now, lasted=lasted, retry_seconds=self._retry_seconds)
    absent = sorted(self._absent(), key=lambda place: place.until)
    for place in absent[:max(0, self._min_workers - len(self._present()))]:
      place.until = -math.inf
    return len(self._present()) < len(present)

  def seconds_until_more(self) -> float:
    """Returns how long this round may last before others take part again; infinity if all do."""
    if self.is_complete:
      return math.inf
    soonest = min(place.until for place in self._absent())
    return max(0.0, soonest - self._clock(), self._began + self._retry_seconds - self._clock())

  def take_back(self, *, all_of_them: bool = False) -> None:
    """Lets those take part again whose time is over, or all."""
    now = self._clock()
    for place in self._places:
      if all_of_them or place.until <= now:
        place.until = -math.inf
