"""Patterns: regular expressions that choose variables by the beginning of their names.

`encoder/` chooses everything below encoder, and `.*biases` all biases.
"""

import re
from typing import Any, Dict, Iterable, List, Optional

from towers.base.usage_error import UsageError

_SHOWN = 4


def compile_pattern(setting: str, pattern: str) -> Any:
  """Returns the compiled pattern of a setting; a UsageError if it is no regular expression."""
  try:
    return re.compile(pattern)
  except re.error as error:
    raise UsageError(f'{setting}={pattern} is no regular expression: {error}. It is matched with '
                     'the beginning of names, as encoder/ or .*biases.') from None


def choose(setting: str, pattern: str, names: Iterable[str], *, what: str) -> List[str]:
  """Returns the names that a setting's pattern matches; `what` they are is for the message."""
  compiled, names = compile_pattern(setting, pattern), list(names)
  found = [name for name in names if compiled.match(name)]
  if not found:
    raise UsageError(f'{setting}={pattern} matches no {what}: there are {shorten(names)}. A '
                     'pattern is matched with the beginning of a name, as encoder/ or .*biases.')
  return found


def list_patterns(given: Iterable[str]) -> List[str]:
  """Returns the patterns of a list, or of a string with commas between them as a flag has it."""
  return list(given) if not isinstance(given, str) else given.split(',') if given else []


def choose_all(setting: str, patterns: Iterable[str], names: Iterable[str], *,
               what: str) -> List[str]:
  """Returns the names that one of several patterns matches, as `choose`."""
  names = list(names)
  return [name for pattern in list_patterns(patterns)
          for name in choose(setting, pattern, names, what=what)]


def parse_pairs(setting: str, text: Optional[str], *, like: str) -> Dict[str, str]:
  """Returns the pairs of a flag, 'PATTERN=VALUE' with commas between them."""
  parts = text.split(',') if text else []
  for part in parts:
    if '=' not in part:
      raise UsageError(f'{setting}={text}: {part!r} has no =. Give pairs with commas between them, '
                       f'as {like}.')
    compile_pattern(setting, part.split('=')[0])
  return dict(tuple(part.split('=', 1)) for part in parts)  # type: ignore[misc]


def shorten(names: Iterable[str]) -> str:
  """Returns the first few names, and the number of the others."""
  names = list(names)
  more = f' and {len(names) - _SHOWN} more' if len(names) > _SHOWN else ''
  return (', '.join(names[:_SHOWN]) or 'none') + more
