"""Threads of Python's, where an error names what keeps one from starting: `ulimit -u`, mostly."""

import resource
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable

from towers.process.run_error import RunError


def start_thread(work: Callable[..., Any], name: str, *arguments: Any) -> threading.Thread:
  """Starts a thread that does `work(*arguments)`, and that no end of the process waits for."""
  thread = threading.Thread(target=work, name=name, args=arguments, daemon=True)
  try:
    thread.start()
  except RuntimeError as error:
    raise _refusal(error) from None
  return thread


class Threads(ThreadPoolExecutor):
  """Threads for calls, the next of which starts with a call that finds none idle."""

  def submit(self, *call: Any, **arguments: Any) -> Future:
    """Takes a function and its arguments; raises a RunError if a thread cannot start."""
    try:
      return super().submit(*call, **arguments)
    except RuntimeError as error:
      raise _refusal(error) from None


def _refusal(error):
  limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
  return RunError(f'{error}: this user may have {limit} processes and threads (ulimit -u), or the '
                  'machine or its memory has no room: end other processes, or raise the limit.')
