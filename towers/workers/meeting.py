"""The meeting of workers, before TensorFlow speaks; they watch each other to the end.

TensorFlow waits forever for a worker that is gone, and a chief on 1.14 crashes when a server of
2.21 speaks to it. So every worker has a connection to the chief, beside TensorFlow, that stays open
until one of the two processes ends. Until its server starts, the chief listens on its port itself:

  worker ── rank, token ───────► chief      once
  worker ◄── missing, gone ───── chief      twice a second, and at once when one has ended
  worker ── call ──────────────► chief      twice a second: which one it is in
  worker ── value ─────────────► chief      what all are to know, such as flags, data and graphs
  worker ◄── values of all ───── chief      once all have sent theirs

Each is a line of JSON, and what one worker gets does not grow with the number of all: the first few
of those that are missing or gone stand for the others, and of values that are equal there is one.
A connection that ends tells that the process has: this counts at once and for good, since a worker
that starts again alone cannot join in the middle of a step. One that is silent is stopped, or its
machine too busy, or the network gone: this counts after a time. While steps make progress, no
worker counts as gone. Those that stay in different calls wait for each other, and the chief ends.
"""

import asyncio
import collections
import contextlib
import hmac
import json
import socket
import threading
import time
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Set, Tuple

from towers.base.output import write_line
from towers.base.usage_error import UsageError, first_few
from towers.placement.cluster import TOKEN, Cluster, listen
from towers.process.run_error import RunError, WorkerGone, end_process
from towers.process.threads import start_thread
from towers.workers.connection import Connection, encode

_SECONDS_BETWEEN = 0.5
_SECONDS_BETWEEN_TRIES = 0.2
_SECONDS_TO_CONNECT = 2.0
_SECONDS_TO_SAY_WHO = 5.0
_SECONDS_BETWEEN_LOOKS = 0.01
# Who have not said yet who they are: so many, and two for each worker.
_MOST_UNKNOWN = 16
_SECONDS_TO_SEE = 5.0
# In which workers in different calls may still come together.
_SECONDS_APART = 30.0
# After a longer pause this process itself has stood still, and heard nobody.
_SECONDS_OF_A_PAUSE = 2.0


class Peers:
  """The connections of this worker, which a thread reads until they are closed.

  Attributes:
    missing: ranks of the workers that are not there yet; the chief tells others the first few.
    gone: once all have met, why others are gone, in words, by rank; the first to end comes first,
      and the chief tells others the first few.
    is_busy: returns whether steps make progress, so that no worker counts as gone.
    find_call: returns the call of all workers in which this one is, in words, and a number that
      rises with its progress; ('', 0) for none.
  """

  def __init__(self, cluster: Cluster, *, tell: Callable[[str], Any] = write_line):
    """Connects to nobody yet; `tell` gets a sentence about those that this worker waits for."""
    self.missing: List[int] = list(range(1, len(cluster.addresses))) if cluster.is_chief else [0]
    self.gone: Dict[int, str] = {}
    self.is_busy: Callable[[], bool] = lambda: False
    self.find_call: Callable[[], Tuple[str, int]] = lambda: ('', 0)
    # Of the chief: by rank the call that a worker is in, and since when without progress.
    self._calls: Dict[int, Tuple[List[Any], float]] = {}
    self._cluster, self._tell = cluster, tell
    self._changed = threading.Condition()
    self._thread: Optional[threading.Thread] = None
    self._task: Any = None
    self._server: Any = None
    self._has_met = self._is_watched = self._is_sharing = self._is_publishing = False
    self._has_news = False
    self._fault, self._refusal = 'it does not answer', ''
    self._limit_seconds = float('inf')
    # By the rank of the other end, which for all but the chief is 0.
    self._connections: Dict[int, Connection] = {}
    # How many more are missing and gone than the chief has named.
    self._others = [0, 0]
    self._seen: Set[int] = set()
    # Who wait to be heard, the oldest first.
    self._unknown: Deque[Any] = collections.deque()
    self._values: Dict[int, Deque[Any]] = collections.defaultdict(collections.deque)
    self._shared: Deque[List[Any]] = collections.deque()

  def meet(self, limit_seconds: float, limit_name: str = 'start_seconds') -> None:
    """Waits until all workers are connected to the chief, or raises a UsageError why they cannot.

    A WorkerGone names who is missing after the time, which has this name.
    """
    listener = listen(self._cluster) if self._cluster.is_chief else None
    self._thread = start_thread(self._run, 'peers', listener)
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

  def share(self, value: Any, decide: Callable[[List[Any]], Any] = lambda values: values) -> Any:
    """Returns what `decide` makes of the values of all workers; all call it equally often.

    It gets them as JSON has them, by rank. Where it raises, all end by that, and none by another
    that has ended sooner. One that ends or is silent before is a WorkerGone.
    """
    # Infinity, which is no JSON, becomes a text.
    value = json.loads(json.dumps(value, default=str), parse_constant=str)
    self._is_sharing = True
    self._loop.call_soon_threadsafe(self._give, value)
    self._wait(lambda: self._shared or (self.gone and not self._is_publishing))
    if not self._shared:
      raise WorkerGone(self._explain())
    decided = decide(self._shared.popleft())
    self._is_sharing = False
    return decided

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
    """Returns missing workers and a verb: 'worker 1 (10.0.0.2:2222) is'."""
    shown, others = first_few([self._cluster.describe(rank) for rank in ranks])
    others += self._others[0]
    named = ', '.join(shown) + (f' and {others} others' if others else '')
    return f"{named} {'is' if len(ranks) == 1 else 'are'}"

  def _explain(self):
    gone, others = first_few([f'{self._cluster.describe(rank)} {why}'
                              for rank, why in self.gone.items()])
    others += self._others[1]
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
    self._server = await asyncio.start_server(self._welcome, sock=listener,
                                              backlog=len(self._cluster.addresses))
    with contextlib.closing(self._server):
      await self._beat()

  async def _connect(self):
    """Connects to the chief, again and again until all workers are there."""
    while not self._has_met:
      try:
        # It may block the thread, which has nothing else to do, and says at once who it is.
        opened = socket.create_connection(self._cluster.endpoint(0), _SECONDS_TO_CONNECT)
        opened.sendall(encode(rank=self._cluster.rank, token=self._cluster.token))
      except OSError as error:
        self._fault = f'it cannot be reached: {error}'
      else:
        reader, writer = await asyncio.open_connection(sock=opened)
        with contextlib.closing(writer):
          await self._follow(0, Connection(reader, writer))
      await asyncio.sleep(_SECONDS_BETWEEN_TRIES)

  async def _welcome(self, reader, writer):
    """Takes the rank of a process that connects to the chief, and then what it sends."""
    with contextlib.suppress(asyncio.CancelledError, asyncio.TimeoutError), contextlib.closing(
        writer):
      connection = Connection(reader, writer)
      said = await self._hear(connection) or {}
      rank = said.get('rank')
      if type(rank) is not int or rank < 1 or self._has_met:
        return
      # In a time that tells nothing of the token.
      if not hmac.compare_digest(str(said.get('token', '')).encode(errors='replace'),
                                 self._cluster.token.encode(errors='replace')):
        connection.send(encode(refusal=(
            f'The {TOKEN} of this process is not that of worker 0: give all workers of a run the '
            'same, or none.')))
        return
      if rank >= len(self._cluster.addresses):
        connection.send(encode(refusal=(
            f'This process is worker {rank} by its TF_CONFIG, and that of worker 0 names '
            f'{len(self._cluster.addresses)} workers: give the same cluster to all.')))
        return
      if rank in self._connections:
        self._connections[rank].send(encode(refusal=(
            f'Another process is {self._cluster.describe(rank)} too: give each worker its own '
            'index in TF_CONFIG.')))
      self._seen.add(rank)
      await self._follow(rank, connection)

  async def _hear(self, connection):
    """Returns the first message of a connection.

    Strangers hold few of the open files that workers need, and not for long.
    """
    task = asyncio.current_task()
    self._unknown.append(task)
    if len(self._unknown) > _MOST_UNKNOWN + 2 * len(self._cluster.addresses):
      self._unknown.popleft().cancel()
    try:
      return await asyncio.wait_for(connection.read(), _SECONDS_TO_SAY_WHO)
    finally:
      with contextlib.suppress(ValueError):  # It was cut off.
        self._unknown.remove(task)

  async def _follow(self, rank, connection):
    """Takes what another worker sends, until its connection ends or it makes no sense."""
    self._connections[rank] = connection
    self._count()
    while True:
      message = await connection.read()
      if self._connections.get(rank) is not connection:  # Another process has the same rank.
        return
      if message is None:
        break
      if rank in self.gone:
        self.gone = {other: why for other, why in self.gone.items() if other != rank}
      self._take(rank, message)
    del self._connections[rank]
    self._values.pop(rank, None)
    if self._has_met:
      self._miss({rank: 'has ended'})
    self._count()

  def _count(self):
    """Finds out which workers are missing, before all have met."""
    if self._cluster.is_chief and not self._has_met:
      absent = [rank for rank in range(1, len(self._cluster.addresses))
                if rank not in self._connections]
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
      if 'call' in message:
        self._note_call(rank, message['call'])
      return
    if 'refusal' in message:
      self._refusal = str(message['refusal'])
    if 'usual' in message:
      self._shared.append([message['unusual'].get(str(other), message['usual'])
                           for other in range(len(self._cluster.addresses))])
    if 'missing' in message:
      self.missing, self._has_met = message['missing'], not message['missing']
      self.gone = {int(other): why for other, why in message['gone'].items()
                   if int(other) != self._cluster.rank}
      self._others = message.get('others', [0, 0])
    self._act()

  def _give(self, value):
    """Takes this worker's own value to the chief."""
    if self._cluster.is_chief:
      self._add(0, value)
    elif 0 in self._connections:
      self._connections[0].send(encode(value=value))

  def _add(self, rank, value):
    """Keeps a worker's value, and sends those of all once they are there."""
    self._values[rank].append(value)
    waiting = [self._values[other] for other in range(len(self._cluster.addresses))]
    if all(waiting):
      self._is_publishing = True
      asyncio.ensure_future(self._publish([queue.popleft() for queue in waiting]))

  async def _publish(self, values):
    """Sends the values of all workers to each."""
    texts = list(map(json.dumps, values))
    [(usual, _)] = collections.Counter(texts).most_common(1)
    line = encode(usual=json.loads(usual), unusual={
        rank: value for rank, (value, text) in enumerate(zip(values, texts)) if text != usual})
    for connection in self._connections.values():  # All, before one can end by it.
      connection.send(line)
    for rank, connection in list(self._connections.items()):
      while connection.is_behind and rank not in self.gone:
        await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
    self._shared.append(values)  # At last, since this worker may then close.
    self._is_publishing = False
    self._miss({})

  async def _beat(self):
    """Gives signs of life, and misses those of others."""
    while True:
      before = time.monotonic()
      await asyncio.sleep(_SECONDS_BETWEEN)
      now = time.monotonic()
      if now - before > _SECONDS_OF_A_PAUSE:
        for connection in self._connections.values():
          connection.heard_at = now
      self._note_call(0, list(self.find_call()))
      self._end_if_apart(now)
      self._miss({rank: f'does not answer for {now - connection.heard_at:.0f} s (worker_seconds)'
                  for rank, connection in self._connections.items()
                  if now - connection.heard_at >= self._limit_seconds})

  def _note_call(self, rank, call):
    if rank not in self._calls or self._calls[rank][0] != call:
      self._calls[rank] = call, time.monotonic()

  def _end_if_apart(self, now):
    """Ends the chief's process if workers wait in calls that wait for each other."""
    waiting = {call: rank for rank, ((call, _), since) in sorted(self._calls.items(), reverse=True)
               if call and now - since > _SECONDS_APART}
    if self._is_watched and len(waiting) > 1:
      shown = ', '.join(f'{self._cluster.describe(rank)} is in {call}'
                        for call, rank in sorted(waiting.items(), key=lambda item: item[1]))
      end_process(f'Workers wait for each other in different calls for {_SECONDS_APART:g} s: '
                  f'{shown}. All of them take every step and every validation together: call '
                  'session.train and session.validate in all, and let the chief alone write what '
                  'they return.', RunError.exit_code)

  def _miss(self, gone):
    """Takes who is gone, and soon tells all others who is missing or gone, of many at once."""
    self.gone = {**self.gone, **gone}
    if not self._has_news:
      self._has_news = True
      self._loop.call_soon(self._tell_others)

  def _tell_others(self):
    self._has_news = False
    line = encode(call=self.find_call())
    if self._cluster.is_chief:
      missing, more_missing = first_few(self.missing)
      gone, more_gone = first_few(list(self.gone.items()))
      others = dict(others=[more_missing, more_gone]) if more_missing or more_gone else {}
      line = encode(missing=missing, gone=dict(gone), **others)
    for connection in self._connections.values():
      if not connection.is_behind:  # Else what it gets is a sign of life.
        connection.send(line)
    self._act()

  def _act(self):
    """Wakes who waits; ends the process if a worker is gone and this one misses it."""
    with self._changed:
      self._changed.notify_all()
    if self.gone and self._is_watched and not self._is_sharing and not self.is_busy():
      end_process(self._explain(), WorkerGone.exit_code)
