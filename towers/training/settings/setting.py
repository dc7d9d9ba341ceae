"""Setting: what the command line knows of a field of `Config`, and the kinds of its values."""

import math
import os
from typing import Any, NamedTuple, Tuple

from towers.base.paths import check_local_path
from towers.base.usage_error import UsageError
from towers.input.micro_batches import AUTO
from towers.training.settings.functions import is_function


class Path(str):
  """The kind of a setting that names a file or folder."""


class Text(str):
  """The kind of a setting that is free text and no path, such as '2epochs'."""


class Count(int):
  """The kind of a setting that is a whole number, or 'auto'."""


class Function(str):
  """The kind of a setting that is one of `choices`, or names a function of one's own."""


class Setting(NamedTuple):
  """What the command line knows of a field.

  Attributes:
    group: its heading in the help.
    help: one line.
    kind: int, float, bool, list for comma-separated numbers, str for one of `choices`, `Count`,
      `Function`, `Path` or `Text`.
    choices: the valid values of a str.
  """
  group: str
  help: str
  kind: type
  choices: Tuple[str, ...] = ()


def check_value(name: str, value: Any, setting: Setting) -> None:
  """Refuses a value of the wrong kind, or that is none of the choices.

  Raises:
    UsageError: names the setting, the value and what it must be.
  """
  if value is None:
    return
  numbers = value if setting.kind is list else [value] if setting.kind is float else []
  wrong = [number for number in numbers if not _is_finite(number)]
  if wrong:
    raise UsageError(f'{name}={wrong[0]}: it must be a finite number.')
  if setting.kind is int and (isinstance(value, bool) or not isinstance(value, int)):
    raise UsageError(f'{name}={value}: it must be a whole number.')
  if setting.kind is Count and value != AUTO and (
      isinstance(value, bool) or not isinstance(value, int)):
    raise UsageError(f'{name}={value}: it must be a whole number, or auto.')
  if setting.kind is Path:
    if not isinstance(value, (str, os.PathLike)):
      raise UsageError(f'{name}={value}: it must be a path.')
    check_local_path(name, value)
  if setting.kind is Function and is_function(value):
    return
  if setting.choices and value not in setting.choices:
    own = ', or write module:function for your own' if setting.kind is Function else ''
    raise UsageError(f"{name}={value}: choose one of {', '.join(setting.choices)}{own}.")


def _is_finite(value: Any) -> bool:
  is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
  return is_number and math.isfinite(value)
