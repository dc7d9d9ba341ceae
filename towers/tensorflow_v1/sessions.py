"""Sessions beside the plain one, and a hook before their runs."""

import functools
from typing import Any, Callable

from towers.tensorflow_v1.load import tf
from towers.tensorflow_v1.types import Graph, Session


class ServerSession(tf.Session):
  """What `tf.Session(target)` is, for the server of one worker; each of its runs happens once.

  TensorFlow numbers the runs of a server at random, and refuses one whose number it has met among
  the last 100,000, as a message that came twice. On 2.21 each run draws its number on a thread of
  its own, seeded with 32 bits: about one of 40,000 meets an equal one, and ends in an
  AbortedError. No op has run by then, so this asks for the run again.
  """

  def _call_tf_sessionrun(self, *arguments: Any) -> Any:
    while True:
      try:
        return super()._call_tf_sessionrun(*arguments)
      except tf.errors.AbortedError as error:
        if 'RunGraph (Worker) request was received twice' not in error.message:
          raise


class SharedSession:
  """A `tf.Session` that a program shares with its user, who may hand it to any tool.

    the program's own runs ──────────────────────────► tf.Session
    a tool's: Saver.restore, eval, run ──► tell() ──►

  A run of another's may read variables that are still to start from a file, and may move
  `global_step`. So `tell()` comes before each; those of the program cost nothing more. This is
  the session as the program itself runs it: all but its runs is the given one.

  Attributes:
    given: the `tf.Session`, whose runs are told.
    num_runs: how often it has run, for the program or a tool; a `Call` passes by the count.
  """

  def __init__(self, given: Session, tell: Callable[[], None]):
    """Lets each run that is asked of `given` call `tell()` before it begins."""
    self.given, self.graph, self.num_runs = given, given.graph, 0

    def run(function, *args, **kwargs):
      self.num_runs += 1
      return function(*args, **kwargs)

    def run_told(function, *args, **kwargs):
      tell()
      return run(function, *args, **kwargs)

    def make(make_callable, *args, **kwargs):
      return functools.partial(run_told, make_callable(*args, **kwargs))

    self.run, self.make_callable = functools.partial(run, given.run), given.make_callable
    # What needs no feed runs in a setup, and Keras asks for the last one.
    for name, call in dict(run=run_told, partial_run_setup=run_told, partial_run=run_told,
                           make_callable=make, _make_callable_from_options=make).items():
      setattr(given, name, functools.partial(call, getattr(given, name)))

  def __getattr__(self, name: str) -> Any:
    return getattr(self.given, name)


def private_session(graph: Graph) -> Session:
  """Returns a session on the CPU with threads of its own, for a graph beside the program's.

  It takes no GPU, and no thread that the program's session waits for: code that TensorFlow runs
  for that session may open it. The graph's lookup tables are filled.
  """
  session = tf.Session(graph=graph, config=tf.ConfigProto(
      device_count={'GPU': 0}, use_per_session_threads=True, inter_op_parallelism_threads=2))
  session.run(graph.get_collection(tf.GraphKeys.TABLE_INITIALIZERS))
  return session


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
