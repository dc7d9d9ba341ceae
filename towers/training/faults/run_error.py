"""Errors that end a run after its start, in words for its user."""

import os

from towers.base.output import write_at_once


class RunError(Exception):
  """A run cannot go on: its data, values, devices or disk failed.

  The message names what failed, where, and the fix; `main.py` prints it without a stack trace.
  """

  exit_code = 3


class WorkerGone(RunError):
  """Another worker is gone; nothing is wrong with this one."""

  exit_code = 75  # EX_TEMPFAIL: start all workers again.


def end_process(reason: str, exit_code: int = RunError.exit_code) -> None:
  """Writes the reason to stderr and ends the process without waiting for any thread."""
  write_at_once(f'\ntowers: error: {reason}\n')
  os._exit(exit_code)
