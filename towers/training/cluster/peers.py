"""Peers: whether the other workers of a cluster are still there, asked twice a second.

TensorFlow waits for ever for a worker that is gone: neither time limits nor closing the session
free a collective. But every worker's server greets whoever connects, without being asked (the first
frame of HTTP/2), so that a peer's state is told without a port or a message of our own:

  connection refused           ─► the process has ended
  connected, and no greeting   ─► it is stopped, or its machine has no time for it
  no connection                ─► its machine, or the network between, is gone

The first is believed at once and for good, since a worker that is started again alone takes a
second to listen again, and cannot go on in the middle of a step. The others are believed after a
time. As long as steps go forward nobody is missed.
"""

import concurrent.futures
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set

from towers.placement.cluster import Cluster
from towers.training.faults.run_error import WorkerGone, end_process

# Of a process that does not listen, or not any more.
REFUSED = 'refused'
_SECONDS_TO_GREET = 2.0
_GREETING = 4  # HTTP/2's SETTINGS, the fourth byte of its frame.
_SECONDS_BETWEEN = 0.5
_SECONDS_TO_SEE = 5.0
_MOST_AT_A_TIME = 16


def find_fault(address: str, seconds: float = _SECONDS_TO_GREET) -> str:
  """Returns '' if a TensorFlow server greets at 'host:port', or what happens instead: 'refused' or
  a sentence's end.
  """
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
  if not greeting:
    return REFUSED
  return '' if len(greeting) > 3 and greeting[3] == _GREETING else 'is no TensorFlow server'


def find_faults(cluster: Cluster) -> Dict[int, str]:
  """Returns for each other worker what `find_fault` finds; asks many at a time."""
  others = [worker for worker in range(len(cluster.addresses)) if worker != cluster.rank]
  with concurrent.futures.ThreadPoolExecutor(min(_MOST_AT_A_TIME, len(others))) as threads:
    return dict(
        zip(others, threads.map(lambda worker: find_fault(cluster.addresses[worker]), others)))


class Peers:
  """While entered, the other workers must be there; they must have been met before.

  Attributes:
    is_busy: tells that something goes forward, so that nobody is missed.
  """

  def __init__(self, cluster: Cluster, *, limit_seconds: float,
               on_gone: Optional[Callable[[str],
                                          Any]] = None, clock: Callable[[], float] = time.monotonic,
               ask: Callable[[Cluster], Dict[int, str]] = find_faults):
    """Prepares.

    Args:
      cluster: of which this process is a worker.
      limit_seconds: how long a worker may be silent whose process has not ended, as far as is
        known.
      on_gone: is called with the reason, in a thread; None writes it and ends the process.
      clock: seconds.
      ask: as `find_faults`.
    """
    self.is_busy: Callable[[], bool] = lambda: False
    self._cluster = cluster
    self._limit_seconds = limit_seconds
    self._on_gone = on_gone or (lambda reason: end_process(reason, WorkerGone.exit_code))
    self._clock = clock
    self._ask = ask
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
    """Asks no more: from now on others may leave."""
    self._has_ended.set()

  def _watch(self):
    while not self._has_ended.wait(_SECONDS_BETWEEN):
      self._gone = self.find_gone()
      if self._gone and not self.is_busy() and not self._has_ended.is_set():
        self._on_gone(self._explain())
        return

  def explain(self, error: Exception) -> Optional[WorkerGone]:
    """Returns what an error of a step means if it is that another worker is gone, as newer
    TensorFlow tells itself.
    """
    if 'ollective' not in str(error):
      return None
    until = self._clock() + _SECONDS_TO_SEE
    while not self._gone and self._clock() < until:
      time.sleep(0.1)
    return WorkerGone(self._explain()) if self._gone else None

  def _explain(self):
    return (f"{'; '.join(self._gone)}. A step needs all workers, so this one ends. Nothing is lost "
            "but what came after the last checkpoint: start all workers again.")

  def find_gone(self) -> List[str]:
    """Asks all others; returns in words which are gone by now, the surest first."""
    now, silent = self._clock(), []
    for worker, fault in self._ask(self._cluster).items():
      if fault == REFUSED:
        self._ended.add(worker)
      if not fault or worker in self._ended:
        self._silent_since.pop(worker, None)
        continue
      since = self._silent_since.setdefault(worker, now)
      if now - since >= self._limit_seconds:
        silent.append(f'{self._cluster.describe(worker)} {fault} for {now - since:.0f} s '
                      '(worker_seconds)')
    return [f'{self._cluster.describe(worker)} has ended' for worker in sorted(self._ended)
           ] + silent
