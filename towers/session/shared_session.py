"""A `tf.Session` that a program shares with its user, who may hand it to any tool.

  the program's own runs ──────────────────────────► tf.Session
  a tool's: Saver.restore, eval, run ──► tell() ──►

A run of another's may read variables that are still to start from a file, and may move
`global_step`. So each is told before it begins; those of the program cost nothing more.
"""

import functools
from typing import Any, Callable

from towers.tensorflow_v1 import Session


class SharedSession:
  """The session as the program itself runs it: all but its runs is the given one.

  Attributes:
    given: the `tf.Session`, whose runs are told.
    num_runs: how often it has run, whoever asked; a `Call` passes by the count.
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
