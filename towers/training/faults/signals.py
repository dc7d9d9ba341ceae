"""Signals: the first Ctrl-C or SIGTERM asks the run to save and leave, the second one ends it at
once.

              set-up, warm-up    training, validation, saving
  first       leaves at once     finishes the session's run, saves, leaves
  second                         leaves at once

Python runs a signal's handler between two bytecodes of the main thread, so never while that waits
for a step that does not end. Here a thread is woken by the signal itself (`signal.set_wakeup_fd`),
and ends the process where the main thread cannot. Exit codes are those of a shell: 130 for SIGINT,
143 for SIGTERM.
"""

import os
import select
import signal
import threading
import time
from typing import Any, Callable, Optional

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A run that answers no sooner is taken to hang; a step that is known to take longer gets twice its
# time.
_SECONDS_TO_ANSWER = 4.0
_SECONDS_TO_CLOSE = 2.0
_STDERR = 2
# What is written to the pipe besides the numbers of signals.
_END, _LOOK_AGAIN = b'\0', b'\xff'


class Interrupted(Exception):
  """The run leaves, as a signal asked it to."""

  def __init__(self, number: int, told: str):
    """Takes the signal's number, and what became of the run."""
    super().__init__(f'{signal.Signals(number).name}: {told}')
    self.exit_code = exit_code(number)


def exit_code(number: int) -> int:
  """Returns the exit code of a process that a signal ended."""
  return 128 + number


class Signals:
  """While entered, signals are taken as above.

  Attributes:
    received: the number of the first signal that a run shall act upon, or None.
  """

  def __init__(self, *, leave: Callable[[int], Any] = os._exit,
               clock: Callable[[], float] = time.monotonic):
    """Prepares; `leave(exit_code)` ends the process."""
    self.received: Optional[int] = None
    self._step_seconds: Optional[Callable[[], float]] = None
    self._deadline: Optional[float] = None
    self._late = ''
    self._leave = leave
    self._clock = clock

  def __enter__(self) -> 'Signals':
    """Takes signals from now on; only the main thread may, elsewhere nothing changes."""
    self._is_main = threading.current_thread() is threading.main_thread()
    if self._is_main:
      self._reader, self._waker = os.pipe()
      os.set_blocking(self._waker, False)
      self._outer_waker = signal.set_wakeup_fd(self._waker)
      # The thread does all; but without a handler in Python nothing would be written to the pipe.
      self._outer = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
      self._thread = threading.Thread(target=self._watch, name='signals', daemon=True)
      self._thread.start()
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
    """From now on the first signal is left to the run, which looks at `received` between two steps.

    Args:
      step_seconds: tells how long a step takes.
    """
    self._step_seconds = step_seconds

  def answer(self) -> None:
    """The run has taken notice, and saves; that takes the time that it takes."""
    self._deadline = None
    self.look_again()

  def has_saved(self) -> None:
    """The run has saved, and has to be gone soon."""
    if self.received is not None:  # Else another worker was asked.
      self._set_deadline(_SECONDS_TO_CLOSE, 'saved; left without closing the session, which takes '
                                            'too long')

  def _set_deadline(self, seconds, late):
    self._late = late
    self._deadline = self._clock() + seconds
    self.look_again()

  def look_again(self) -> None:
    """Makes the thread look at the time."""
    if self._is_main:
      os.write(self._waker, _LOOK_AGAIN)

  def _watch(self):
    """In a thread: reads one byte for each signal."""
    poll = select.poll(
    )  # Which, unlike select, also takes the handles of a process with very many.
    poll.register(self._reader, select.POLLIN)
    while True:
      deadline = self._deadline
      if not poll.poll(None if deadline is None else 1e3 * max(0.0, deadline - self._clock())):
        if deadline == self._deadline:
          self._end(self._late, self.received)
          self._deadline = None
        continue
      number = os.read(self._reader, 1)
      if number == _END:
        return
      if number == _LOOK_AGAIN or number[0] not in _SIGNALS:
        continue
      if self.received is not None or self._step_seconds is None:
        self._end('interrupted', number[0])
        continue
      self._set_deadline(max(_SECONDS_TO_ANSWER, 2 * self._step_seconds()),
                         'the step does not end; left without saving')
      _say(f'{signal.Signals(number[0]).name}: the run saves and leaves; once more ends it at once')
      self.received = number[0]

  def _end(self, reason, number):
    _say(f'{signal.Signals(number).name}: {reason}')
    self._leave(exit_code(number))


def _say(text):
  # Not by print, whose lock the main thread may hold.
  os.write(_STDERR, (f'\ntowers: {text}\n').encode())
