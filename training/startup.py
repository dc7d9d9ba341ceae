"""Start-up: what happens before the first step, and how long it takes, so that a deep net is not waited for in silence.

  building the graph … 14 s, 31,000 ops so far             while it takes long
  ready in 21.3 s: graph 12.2 (2 towers, 10,602 ops in the first, 43,211 in all), variables 1.4, first step 4.1
"""

import contextlib
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, Optional

_FIRST_BEAT_SECONDS = 5.0
_BEAT_SECONDS = 10.0


class Startup:
  """Times the phases of a start, and tells of one that takes long while it does."""

  def __init__(self, started: float, *, stream: Any = None, first_beat_seconds: float = _FIRST_BEAT_SECONDS,
               beat_seconds: float = _BEAT_SECONDS):
    """Begins.

    Args:
      started: time.monotonic() when the process began.
      stream: to write to; None for sys.stdout.
      first_beat_seconds: how long a phase may be silent.
      beat_seconds: between two lines from then on.
    """
    self.seconds: Dict[str, float] = {}
    self._started = started
    self._stream = stream or sys.stdout
    self._waits = (first_beat_seconds, beat_seconds)

  @contextlib.contextmanager
  def phase(self, name: str, doing: str, *, count_ops: Optional[Callable[[], int]] = None) -> Iterator[None]:
    """Times what is done within.

    Args:
      name: what the last line calls it.
      doing: what lines in between say, as 'building the graph'.
      count_ops: returns how many ops there are so far, if that says how far it has got.
    """
    begin = time.monotonic()
    is_over = threading.Event()

    def beat():
      first, later = self._waits
      wait = first
      while not is_over.wait(wait):
        wait = later
        so_far = '' if count_ops is None else ', {:,} ops so far'.format(count_ops())
        self._write('%s … %.0f s%s' % (doing, time.monotonic() - begin, so_far))

    thread = threading.Thread(target=beat, name='startup', daemon=True)
    thread.start()
    try:
      yield
    finally:
      is_over.set()
      thread.join()
      self.seconds[name] = time.monotonic() - begin

  def finish(self, about: Dict[str, str]) -> None:
    """Writes the last line: the seconds since the process began, and those of every phase.

    Args:
      about: by phase, what to say of it in brackets.
    """
    phases = ', '.join('%s %.1f%s' % (name, seconds, ' (%s)' % about[name] if name in about else '')
                       for name, seconds in self.seconds.items())
    self._write('ready in %.1f s: %s' % (time.monotonic() - self._started, phases))

  def _write(self, line):
    self._stream.write(line + '\n')
    self._stream.flush()


def format_ops(graph: Any, num_towers: int) -> str:
  """Returns how many ops a graph has, and how many of them in its first tower."""
  ops = graph.get_operations()
  first = sum(op.name.startswith('tower_0/') for op in ops)
  return '{} tower{}, {:,} ops in the first, {:,} in all'.format(num_towers, 's' if num_towers > 1 else '', first,
                                                                 len(ops))
