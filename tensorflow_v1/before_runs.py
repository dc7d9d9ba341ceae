"""What a graph does before any of its ops run."""

from typing import Any, Callable


def before_each_run(graph: Any, hook: Callable[[], Any]) -> None:
  """Calls `hook()` before each run of a session of the graph, while ops that are new can be
  changed.

  A `Call`, and what `Session.make_callable` returns, calls it when it is made and not again.
  """
  # A session takes this lock whenever it sends new ops to TensorFlow, which it tries in each run.
  take_lock = graph._session_run_lock

  def call_and_take_lock():
    hook()
    return take_lock()

  graph._session_run_lock = call_and_take_lock
