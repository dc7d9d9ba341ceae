"""A hook that runs before a session runs any op of a graph."""

from typing import Any, Callable

from tensorflow_v1.types import Graph


def before_each_run(graph: Graph, hook: Callable[[], Any]) -> None:
  """Calls `hook()` before each run of a session of the graph, while new ops can be changed.

  A `Call`, or the result of `Session.make_callable`, calls it once, when it is made.
  """
  # A session takes this lock to send new ops to TensorFlow, which it tries in each run.
  take_lock = graph._session_run_lock

  def call_and_take_lock():
    hook()
    return take_lock()

  graph._session_run_lock = call_and_take_lock
