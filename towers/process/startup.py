"""Start-up: the phases before the first step, timed and shown, since a deep net takes a while.

  building the graph (31,000 ops so far) … 15 s            during a long phase
  ready in 21.3 s: packages and files 2.0, graph 12.2, variables 3.0, first step 4.1

Workers that start together limit the time: one that hangs would keep all waiting. Before they have
met, a start may take as long as it needs, as to index many files, but not do nothing for long.
"""

import threading
import time
from typing import Any, Callable, Dict, Optional, Union

from towers.base.output import write_line
from towers.process.run_error import RunError, WorkerGone, end_process
from towers.process.threads import start_thread

_BEAT_SECONDS = 5.0  # In which a phase is silent, and between two lines of a longer one.
# A process that has not used so much CPU time in the limit hangs. The beat itself uses far less.
_LEAST_CPU_SECONDS = 1.0


class Startup:
  """Times the phases of a start one after another, and prints the progress of a long one.

  Attributes:
    started: time.monotonic() when the process began.
    seconds: of every phase that has ended, by name.
  """

  def __init__(self, started: float, *, stream: Any = None):
    """Begins with the phase 'packages and files', which is silent."""
    self.seconds: Dict[str, float] = {}
    self.started = self._phase_started = started
    self._name = 'packages and files'
    self._doing: Union[str, Callable[[], str]] = ''
    self._stream = stream
    self._limit_seconds: Optional[float] = None
    self._is_of_idleness = False
    self._limited_since = self._cpu_seconds = 0.0
    self._is_over = threading.Event()
    self._lock = threading.Lock()

  def __enter__(self) -> 'Startup':
    self._thread = start_thread(self._beat, 'startup')
    return self

  def __exit__(self, *_: Any) -> None:
    self._is_over.set()
    self._thread.join()

  def begin(self, name: str, doing: Union[str, Callable[[], str]]) -> None:
    """Ends the phase before and begins the next one, by the name that the last line gives it.

    Lines in between say what it is `doing`, as 'building the graph'; or a function returns that.
    """
    with self._lock:
      self._end_phase()
      self._name, self._doing = name, doing

  def limit(self, seconds: Optional[float], *, is_of_idleness: bool = False) -> None:
    """Gives the rest of the start a time from now on; None takes the limit away.

    If it `is_of_idleness`, the time begins anew whenever something has been done.
    """
    with self._lock:
      self._limit_seconds, self._is_of_idleness = seconds, is_of_idleness
      self._limited_since, self._cpu_seconds = time.monotonic(), time.process_time()

  def _find_end(self, now, doing):
    """Returns why the time of the start is over, in words, and the exit code; None if it is not."""
    used, limit = time.process_time(), self._limit_seconds
    if self._is_of_idleness and used - self._cpu_seconds >= _LEAST_CPU_SECONDS:
      self._limited_since, self._cpu_seconds = now, used
    if limit is None or now - self._limited_since < limit:
      return None
    if self._is_of_idleness:  # None of the other workers is to blame.
      return (f'This worker has done nothing for {limit:g} s (start_seconds), and the others wait '
              f"for it. It is still at '{self._name}': see what it waits for, such as a disk, and "
              'start all workers again; raise start_seconds if that may take so long.',
              RunError.exit_code)
    return (f'{doing} does not end: not all workers are ready to train {limit:g} s (start_seconds) '
            'after they had met. This one hangs, or waits for one that does and says so. Start all '
            'workers again; raise start_seconds if they need longer.', WorkerGone.exit_code)

  def finish(self) -> None:
    """Ends the last phase and writes the last line; does nothing when called again."""
    with self._lock:
      if self._is_over.is_set():
        return
      self._is_over.set()
      self._end_phase()
      phases = [f'{name} {seconds:.1f}' for name, seconds in self.seconds.items()]
      write_line(f"ready in {time.monotonic() - self.started:.1f} s: {', '.join(phases)}",
                 self._stream)

  def _end_phase(self):
    now = time.monotonic()
    self.seconds[self._name] = now - self._phase_started
    self._phase_started = now

  def _beat(self):
    while not self._is_over.wait(_BEAT_SECONDS):
      with self._lock:
        if self._is_over.is_set():
          return
        now = time.monotonic()
        doing = self._doing() if callable(self._doing) else self._doing
        end = self._find_end(now, doing)
        if end is not None:
          end_process(*end)
          return
        if doing and now - self._phase_started >= _BEAT_SECONDS:
          write_line(f'{doing} … {now - self._phase_started:.0f} s', self._stream)
