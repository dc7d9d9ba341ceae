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
  """The session as the program itself runs it: all but `run` and `make_callable` is the given one.

  Attributes:
    given: the `tf.Session`, whose runs are told.
  """

  def __init__(self, given: Session, tell: Callable[[], None]):
    """Lets each run that is asked of `given` call `tell()` before it begins."""
    self.given = given
    self.run, self.make_callable, self.graph = given.run, given.make_callable, given.graph

    def told(function, *args, **kwargs):
      tell()
      return function(*args, **kwargs)

    def make_callable(*args, **kwargs):
      return functools.partial(told, self.make_callable(*args, **kwargs))

    given.run, given.make_callable = functools.partial(told, self.run), make_callable

  def __getattr__(self, name: str) -> Any:
    return getattr(self.given, name)
