"""Errors that end a run after its start, in words for its user."""

import os
from typing import Any, Optional

from towers.base.output import write_at_once
from towers.base.usage_error import ToldError


class RunError(ToldError):
  """A run cannot go on: its data, values, devices or disk failed.

  The message names what failed, where, and the fix.
  """

  exit_code = 3


class WorkerGone(RunError):
  """Another worker is gone; nothing is wrong with this one."""

  exit_code = 75  # EX_TEMPFAIL: start all workers again.


class OutOfMemory(RunError):
  """A device has no room for what a step computes.

  Attributes:
    accumulate: the next number of micro-batches, which take less memory; None if more of them
      cannot help.
    cause: the device and what it has no room for, in words.
    step: how many steps were done.
    error: TensorFlow's, which says what has failed.
    activity: what the program was doing, in words.
    snapshot: of the run between two steps, to go on from in more micro-batches; None if the failed
      step may have changed a variable. Only where a run asks for it.
  """

  def __init__(self, message: str, *, cause: str, step: int, accumulate: Optional[int] = None,
               error: Any = None, activity: str = 'training'):
    super().__init__(message)
    self.cause, self.step = cause, step
    self.accumulate, self.activity = accumulate, activity
    self.error: Any = error
    self.snapshot: Any = None


class StartAgain(RunError):
  """All workers must start again, which they then do in more micro-batches."""

  exit_code = 76


def end_process(reason: str, exit_code: int = RunError.exit_code) -> None:
  """Writes the reason to stderr and ends the process without waiting for any thread."""
  write_at_once(f'\ntowers: error: {reason}\n')
  os._exit(exit_code)
