"""Connection: lines of JSON to and from another worker, all in one thread.

  line ─► waits ─► 64 KiB, once the other end has taken those before ─► socket

A line for many workers is encoded once, and waits as one object for all that are slow. A piece of a
line that comes is a sign of life too, since a long line takes its time.
"""

import asyncio
import collections
import contextlib
import json
import time
from typing import Any, Deque, Dict, Optional

from towers.base.json_files import parse_json

_PIECE_BYTES = 1 << 16
# Of a line: at first one that says who speaks, later at most the history of a long run.
_MOST_BYTES_AT_FIRST = 1 << 16
_MOST_BYTES = 1 << 27


def encode(**message: Any) -> bytes:
  """Returns the line of a message."""
  return json.dumps(message).encode() + b'\n'


class Connection:
  """An open connection.

  Attributes:
    heard_at: when something came from the other end, or it was opened, by `time.monotonic`.
  """

  def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
    self.heard_at = time.monotonic()
    self._reader, self._writer = reader, writer
    self._received = bytearray()
    self._most_bytes = _MOST_BYTES_AT_FIRST
    self._waiting: Deque[memoryview] = collections.deque()
    self._sending: Any = None
    # Whoever waits for the writer then waits until it holds nothing more.
    writer.transport.set_write_buffer_limits(high=0)

  @property
  def is_behind(self) -> bool:
    """Whether the other end has not taken yet what was sent to it."""
    return bool(self._waiting or self._writer.transport.get_write_buffer_size())

  def send(self, line: bytes) -> None:
    """Sends a line, at once if the other end takes it, else after those that wait."""
    self._waiting.append(memoryview(line))
    if self._sending is None:
      self._push()
      if self.is_behind:
        self._sending = asyncio.ensure_future(self._send_rest())

  def _push(self):
    """Writes what waits, for as long as the other end takes all of it."""
    while self._waiting and not self._writer.transport.get_write_buffer_size():
      line = self._waiting.popleft()
      self._writer.write(line[:_PIECE_BYTES])
      if len(line) > _PIECE_BYTES:
        self._waiting.appendleft(line[_PIECE_BYTES:])

  async def _send_rest(self):
    with contextlib.suppress(OSError):
      while self.is_behind:
        await self._writer.drain()
        self._push()
    self._sending = None

  async def read(self) -> Optional[Dict[str, Any]]:
    """Returns a message; None if the connection has ended, or what comes is none."""
    looked_at = 0
    while True:
      end = self._received.find(b'\n', looked_at)
      if end >= 0:
        break
      looked_at = len(self._received)
      try:
        piece = await self._reader.read(_PIECE_BYTES)
      except OSError:
        return None
      if not piece or looked_at + len(piece) > self._most_bytes:
        return None
      self.heard_at = time.monotonic()
      self._received += piece
    line = bytes(self._received[:end])
    del self._received[:end + 1]
    self._most_bytes = _MOST_BYTES
    try:
      message = parse_json(line)
    except ValueError:
      return None
    return message if isinstance(message, dict) else None
