"""What ends a run that had begun, told as a user can read it."""

import os

_STDERR = 2


class RunError(Exception):
  """A run cannot go on: its data, its numbers, its devices or its disk failed.

  The message names what failed, where, and what to do; `main.py` prints it without a stack trace.
  """

  exit_code = 3


class WorkerGone(RunError):
  """Another worker is gone, and this one has nothing to be blamed for."""

  exit_code = 75  # EX_TEMPFAIL: to be started again, all workers together.


def end_process(reason: str, exit_code: int = RunError.exit_code) -> None:
  """Writes why, and ends the process without waiting for any thread."""
  # Not by print, whose lock the main thread may hold.
  os.write(_STDERR, (f'\ntowers: error: {reason}\n').encode())
  os._exit(exit_code)
