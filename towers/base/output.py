"""Output: every line that towers writes. A run ends with its results although nobody reads its log.

  the reader left, the disk is full, the terminal is closed    the line is lost, and nothing else
  the reader takes nothing for two seconds                     so are the next ones, until it does
  a character that the encoding lacks                          is written as `\\xe9`
  the run is quiet                                             only warnings are written
  the program has no logging of its own                        warnings of `logging` are such lines
"""

import contextlib
import io
import logging
import os
import select
import sys
from typing import Any, Iterator, Optional, Set

_STDERR = 2
_PATIENCE_SECONDS = 2.0
_PATIENCE_AT_ONCE_SECONDS = 0.5
# Descriptors whose reader took nothing in that time: the next line does not wait for it again.
_stuck: Set[int] = set()
_is_quiet = False


@contextlib.contextmanager
def quieted(is_quiet: bool = True) -> Iterator[None]:
  """Opens a context in which `write` writes only lines that begin with WARNING, if `is_quiet`."""
  global _is_quiet
  was, _is_quiet = _is_quiet, _is_quiet or is_quiet
  try:
    yield
  finally:
    _is_quiet = was


def shows_all() -> bool:
  """Returns whether `write` writes more than warnings, so that progress is worth its work."""
  return not _is_quiet


def write_line(text: str, stream: Optional[Any] = None) -> None:
  """Writes a line to a stream; to `sys.stdout` if None."""
  write(text + '\n', stream)


def write(text: str, stream: Optional[Any] = None, *, waits: bool = False) -> None:
  """Writes text, with its line ends, to a stream, or to `sys.stdout`, or loses it.

  It `waits` for the reader, however long that takes, for results, which nobody wants to lose.
  """
  stream = sys.stdout if stream is None else stream
  if _is_quiet:
    text = ''.join(line for line in text.splitlines(True) if line.startswith('WARNING'))
  if stream is None or not text:  # Closed before Python began, or quiet.
    return
  descriptor = _find_descriptor(stream)
  with contextlib.suppress(OSError, ValueError, AttributeError):
    if descriptor is None:
      stream.write(text)
    stream.flush()  # Also what others wrote to it, which comes first.
  if descriptor is not None:
    content = text.encode(getattr(stream, 'encoding', None) or 'utf-8', 'backslashreplace')
    write_bytes(descriptor, content, None if waits else _PATIENCE_SECONDS)


def _find_descriptor(stream):
  """Returns the file that a stream's text goes to; None for memory, or a closed stream.

  A stream of another class may have one that its text does not go to: in a notebook, the server's.
  """
  if isinstance(stream, io.TextIOWrapper):
    with contextlib.suppress(OSError, ValueError):
      return stream.fileno()
  return None


def is_notebook(stream: Any) -> bool:
  """Returns whether a stream ends in the cell of a notebook, as in Jupyter and Colab."""
  return any(kind.__module__.startswith('ipykernel.') for kind in type(stream).__mro__)


def write_at_once(text: str) -> None:
  """Writes to stderr from a thread that must not wait: for a lock, a buffer, or a reader."""
  write_bytes(_STDERR, text.encode('utf-8', 'backslashreplace'), _PATIENCE_AT_ONCE_SECONDS)


def write_bytes(descriptor: int, content: bytes,
                seconds: Optional[float] = _PATIENCE_SECONDS) -> None:
  """Writes bytes, or loses those that the reader does not take in `seconds`; None waits for it."""
  poll = select.poll()
  poll.register(descriptor, select.POLLOUT)
  with contextlib.suppress(OSError):
    while content:
      if seconds is not None and not poll.poll(0 if descriptor in _stuck else 1000 * seconds):
        _stuck.add(descriptor)
        return
      # A pipe that is ready takes so much without blocking.
      written = os.write(descriptor, content[:select.PIPE_BUF])
      content = content[written:]
      _stuck.discard(descriptor)


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


class _Warnings(logging.Handler):
  """Writes what the logger 'towers' warns of, where Python would write it without its level."""

  def emit(self, record):
    if not logging.getLogger().handlers:
      write_line(f'{record.levelname}: {record.getMessage()}', sys.stderr)


logging.getLogger('towers').addHandler(_Warnings())


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
