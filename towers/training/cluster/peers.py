"""Peers: the other workers of a cluster, met before TensorFlow speaks, and watched to the end.

TensorFlow waits forever for a worker that is gone, and a chief on 1.14 crashes when a server of
2.21 speaks to it. So every worker has a connection to the chief, beside TensorFlow, that stays open
until one of the two processes ends. Until its server starts, the chief listens on its port itself:

  worker ── rank ──────────────► chief      once
  worker ◄── missing, gone ───── chief      twice a second, and at once when one has ended
  worker ── nothing ───────────► chief      twice a second
  worker ── value ─────────────► chief      what all are to know, such as flags, data and graphs
  worker ◄── values of all ───── chief      once all have sent theirs

Each is a line of JSON. A connection that ends tells that the process has: this counts at once and
for good, since a worker that starts again alone cannot join in the middle of a step. One that is
silent is stopped, or its machine too busy, or the network gone: this counts after a time. While
steps make progress, no worker counts as gone.
"""

import asyncio
import collections
import contextlib
import json
import socket
import threading
import time
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Set

from towers.base.json_files import parse_json
from towers.base.output import write_line
from towers.base.usage_error import UsageError, first_few
from towers.placement.cluster import Cluster, listen
from towers.training.faults.run_error import WorkerGone, end_process

_MOST_BYTES = 1 << 24  # Of a message.
_SECONDS_BETWEEN = 0.5
_SECONDS_BETWEEN_TRIES = 0.2
_SECONDS_TO_CONNECT = 2.0
_SECONDS_TO_SEE = 5.0
# After a longer pause this process itself has stood still, and heard nobody.
_SECONDS_OF_A_PAUSE = 2.0


class Peers:
  """The connections of this worker, which a thread reads until they are closed.

  Attributes:
    missing: ranks of the workers that are not there yet, as far as this one knows.
    gone: once all have met, why others are gone, in words, by rank; the first to end comes first.
    is_busy: returns whether steps make progress, so that no worker counts as gone.
  """

  def __init__(self, cluster: Cluster, *, tell: Callable[[str], Any] = write_line):
    """Connects to nobody yet; `tell` gets a sentence about those that this worker waits for."""
    self.missing: List[int] = list(range(1, len(cluster.addresses))) if cluster.is_chief else [0]
    self.gone: Dict[int, str] = {}
    self.is_busy: Callable[[], bool] = lambda: False
    self._cluster, self._tell = cluster, tell
    self._changed = threading.Condition()
    self._thread: Optional[threading.Thread] = None
    self._task: Any = None
    self._server: Any = None
    self._has_met = self._is_watched = self._is_sharing = False
    self._fault, self._refusal = 'it does not answer', ''
    self._limit_seconds = float('inf')
    # By the rank of the other end, which for all but the chief is 0.
    self._lines: Dict[int, asyncio.StreamWriter] = {}
    self._heard_at: Dict[int, float] = {}
    self._seen: Set[int] = set()
    self._values: Dict[int, Deque[Any]] = collections.defaultdict(collections.deque)
    self._shared: Deque[List[Any]] = collections.deque()

  def meet(self, limit_seconds: float, limit_name: str = 'start_seconds') -> None:
    """Waits until all workers are connected to the chief.

    Raises:
      UsageError: the port is in use, or the clusters of two workers do not fit together.
      WorkerGone: a worker is missing after the time, which has this name; names it.
    """
    listener = listen(self._cluster) if self._cluster.is_chief else None
    self._thread = threading.Thread(target=self._run, args=(listener,), name='peers', daemon=True)
    self._thread.start()
    until, told = time.monotonic() + limit_seconds, None
    while not self._wait(lambda: self._has_met or self._refusal,
                         min(_SECONDS_BETWEEN, limit_seconds)):
      missing = self.missing
      if missing != told:
        self._tell(self.describe_wait())
        told = missing
      if time.monotonic() >= until:
        fault = self._fault if missing == [0] else (
            f"{'it has' if len(missing) == 1 else 'they have'} not reported to worker 0")
        raise WorkerGone(
            f'{self._name(missing)} not there after {limit_seconds:g} s ({limit_name}): {fault}. '
            'Start the same command on every machine of TF_CONFIG, and see that each can reach '
            'the ports of the others.')
    if self._refusal:
      raise UsageError(self._refusal)

  def describe_wait(self) -> str:
    """Returns in words which workers this one waits for."""
    missing = f': {self._name(self.missing)} not there yet' if self.missing else ''
    return f'waiting for the other workers{missing}'

  def share(self, value: Any) -> List[Any]:
    """Returns the values of all workers, as JSON has them, by rank; all call it equally often.

    Raises:
      WorkerGone: a worker has ended, or is silent for too long.
    """
    # Infinity, which is no JSON, becomes a text.
    value = json.loads(json.dumps(value, default=str), parse_constant=str)
    self._is_sharing = True
    self._loop.call_soon_threadsafe(self._give, value)
    self._wait(lambda: self._shared or self.gone)
    self._is_sharing = False
    if not self._shared:
      raise WorkerGone(self._explain())
    return self._shared.popleft()

  @contextlib.contextmanager
  def watched(self, limit_seconds: float) -> Iterator[None]:
    """Opens a context in which a worker that is gone, or silent for so long, ends the process."""
    self._limit_seconds, self._is_watched = limit_seconds, True
    try:
      yield
    finally:
      self.stop()

  def stop(self) -> None:
    """Lets other workers leave from now on."""
    self._is_watched = False

  def explain(self, error: Exception) -> Optional[WorkerGone]:
    """Returns a step's error in other words if it shows, as on 2.x, that a worker is gone."""
    if 'ollective' not in str(error):
      return None
    return WorkerGone(self._explain()) if self._wait(lambda: self.gone, _SECONDS_TO_SEE) else None

  def close(self) -> None:
    """Ends all connections."""
    if self._thread is not None:
      self._wait(lambda: self._task)
      self._loop.call_soon_threadsafe(self._task.cancel)
      self._thread.join()

  def _wait(self, is_done, seconds=None):
    with self._changed:
      return self._changed.wait_for(is_done, seconds)

  def _name(self, ranks):
    """Returns workers and a verb: 'worker 1 (10.0.0.2:2222) is'."""
    shown, others = first_few([self._cluster.describe(rank) for rank in ranks])
    named = ', '.join(shown) + (f' and {others} others' if others else '')
    return f"{named} {'is' if len(ranks) == 1 else 'are'}"

  def _explain(self):
    gone, others = first_few([f'{self._cluster.describe(rank)} {why}'
                              for rank, why in self.gone.items()])
    if others:
      gone.append(f'{others} others too')
    return (f"{'; '.join(gone)}. A step needs all workers, so this one ends. Only the steps "
            "after the last checkpoint are lost: start all workers again.")

  # The thread does the rest.

  def _run(self, listener):
    with contextlib.suppress(asyncio.CancelledError):
      asyncio.run(self._serve(listener))

  async def _serve(self, listener):
    self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
    if listener is None:
      await asyncio.gather(self._beat(), self._connect())
    self._server = await asyncio.start_server(self._welcome, sock=listener, limit=_MOST_BYTES)
    with contextlib.closing(self._server):
      await self._beat()

  async def _connect(self):
    """Connects to the chief, again and again until all workers are there."""
    while not self._has_met:
      try:
        # It may block the thread, which has nothing else to do.
        connection = socket.create_connection(self._cluster.endpoint(0), _SECONDS_TO_CONNECT)
      except OSError as error:
        self._fault = f'it cannot be reached: {error}'
      else:
        reader, writer = await asyncio.open_connection(sock=connection, limit=_MOST_BYTES)
        with contextlib.closing(writer):
          _send(writer, rank=self._cluster.rank)
          await self._follow(0, reader, writer)
      await asyncio.sleep(_SECONDS_BETWEEN_TRIES)

  async def _welcome(self, reader, writer):
    """Takes the rank of a process that connects to the chief, and then what it sends."""
    with contextlib.suppress(asyncio.CancelledError), contextlib.closing(writer):
      rank = (await _read(reader) or {}).get('rank')
      if type(rank) is not int or rank < 1 or self._has_met:
        return
      if rank >= len(self._cluster.addresses):
        _send(writer, refusal=(
            f'This process is worker {rank} by its TF_CONFIG, and that of worker 0 names '
            f'{len(self._cluster.addresses)} workers: give the same cluster to all.'))
        return
      if rank in self._lines:
        _send(self._lines[rank], refusal=(
            f'Another process is {self._cluster.describe(rank)} too: give each worker its own '
            'index in TF_CONFIG.'))
      self._seen.add(rank)
      await self._follow(rank, reader, writer)

  async def _follow(self, rank, reader, writer):
    """Takes what another worker sends, until its connection ends or it makes no sense."""
    self._lines[rank], self._heard_at[rank] = writer, time.monotonic()
    self._count()
    while True:
      message = await _read(reader)
      if self._lines.get(rank) is not writer:  # Another process has the same rank.
        return
      if message is None:
        break
      self._heard_at[rank] = time.monotonic()
      self.gone = {other: why for other, why in self.gone.items() if other != rank}
      self._take(rank, message)
    del self._lines[rank], self._heard_at[rank]
    self._values.pop(rank, None)
    if self._has_met:
      self._miss({rank: 'has ended'})
    self._count()

  def _count(self):
    """Finds out which workers are missing, before all have met."""
    if self._cluster.is_chief and not self._has_met:
      absent = [rank for rank in range(1, len(self._cluster.addresses)) if rank not in self._lines]
      # A worker that came and left had its own reason, such as that another one is missing.
      self.missing = [rank for rank in absent if rank not in self._seen] or absent
      if not absent:
        self._has_met = True
        self._server.close()
        self._miss({})

  def _take(self, rank, message):
    if self._cluster.is_chief:
      if 'value' in message:
        self._add(rank, message['value'])
      return
    if 'refusal' in message:
      self._refusal = str(message['refusal'])
    if 'values' in message:
      self._shared.append(message['values'])
    if 'missing' in message:
      self.missing, self._has_met = message['missing'], not message['missing']
      self.gone = {int(other): why for other, why in message['gone'].items()
                   if int(other) != self._cluster.rank}
    self._act()

  def _give(self, value):
    """Takes this worker's own value to the chief."""
    if self._cluster.is_chief:
      self._add(0, value)
    elif 0 in self._lines:
      _send(self._lines[0], value=value)

  def _add(self, rank, value):
    """Keeps a worker's value, and sends those of all once they are there."""
    self._values[rank].append(value)
    waiting = [self._values[other] for other in range(len(self._cluster.addresses))]
    if all(waiting):
      values = [queue.popleft() for queue in waiting]
      for writer in self._lines.values():
        _send(writer, values=values)
      self._shared.append(values)  # At last, since this worker may then close.
      self._act()

  async def _beat(self):
    """Gives signs of life, and misses those of others."""
    while True:
      before = time.monotonic()
      await asyncio.sleep(_SECONDS_BETWEEN)
      now = time.monotonic()
      if now - before > _SECONDS_OF_A_PAUSE:
        self._heard_at = dict.fromkeys(self._heard_at, now)
      self._miss({rank: f'does not answer for {now - heard_at:.0f} s (worker_seconds)'
                  for rank, heard_at in self._heard_at.items()
                  if now - heard_at >= self._limit_seconds})

  def _miss(self, gone):
    """Takes who is gone, and tells all others who is missing or gone."""
    self.gone = {**self.gone, **gone}
    state = dict(missing=self.missing, gone=self.gone) if self._cluster.is_chief else {}
    for writer in self._lines.values():
      _send(writer, **state)
    self._act()

  def _act(self):
    """Wakes who waits; ends the process if a worker is gone and this one misses it."""
    with self._changed:
      self._changed.notify_all()
    if self.gone and self._is_watched and not self._is_sharing and not self.is_busy():
      end_process(self._explain(), WorkerGone.exit_code)


def _send(writer: asyncio.StreamWriter, **message: Any) -> None:
  writer.write(json.dumps(message).encode() + b'\n')


async def _read(reader: asyncio.StreamReader) -> Optional[Dict[str, Any]]:
  """Returns a message; None if the connection has ended, or what comes is none."""
  try:
    message = parse_json(await reader.readline())
  except (OSError, ValueError):
    return None
  return message if isinstance(message, dict) else None
