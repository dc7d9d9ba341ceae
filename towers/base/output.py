"""Output: every line that towers writes, through one writer that cannot fail.

  the reader left, the disk is full, the terminal is closed    the line is lost, and nothing else
  the reader takes nothing for two seconds                     so are the next ones, until it does
  a character that the encoding lacks                          is written as `\\xe9`

A run must end with its results although nobody reads its log.
"""

import contextlib
import io
import os
import select
import sys
from typing import Any, Optional, Set

_STDERR = 2
_PATIENCE_SECONDS = 2.0
_PATIENCE_AT_ONCE_SECONDS = 0.5
# Descriptors whose reader takes nothing: nobody waits for it again.
_stuck: Set[int] = set()


def write_line(text: str, stream: Optional[Any] = None) -> None:
  """Writes a line to a stream; to `sys.stdout` if None."""
  write(text + '\n', stream)


def write(text: str, stream: Optional[Any] = None, *, waits: bool = False) -> None:
  """Writes text to a stream, or loses it.

  Args:
    text: with its line ends.
    stream: to write to; `sys.stdout` as it is now if None.
    waits: for the reader, however long it takes: for results, which nobody wants to lose.
  """
  stream = sys.stdout if stream is None else stream
  if stream is None:  # Closed before Python began.
    return
  descriptor = None
  with contextlib.suppress(OSError, ValueError):  # It is in memory, or closed.
    # A stream of another class may name a descriptor that its text does not go to: a notebook's
    # names the terminal of the server.
    if isinstance(stream, io.TextIOWrapper):
      descriptor = stream.fileno()
  if descriptor is None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
      stream.write(text)
      stream.flush()
    return
  with contextlib.suppress(OSError, ValueError):
    stream.flush()  # What others wrote to it comes first.
  content = text.encode(getattr(stream, 'encoding', None) or 'utf-8', 'backslashreplace')
  write_bytes(descriptor, content, float('inf') if waits else _PATIENCE_SECONDS)


def is_notebook(stream: Any) -> bool:
  """Returns whether a stream ends in the cell of a notebook, as in Jupyter and Colab."""
  return any(kind.__module__.startswith('ipykernel.') for kind in type(stream).__mro__)


def write_at_once(text: str) -> None:
  """Writes to stderr from a thread that must not wait: for a lock, a buffer, or a reader."""
  write_bytes(_STDERR, text.encode('utf-8', 'backslashreplace'), _PATIENCE_AT_ONCE_SECONDS)


def write_bytes(descriptor: int, content: bytes, seconds: float = _PATIENCE_SECONDS) -> None:
  """Writes bytes to a descriptor, or loses what cannot be written within `seconds` of waiting."""
  poll = select.poll()
  poll.register(descriptor, select.POLLOUT)
  with contextlib.suppress(OSError):
    while content:
      if not poll.poll(_milliseconds(0.0 if descriptor in _stuck else seconds)):
        _stuck.add(descriptor)
        return
      # A pipe that is ready takes so much without blocking.
      content = content[os.write(descriptor, content[:select.PIPE_BUF]):]
      _stuck.discard(descriptor)


def _milliseconds(seconds):
  return None if seconds == float('inf') else 1000 * seconds


def open_closed_streams() -> None:
  """Opens the null device in place of each standard stream that is closed.

  Otherwise the next file that a run opens gets its number, and TensorFlow's log goes into the file.
  """
  for number, name in enumerate(('stdin', 'stdout', 'stderr')):
    try:
      os.fstat(number)
    except OSError:
      # The smallest free number is this one.
      os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if getattr(sys, name) is None:
      setattr(sys, name, os.fdopen(number, 'w' if number else 'r', closefd=False))


def flush_streams() -> None:
  """Writes what others left in stdout and stderr, or drops it: Python would fail at its exit."""
  for stream in (sys.stdout, sys.stderr):
    try:
      if stream is not None:
        stream.flush()
    except ValueError:  # It is closed.
      pass
    except OSError:
      null = os.open(os.devnull, os.O_WRONLY)
      os.dup2(null, stream.fileno())
      os.close(null)
