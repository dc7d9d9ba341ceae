"""Peers: checks twice a second whether the other workers of a cluster are still there.

TensorFlow waits forever for a worker that is gone: neither time limits nor closing the session
frees a collective. But every worker's server greets each connection (with the first frame of
HTTP/2), which shows its state without a port or a message of our own:

  connection refused           ─► the process has ended
  connected, and no greeting   ─► the process is stopped, or its machine is too busy
  no connection                ─► its machine, or the network between, is gone

The first counts at once and for good, since a worker that starts again alone cannot join in the
middle of a step. The others count after a time. While steps make progress, no worker counts as
gone.
"""

import concurrent.futures
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

from towers.base.usage_error import first_few
from towers.placement.cluster import Cluster
from towers.training.faults.run_error import WorkerGone, end_process

# The fault of a process that does not listen, or no longer.
REFUSED = 'refused'
_SECONDS_TO_GREET = 2.0
_GREETING = 4  # The type of an HTTP/2 SETTINGS frame, its fourth byte.
_SECONDS_BETWEEN = 0.5
_SECONDS_TO_SEE = 5.0
_MOST_AT_A_TIME = 16


def greet(address: str, seconds: float = _SECONDS_TO_GREET) -> str:
  """Returns '' if a TensorFlow server at 'host:port' greets, else the fault, in words."""
  host, _, port = address.rpartition(':')
  try:
    with socket.create_connection((host.strip('[]'), int(port)), seconds) as connection:
      connection.settimeout(seconds)
      greeting = connection.recv(9)
  except (ConnectionRefusedError, ConnectionResetError):
    return REFUSED
  except socket.timeout:
    return 'does not answer'
  except OSError as error:
    return f'cannot be reached: {error}'
  if len(greeting) > 3 and greeting[3] == _GREETING:
    return ''
  return 'is no TensorFlow server' if greeting else REFUSED


def find_faults(cluster: Cluster, ranks: Sequence[int]) -> Dict[int, str]:
  """Returns what `greet` finds of some workers, by rank."""
  with concurrent.futures.ThreadPoolExecutor(min(_MOST_AT_A_TIME, len(ranks))) as threads:
    return dict(zip(ranks, threads.map(greet, [cluster.addresses[rank] for rank in ranks])))


class Peers:
  """Ends the process if another worker is gone while it is entered, once all have met.

  Attributes:
    is_busy: returns whether steps make progress, so that no worker counts as gone.
  """

  def __init__(self, cluster: Cluster, *, limit_seconds: float,
               on_gone: Optional[Callable[[str], Any]] = None,
               clock: Callable[[], float] = time.monotonic,
               ask: Callable[[Cluster, Sequence[int]], Dict[int, str]] = find_faults):
    """Lets a worker be silent so long if nothing shows that its process has ended.

    `on_gone` is called with the reason, in a thread; None writes it and ends the process. `clock`
    and `ask` stand in for the time and for `find_faults` in tests.
    """
    self.is_busy: Callable[[], bool] = lambda: False
    self._cluster = cluster
    self._limit_seconds = limit_seconds
    self._on_gone = on_gone or (lambda reason: end_process(reason, WorkerGone.exit_code))
    self._clock = clock
    self._ask = ask
    # By rank, from the next one on, so that not all ask the same worker at once.
    self._others = [(cluster.rank + distance) % len(cluster.addresses)
                    for distance in range(1, len(cluster.addresses))]
    self._has_ended = threading.Event()
    self._gone: List[str] = []
    self._ended: Set[int] = set()
    self._silent_since: Dict[int, float] = {}

  def __enter__(self) -> 'Peers':
    self._thread = threading.Thread(target=self._watch, name='peers', daemon=True)
    self._thread.start()
    return self

  def __exit__(self, *_: Any) -> None:
    self.stop()

  def stop(self) -> None:
    """Lets other workers leave from now on."""
    self._has_ended.set()

  def _watch(self):
    while not self._has_ended.wait(_SECONDS_BETWEEN):
      self._gone = self.find_gone()
      if self._gone and not self.is_busy() and not self._has_ended.is_set():
        self._on_gone(self._explain())
        return

  def explain(self, error: Exception) -> Optional[WorkerGone]:
    """Returns a step's error in other words if it shows, as on 2.x, that a worker is gone."""
    if 'ollective' not in str(error):
      return None
    until = self._clock() + _SECONDS_TO_SEE
    while not self._gone and self._clock() < until:
      time.sleep(0.1)
    return WorkerGone(self._explain()) if self._gone else None

  def _explain(self):
    gone, others = first_few(self._gone)
    if others:
      gone.append(f'{others} others too')
    return (f"{'; '.join(gone)}. A step needs all workers, so this one ends. Only the steps "
            "after the last checkpoint are lost: start all workers again.")

  def find_gone(self) -> List[str]:
    """Asks other workers; returns in words which are gone, the ended ones first."""
    now, silent = self._clock(), []
    for rank, fault in self._ask(self._cluster, self._others).items():
      if fault == REFUSED:
        self._ended.add(rank)
      if not fault or rank in self._ended:
        self._silent_since.pop(rank, None)
        continue
      since = self._silent_since.setdefault(rank, now)
      if now - since >= self._limit_seconds:
        silent.append(f'{self._cluster.describe(rank)} {fault} for {now - since:.0f} s '
                      '(worker_seconds)')
    ended = [f'{self._cluster.describe(rank)} has ended' for rank in sorted(self._ended)]
    return ended + silent
