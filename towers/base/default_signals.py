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
from typing import Any, Iterator, Optional

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class FirstSignal:
  """The handler of signals that a thread answers, which Python wakes only if there is a handler.

  Attributes:
    received: the number of the first signal, or None.
  """

  received: Optional[int] = None

  def __call__(self, number: int, frame: Any) -> None:
    """Keeps the first."""
    self.received = self.received or number


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
  """Opens a context in which what a `FirstSignal` handles ends the process by itself."""
  # The kernel never ends the first process of a container.
  is_able = threading.current_thread() is threading.main_thread() and os.getpid() != 1
  handlers = {number: signal.signal(number, signal.SIG_DFL) for number in HANDLED
              if is_able and isinstance(signal.getsignal(number), FirstSignal)}
  try:
    yield
  finally:
    for number, handler in handlers.items():
      signal.signal(number, handler)
