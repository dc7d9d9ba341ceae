"""Source: the line of a program that made an op."""

import functools
import os
import re

from towers.base.usage_error import AUTOGRAPH_COPY
from towers.tensorflow_v1 import Operation, tf

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Folders whose lines are no part of the user's program.
_OURS = tuple(os.path.join(folder, '') for folder in (
    *(os.path.join(_ROOT, folder) for folder in ('towers', 'staging')),
    tf.sysconfig.get_lib()))
_PYTHON = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), '')
# Python itself, installed packages, and copies of functions.
_LIBRARIES = re.compile(
    re.escape(_PYTHON) + r'|.*[/\\](site|dist)-packages[/\\]|' + AUTOGRAPH_COPY)


@functools.lru_cache(maxsize=None)
def is_ours(path: str) -> bool:
  """Returns whether a file is of this library or of TensorFlow."""
  return os.path.abspath(path).startswith(_OURS)


def format_op(op: Operation) -> str:
  """Returns an op's name with the innermost line of the program that made it."""
  return op.name + find_line(op)


def find_line(op: Operation) -> str:
  """Returns ', made in FILE, line N', the innermost line of the program, or '' if there is none.

  A line of an installed package counts only if no line of the program made the op.
  """
  frames = [(os.path.abspath(frame[0]), frame[1]) for frame in reversed(list(op.traceback or []))]
  frames = [frame for frame in frames if not is_ours(frame[0])]
  frames = [frame for frame in frames if not _LIBRARIES.match(frame[0])] or frames
  if not frames:
    return ''
  path, line = frames[0]
  nearby = os.path.relpath(path)
  return f', made in {path if nearby.startswith(os.pardir) else nearby}, line {line}'
