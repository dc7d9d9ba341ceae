"""Roll call: compares what all workers must share before any server of TensorFlow starts.

A chief on TensorFlow 1.14 crashes when a server of 2.21 speaks to it, so versions are compared
without TensorFlow. Until its server starts, the chief listens on its port itself:

  other workers ── rank and facts ──► chief      one line of JSON each
  other workers ◄── who is missing ── chief      when that changes, at most once a second
  other workers ◄── facts of all ──── chief      once all have reported
"""

import collections
import contextlib
import json
import select
import selectors
import socket
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

from towers.base.json_files import parse_json
from towers.base.output import write_line
from towers.base.usage_error import UsageError, first_few
from towers.placement.cluster import Cluster, is_loopback
from towers.training.faults.run_error import WorkerGone

_MOST_BYTES = 1 << 24
_MOST_DIFFERENCES = 8
_RECEIVE_BYTES = 1 << 16
_SECONDS_BETWEEN = 0.2
_SECONDS_BETWEEN_LINES = 1.0  # To the user, and to the other workers.
_SECONDS_TO_CONNECT = 2.0


class RollCall:
  """Waits until all workers have reported to the chief.

  Attributes:
    missing: ranks of the workers that have not reported, as far as this one knows.
  """

  def __init__(self, cluster: Cluster, *, limit_seconds: float,
               limit_name: str = 'start_seconds', tell: Callable[[str], Any] = write_line):
    """Connects to nobody yet; `tell` gets a sentence about those that this worker waits for."""
    self.missing: List[int] = list(range(1, len(cluster.addresses))) if cluster.is_chief else [0]
    self._cluster = cluster
    self._limit_seconds = limit_seconds
    self._limit_name = limit_name
    self._tell = tell
    self._told: List[int] = []
    self._told_at = self._until = 0.0

  def gather(self, facts: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Returns the facts of all workers, by rank; all workers call it.

    Raises:
      UsageError: the port is in use, or the clusters of two workers do not fit together.
      WorkerGone: a worker is missing after the time; names it.
    """
    self._until = time.monotonic() + self._limit_seconds
    # Infinity, which is no JSON, becomes a text.
    own = json.loads(json.dumps(facts, default=str), parse_constant=str)
    return self._collect(own) if self._cluster.is_chief else self._report(own)

  def describe_wait(self) -> str:
    """Returns in words which workers this one waits for."""
    return f'waiting for the other workers: {name_ranks(self._cluster, self.missing)} not there yet'

  def _check_time(self, fault):
    """Says for whom this worker waits, whenever that has changed; raises when the time is over."""
    now = time.monotonic()
    if self.missing != self._told and now >= self._told_at + _SECONDS_BETWEEN_LINES:
      self._tell(self.describe_wait())
      self._told, self._told_at = self.missing, now
    if now >= self._until:
      raise WorkerGone(
          f'{name_ranks(self._cluster, self.missing)} not there after {self._limit_seconds:g} s '
          f'({self._limit_name}): {fault}. Start the same command on every machine of TF_CONFIG, '
          'and see that each can reach the ports of the others.')

  def _report(self, own):
    """Reports to the chief, again and again until it answers with the facts of all."""
    host, _, port = self._cluster.addresses[0].rpartition(':')
    line = _format(dict(rank=self._cluster.rank, facts=own))
    while True:
      fault = 'worker 0 does not listen'
      try:
        with socket.create_connection((host.strip('[]'), int(port)),
                                      _SECONDS_TO_CONNECT) as connection:
          connection.sendall(line)
          facts = self._read_answer(connection)
        if facts is not None:
          return facts
      except (ConnectionError, socket.timeout):
        pass
      except OSError as error:
        fault = f'worker 0 cannot be reached: {error}'
      self._check_time(fault if self.missing == [0] else _describe_silence(self.missing))
      time.sleep(_SECONDS_BETWEEN)

  def _read_answer(self, connection):
    """Returns the facts of all, or None if the chief ends the connection, or is no chief."""
    received = b''
    while len(received) < _MOST_BYTES:
      if not select.select([connection], [], [], _SECONDS_BETWEEN)[0]:
        self._check_time(_describe_silence(self.missing))
        continue
      chunk = connection.recv(_RECEIVE_BYTES)
      if not chunk:
        return None
      *lines, received = (received + chunk).split(b'\n')
      for answer in map(_parse, lines):
        if answer is None:  # The chief's server of TensorFlow, for example: it trains already.
          return None
        if 'refusal' in answer:
          raise UsageError(str(answer['refusal']))
        if 'facts' in answer:
          return answer['facts']
        self.missing = answer.get('missing', self.missing)
    return None

  def _collect(self, own):
    """Waits for the facts of all workers, and sends them to all."""
    sent, sent_at = self.missing, -_SECONDS_BETWEEN_LINES
    with _Reporters(self._cluster) as reporters:
      while True:
        reporters.poll(_SECONDS_BETWEEN)
        gone = [rank for rank in range(1, len(self._cluster.addresses))
                if rank not in reporters.facts]
        # A worker that came and left had its own reason, such as that another one is missing.
        self.missing = [rank for rank in gone if rank not in reporters.seen] or gone
        if not gone:
          facts = [own, *(reporters.facts[rank] for rank in sorted(reporters.facts))]
          reporters.send(dict(facts=facts))
          return facts
        if self.missing != sent and time.monotonic() >= sent_at + _SECONDS_BETWEEN_LINES:
          reporters.send(dict(missing=self.missing))
          sent, sent_at = self.missing, time.monotonic()
        self._check_time(_describe_silence(self.missing))


class _Reporters:
  """The chief's connections."""

  def __init__(self, cluster: Cluster):
    # Of the other workers that have reported and are still connected; and who has ever reported.
    self.facts: Dict[int, Dict[str, Any]] = {}
    self.seen: Set[int] = set()
    self._cluster = cluster
    self._listener = _listen(cluster)
    self._received: Dict[socket.socket, bytes] = {}
    self._ranks: Dict[socket.socket, int] = {}
    # Unlike select, it takes more than a thousand.
    self._selector = selectors.DefaultSelector()
    self._selector.register(self._listener, selectors.EVENT_READ)

  def __enter__(self) -> '_Reporters':
    return self

  def __exit__(self, *_: Any) -> None:
    self._selector.close()
    for connection in [self._listener, *self._received]:
      connection.close()

  def poll(self, seconds: float) -> None:
    """Takes what has come, and waits for it up to `seconds`."""
    readable = [key.fileobj for key, _ in self._selector.select(seconds)]
    for connection in readable:
      # One that is readable may have been forgotten since, for a newer one of its rank.
      if connection in self._received and not self._receive(connection):
        self._forget(connection)
    if self._listener in readable:
      connection, _ = self._listener.accept()
      connection.settimeout(_SECONDS_TO_CONNECT)
      self._received[connection] = b''
      self._selector.register(connection, selectors.EVENT_READ)

  def _receive(self, connection):
    """Returns whether a connection goes on; it ends with its process, or if it makes no sense."""
    try:
      chunk = connection.recv(_RECEIVE_BYTES)
    except OSError:
      return False
    received = self._received[connection] = self._received[connection] + chunk
    if not chunk or connection in self._ranks or len(received) > _MOST_BYTES:
      return False
    if b'\n' not in received:
      return True
    message = _parse(received.partition(b'\n')[0]) or {}
    rank, facts = message.get('rank'), message.get('facts')
    if type(rank) is not int or not isinstance(facts, dict):
      return False
    if not 0 < rank < len(self._cluster.addresses):
      _send(connection, dict(refusal=(
          f'This process is worker {rank} by its TF_CONFIG, and that of worker 0 names '
          f'{len(self._cluster.addresses)} workers: give the same cluster to all.')))
      return False
    for older in [other for other, known in self._ranks.items() if known == rank]:
      _send(older, dict(refusal=(
          f'Another process is {self._cluster.describe(rank)} too: give each worker its own index '
          'in TF_CONFIG.')))
      self._forget(older)
    self._ranks[connection] = rank
    self.facts[rank] = facts
    self.seen.add(rank)
    return True

  def _forget(self, connection):
    self.facts.pop(self._ranks.pop(connection, -1), None)
    del self._received[connection]
    self._selector.unregister(connection)
    connection.close()

  def send(self, message: Mapping[str, Any]) -> None:
    """Sends a message to all that have reported."""
    for connection in self._ranks:
      _send(connection, message)


def _listen(cluster: Cluster) -> socket.socket:
  """Returns a socket on the chief's port: of this machine alone if its address is."""
  host, _, port = cluster.addresses[0].rpartition(':')
  host = host.strip('[]')
  family = socket.AF_INET6 if ':' in host else socket.AF_INET
  listener = socket.socket(family)
  listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  try:
    listener.bind((host if is_loopback(cluster.addresses[0]) else '', int(port)))
    listener.listen(len(cluster.addresses))
  except OSError as error:
    listener.close()
    raise UsageError(f'{cluster.describe(0)} cannot listen on its port: {error.strerror}. See what '
                     'does (ss -ltnp), or choose another in TF_CONFIG on all workers.') from None
  return listener


def _format(message: Mapping[str, Any]) -> bytes:
  return json.dumps(message).encode() + b'\n'


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
  # One that is gone shows when it is read.
  with contextlib.suppress(OSError):
    connection.sendall(_format(message))


def _parse(line: bytes) -> Optional[Dict[str, Any]]:
  """Returns a message, or None if a line is none."""
  try:
    message = parse_json(line)
  except ValueError:
    return None
  return message if isinstance(message, dict) else None


def _describe_silence(ranks: Sequence[int]) -> str:
  return f"{'it has' if len(ranks) == 1 else 'they have'} not reported to worker 0"


def name_ranks(cluster: Cluster, ranks: Sequence[int]) -> str:
  """Returns workers and a verb: 'worker 1 (10.0.0.2:2222) is'."""
  shown, others = first_few([cluster.describe(rank) for rank in ranks])
  named = ', '.join(shown) + (f' and {others} others' if others else '')
  return f"{named} {'is' if len(ranks) == 1 else 'are'}"


def check_alike(cluster: Cluster, what: str, facts: Sequence[Mapping[str, Any]], fix: str) -> None:
  """Refuses workers whose facts differ; names the one, its facts and those of the others.

  `what` says what the facts are of, as 'flags', and `fix` what to do.
  """
  differences = []
  for name in sorted({name for other in facts for name in other}):
    values = [json.dumps(other.get(name)) for other in facts]
    counts = collections.Counter(values)
    # In a tie, the chief's.
    usual = max(values, key=lambda value: (counts[value], value == values[0]))
    differences += [f'{cluster.describe(rank)} has {name}={value}, the others {usual}'
                    for rank, value in enumerate(values) if value != usual]
  if differences:
    shown = '; '.join(differences[:_MOST_DIFFERENCES])
    raise UsageError(f'The workers have different {what}: {shown}. {fix}')
