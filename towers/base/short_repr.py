"""Short repr: a part of a program in one line, with what it may be asked for."""

import dataclasses
from typing import Any


def short_repr(part: Any) -> str:
  """Returns the class of a part, and its attributes: the names and numbers, or how many it has."""
  said = []
  for name in getattr(part, '_fields', None) or [field.name for field in dataclasses.fields(part)]:
    value = getattr(part, name)
    if isinstance(value, (bool, int, float, str)):
      said.append(f'{name}={value!r}')
    elif isinstance(value, (list, tuple, dict)) and not hasattr(value, '_fields'):
      said += [f'{name}: {len(value)}'] if value else []
    elif value is not None:
      said.append(name)
  return f"<{type(part).__name__} of {', '.join(said)}>"
