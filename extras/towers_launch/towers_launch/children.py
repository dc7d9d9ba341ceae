"""Children: several child processes, the user's signals, and the one loop that waits for both.

One thread does it all. It reads all pipes, so lines of different children never mix. Each child's
end and each signal wakes it (`signal.set_wakeup_fd`), so it sees the ends in their order.
"""

import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Callable, List, Optional, Sequence

from towers.base.output import write_line
from towers.process.signals import find_handled
from towers_launch.child_process import ChildProcess, Output

_ORPHANS = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'orphans.py')
_LONGEST_POLL_SECONDS = 3600.0  # The kernel takes no more than a month.


def say(text: str) -> None:
  """Writes a line of the launcher itself."""
  write_line(f'launch: {text}', sys.stderr)


class Children:
  """A context that handles signals, and whose children do not outlive this process.

  Attributes:
    ended: the children that have ended, in their order.
    interrupted_by: the number of the user's first signal, or None.
    wants_more: whether SIGUSR1 has asked for workers that were left out, since it was last reset.
  """

  def __init__(self) -> None:
    """Prepares; starts nothing."""
    self.ended: List[ChildProcess] = []
    self.interrupted_by: Optional[int] = None
    self.wants_more = False
    self._running: List[ChildProcess] = []
    self._are_leaving = False
    self._signals: List[int] = []  # Not answered yet.

  def __enter__(self) -> 'Children':
    """Handles signals from now on, and after the context too, where the process soon ends."""
    self._outputs = [Output(stream) for stream in (sys.stdout, sys.stderr)]
    self._orphans = subprocess.Popen([sys.executable, '-I', _ORPHANS], stdin=subprocess.PIPE,
                                     start_new_session=True)
    self._wakes, waker = os.pipe()
    for end in (self._wakes, waker):
      os.set_blocking(end, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    # A signal without a handler would not write to the pipe.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in [*find_handled(), signal.SIGUSR1]:
      signal.signal(number, lambda number, _: self._signals.append(number))
    return self

  def __exit__(self, *_) -> None:
    self._send(signal.SIGKILL)
    self.wait(self.have_ended)
    self._orphans.communicate()

  def start(self, name: str, command: Sequence[str], **settings: Any) -> ChildProcess:
    """Starts a child, with the arguments and errors of `ChildProcess`."""
    assert self._orphans.stdin is not None
    child = ChildProcess(name, command, orphans=self._orphans.stdin, outputs=self._outputs,
                         **settings)
    self._running.append(child)
    return child

  def have_ended(self) -> bool:
    """Returns whether all started children have ended."""
    return not self._running

  def wait(self, until: Callable[[], object], seconds: float = float('inf')) -> None:
    """Shows lines and answers signals until `until()` is true or the time is over."""
    deadline = time.monotonic() + seconds
    while True:
      self._answer_signals()
      left = deadline - time.monotonic()
      if until() or left <= 0:
        return
      self._poll(min(left, _LONGEST_POLL_SECONDS))

  def leave(self, grace_seconds: float) -> None:
    """Sends SIGTERM to all, and SIGKILL after the grace."""
    self._are_leaving = True
    self._send(signal.SIGTERM)
    self.wait(self.have_ended, grace_seconds)
    for child in self._running:
      say(f'{child.name} has not ended within {grace_seconds:g} s of SIGTERM, and is killed')
    self._send(signal.SIGKILL)
    self.wait(self.have_ended)
    self._are_leaving = False

  def _poll(self, seconds):
    """Waits for output, an end or a signal, for `seconds` at most."""
    readers = {descriptor: child for child in self._running for descriptor in child.descriptors}
    poll = select.poll()
    for descriptor in [self._wakes, *readers]:
      poll.register(descriptor, select.POLLIN)
    for descriptor, _ in poll.poll(1000 * seconds):
      if descriptor in readers:
        readers[descriptor].read(descriptor)
      else:
        os.read(self._wakes, 4096)
    for child in list(self._running):
      child.poll()
      if child.returncode is None:
        continue
      self._running.remove(child)
      self.ended.append(child)
      if child.has_failed:
        say(child.describe_end())

  def _answer_signals(self):
    while self._signals:
      number = self._signals.pop(0)
      if number == signal.SIGUSR1:
        self.wants_more = True
        continue
      name = signal.Signals(number).name
      if self.interrupted_by is not None:
        say(f'{name}: all are killed')
        self._send(signal.SIGKILL)
        continue
      self.interrupted_by = number
      # Children that are leaving had a signal, and would take this one for the second.
      if self._are_leaving:
        say(f'{name}: nothing starts again; a second signal kills all at once')
      else:
        say(f'{name}: forwarded to all, which leave by themselves; a second signal kills all at '
            'once')
        self._send(number)

  def _send(self, number):
    for child in self._running:
      child.send(number)
