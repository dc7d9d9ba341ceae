"""The one exception for a user's mistakes, and what all errors share whose message says all.

A message names the setting, both numbers and the fix, since the user sees nothing else: a program
that does not catch it ends with a line on stderr and its exit code, without a stack trace. Whatever
takes what a user gives may raise one; any other exception is a bug.
"""

import functools
import inspect
import os
import re
import sys
import traceback
from typing import Any, Callable, Collection, List, Sequence, Tuple, TypeVar

from towers.base.output import write_line

_SHOWN = 8
Item = TypeVar('Item')


class ToldError(Exception):
  """An error whose message says all.

  Attributes:
    exit_code: of a program that it ends.
    label: of the line that the program then writes.
  """

  exit_code = 1
  label = 'error: '

  def __init__(self, message: str):
    """Takes the message; from now on the interpreter shows such an error as `tell` does."""
    super().__init__(message)
    before = sys.excepthook
    if getattr(before, 'func', None) is not _end:
      sys.excepthook = functools.partial(_end, before)

  def tell(self) -> int:
    """Writes the message to stderr; returns the exit code."""
    write_line(f'towers: {self.label}{self}', sys.stderr)
    return self.exit_code

  def _render_traceback_(self) -> List[str]:
    """Returns the lines that a notebook shows."""
    return [f'{type(self).__name__}: {self}']


def _end(before, kind, error, trace):
  """Ends a program by an error that it has not caught."""
  is_interactive = sys.flags.interactive or hasattr(sys, 'ps1')
  if not isinstance(error, ToldError) or is_interactive:
    before(kind, error, trace)
    return
  if before is not sys.__excepthook__:  # Such as one that reports errors elsewhere.
    before(kind, error, trace)
  code = error.tell()
  line = find_own_line(trace) if isinstance(error, UsageError) else ''
  if line and line not in str(error):
    write_line(f'  at {line}', sys.stderr)
  raise SystemExit(code)


# A function as AutoGraph writes it anew.
AUTOGRAPH_COPY = r'.*[/\\](?:tmp\w{8}|__autograph_generated_file\w*)\.py$'


def find_own_line(trace: Any) -> str:
  """Returns the innermost line of a trace that is the program's own, with its place; or ''."""
  import sysconfig  # Not at each start.

  paths, root = sysconfig.get_paths(), os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
  others = ('<string>', *(os.path.join(folder, '') for folder in (
      paths['stdlib'], paths['purelib'], paths['platlib'],
      *(os.path.join(root, name) for name in ('towers', 'staging', 'models', 'extras')))))
  return next((f'{place.filename}:{place.lineno}: {place.line}'.rstrip(': ')
               for place in traceback.extract_tb(trace)[::-1]
               if not (place.filename.startswith(others)
                       or re.match(AUTOGRAPH_COPY, place.filename))), '')


class UsageError(ToldError, ValueError):
  """A flag, file, shape or environment that cannot work; raised before anything expensive."""

  exit_code = 2


def check_choice(setting: str, value: Any, choices: Collection[Any]) -> None:
  """Refuses a value of a setting that is none of its choices."""
  if value not in choices:
    raise UsageError(f"{setting}={value}: choose one of {', '.join(choices)}.")


def check_same_number(first: int, of_first: str, second: int, of_second: str, *, fix: str) -> None:
  """Refuses two numbers that must be equal and differ: `zip` would silently take the smaller one.

  `of_first` and `of_second` are the plural nouns of what they count, and `fix` is a sentence.
  """
  if first != second:
    raise UsageError(f'{first} {of_first}, but {second} {of_second}: {fix}')


def check_parameters(function: Callable[..., Any], what: str, *names: str, fix: str) -> None:
  """Refuses a function that cannot take the arguments of these names, in order; `what` it is."""
  try:
    signature = inspect.signature(function)
  except (TypeError, ValueError):  # Of some built-in functions.
    return
  try:
    signature.bind(*names)
  except TypeError:
    raise UsageError(f"{what} takes {signature}, and is called with ({', '.join(names)}): "
                     f'{fix}.') from None


def first_few(items: Sequence[Item]) -> Tuple[List[Item], int]:
  """Returns as many items as a message shows, and the number of the others."""
  return list(items[:_SHOWN]), max(0, len(items) - _SHOWN)


def format_lines(lines: Sequence[str]) -> str:
  """Returns the first few lines for a message, indented, and the number of the others."""
  shown, others = first_few(lines)
  return '\n'.join(f'  {line}' for line in [*shown, *([f'… and {others} more'] if others else [])])
