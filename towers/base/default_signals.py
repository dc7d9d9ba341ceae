"""Default signals: how they end a process that can run no Python.

To load TensorFlow's library is one call that holds the interpreter's lock: 0.4 s on 1.14 and 1.4 s
on 2.21 where two cores have eight processes to run, and half a minute where they have many, or the
disk is slow. A thread that answers signals cannot run then. There is nothing to save yet, so the
kernel may end the process, which the shell reports as 128 plus the signal too.
"""

import contextlib
import os
import signal
import threading
from typing import Any, Iterator

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def wake(number: int, frame: Any) -> None:
  """Handles a signal that a thread answers: does nothing, but a handler makes Python tell it."""


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
  """Opens a context in which signals that `wake` handles end the process by themselves."""
  # The kernel never ends the first process of a container.
  is_able = threading.current_thread() is threading.main_thread() and os.getpid() != 1
  numbers = [number for number in HANDLED if signal.getsignal(number) is wake and is_able]
  for number in numbers:
    signal.signal(number, signal.SIG_DFL)
  try:
    yield
  finally:
    for number in numbers:
      signal.signal(number, wake)
