"""Signals: the first Ctrl-C, SIGTERM or SIGHUP makes the run save and exit, the second ends it.

              set-up, warm-up    training, validation, saving
  first       exits at once      finishes the session's run, saves, exits
  second                         exits at once

Python runs a signal handler between two bytecodes of the main thread: after a step at once, but
never while it waits for one that does not end. So the handler tells the run, and the signal itself
wakes a thread (`signal.set_wakeup_fd`), which says so, and ends the process if the main thread
cannot; while TensorFlow loads, `default_signals` does. Exit codes are those of a shell: 130 for
SIGINT, 143 for SIGTERM, 129 for SIGHUP, which a terminal sends when it is closed. In a notebook the
process is the kernel, with all that the user has there: Ctrl-C ends its cell by a KeyboardInterrupt
instead.
"""

import _thread
import math
import os
import select
import signal
import sys
import threading
import time
from typing import Callable, List, Optional

from towers.base.default_signals import HANDLED, FirstSignal
from towers.base.output import is_notebook, write_at_once
from towers.base.usage_error import ToldError
from towers.process.threads import start_thread

# A run that answers later hangs, unless twice the time of a step is more.
_SECONDS_TO_ANSWER = 4.0
_SECONDS_TO_CLOSE = 2.0
# Bytes in the pipe that are no signal numbers.
_END, _LOOK_AGAIN = b'\0', b'\xff'


class Interrupted(ToldError):
  """A signal ended the run."""

  label = ''

  def __init__(self, number: int, outcome: str):
    super().__init__(f'{signal.Signals(number).name}: {outcome}')
    self.exit_code = exit_code(number)


def exit_code(number: int) -> int:
  """Returns the exit code of a process that a signal ended."""
  return 128 + number


def find_handled() -> List[int]:
  """Returns the signals to handle: not SIGHUP where `nohup` says to ignore it."""
  return [number for number in HANDLED
          if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


class Signals(FirstSignal):
  """Handles signals as above while entered: a run acts upon the first that is `received`."""

  def __init__(self):
    self._step_seconds: Optional[Callable[[], float]] = None
    # Of the thread, and of the run, which may answer before the thread has read the signal.
    self._first: Optional[int] = None
    self._answer_by = math.inf
    self._is_answered, self._close_by = False, math.inf
    self._in_cell, self._ends_cell = is_notebook(sys.stdout), False

  def __enter__(self) -> 'Signals':
    """Takes over the signals in the main thread; in another thread nothing changes."""
    self._is_main = threading.current_thread() is threading.main_thread()
    if self._is_main:
      self._reader, self._waker = os.pipe()
      os.set_blocking(self._waker, False)
      self._outer_waker = signal.set_wakeup_fd(self._waker)
      self._outer = {number: signal.signal(number, self) for number in find_handled()}
      if self._in_cell:
        signal.signal(signal.SIGINT, self._interrupt)
      self._thread = start_thread(self._watch, 'signals')
    return self

  def __exit__(self, *_) -> None:
    if self._is_main:
      for number, handler in self._outer.items():
        signal.signal(number, handler)
      signal.set_wakeup_fd(self._outer_waker)
      os.write(self._waker, _END)
      self._thread.join()
      os.close(self._reader)
      os.close(self._waker)

  def leave_to_run(self, step_seconds: Callable[[], float]) -> None:
    """Leaves the first signal to the run, whose steps take so long, and which checks `received`."""
    self._step_seconds = step_seconds

  def answer(self) -> None:
    """Says that the run is saving, which may take any time."""
    self._is_answered = True
    self.look_again()

  def has_saved(self) -> None:
    """Says that the run has saved, and gives it little time to exit."""
    self._close_by = time.monotonic() + _SECONDS_TO_CLOSE
    self.look_again()

  def look_again(self) -> None:
    """Wakes the thread, so that it reads the deadline again."""
    if self._is_main:
      os.write(self._waker, _LOOK_AGAIN)

  def _watch(self):
    """Reads one byte per signal, in a thread."""
    poll = select.poll()  # Unlike select, it takes file descriptors above 1023.
    poll.register(self._reader, select.POLLIN)
    while True:
      deadline = self._find_deadline()
      milliseconds = None if deadline == math.inf else 1e3 * max(0.0, deadline - time.monotonic())
      if not poll.poll(milliseconds):
        if deadline == self._find_deadline():
          self._end('saved; left without closing the session, which takes too long'
                    if self._is_answered else 'the step does not end; left without saving',
                    self._first)
          self._first = None
        continue
      number = os.read(self._reader, 1)
      if number == _END:
        return
      if number == _LOOK_AGAIN or number[0] not in HANDLED or self._ends_cell:
        continue
      if self._first is not None or self._step_seconds is None:
        self._end('interrupted', number[0])
        continue
      self._answer_by = time.monotonic() + max(_SECONDS_TO_ANSWER, 2 * self._step_seconds())
      self._first = number[0]
      _say(f'{signal.Signals(number[0]).name}: the run saves and exits; a second one ends it at '
           'once')

  def _find_deadline(self):
    """Returns by when a run that a signal is left to must be further; infinity for any time."""
    if self._first is None:
      return math.inf
    return self._close_by if self._is_answered else self._answer_by

  def _end(self, reason, number):
    _say(f'{signal.Signals(number).name}: {reason}')
    if self._in_cell and number == signal.SIGINT:
      self._ends_cell = True
      _thread.interrupt_main()
    else:
      os._exit(exit_code(number))

  def _interrupt(self, number, frame):
    """Ends the cell in the main thread, once the other thread has decided so."""
    self(number, frame)
    if self._ends_cell:
      raise KeyboardInterrupt


def _say(text):
  write_at_once(f'\ntowers: {text}\n')
