"""The one exception for a user's mistakes.

A message names the setting, both numbers and the fix, since the user sees nothing else: `main.py`
prints it to stderr without a stack trace and exits with code 2. Any other exception is a bug.
"""

import inspect
from typing import Any, Callable, Collection, List, Sequence, Tuple

_SHOWN = 8


def show_message(error: Exception) -> List[str]:
  """Returns the lines that a notebook shows of an error whose message says all: no stack trace."""
  return [f'{type(error).__name__}: {error}']


class UsageError(ValueError):
  """A flag, file, shape or environment that cannot work; raised before anything expensive starts.
  """

  _render_traceback_ = show_message

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


def first_few(items: Sequence[str]) -> Tuple[List[str], int]:
  """Returns as many items as a message shows, and the number of the others."""
  return list(items[:_SHOWN]), max(0, len(items) - _SHOWN)


def format_lines(lines: Sequence[str]) -> str:
  """Returns the first few lines for a message, indented, and the number of the others."""
  shown, others = first_few(lines)
  return '\n'.join(f'  {line}' for line in [*shown, *([f'… and {others} more'] if others else [])])
