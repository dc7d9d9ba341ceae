"""Source: the line of a program that made an op."""

import os
import re
from typing import Any

from tensorflow_v1 import tf

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Whose lines are nobody's program.
_OURS = tuple(os.path.join(folder, '') for folder in (
    os.path.join(_ROOT, 'towers'), os.path.join(_ROOT, 'staging'), tf.sysconfig.get_lib()))
# Python's own, installed packages, and what AutoGraph makes of a function.
_LIBRARIES = re.compile(r'{}|.*[/\\](site|dist)-packages[/\\]|.*[/\\]tmp\w{{8}}\.py$'.format(
    re.escape(os.path.join(os.path.dirname(os.path.abspath(os.__file__)), ''))))


def format_op(op: Any) -> str:
  """Returns an op's name with the innermost line of the program that made it."""
  return op.name + find_line(op)


def find_line(op: Any) -> str:
  """Returns ', made in FILE, line N', the innermost line of the program, or '' where there is none.

  Lines of an installed package count only where there are no others.
  """
  frames = [(os.path.abspath(frame[0]), frame[1]) for frame in reversed(list(op.traceback or []))]
  frames = [frame for frame in frames if not frame[0].startswith(_OURS)]
  frames = [frame for frame in frames if not _LIBRARIES.match(frame[0])] or frames
  if not frames:
    return ''
  path, line = frames[0]
  nearby = os.path.relpath(path)
  return f', made in {path if nearby.startswith(os.pardir) else nearby}, line {line}'
