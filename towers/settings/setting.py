"""Setting: what one of them is, the kinds of their values, and several in one frozen object."""

import contextlib
import dataclasses
import math
import numbers
import os
from typing import Any, Callable, Mapping, NamedTuple, NewType, Optional, Tuple, Union

import numpy as np

from towers.base.paths import check_local_path
from towers.base.usage_error import UsageError
from towers.input.micro_batches import AUTO

# Kinds of settings that no type of Python is.
Path = NewType('Path', str)  # Names a file or folder.
Text = NewType('Text', str)  # Free text and no path, such as '2epochs'.
Count = NewType('Count', int)  # A whole number, or 'auto'.
Function = NewType('Function', str)  # One of its choices, or names a function of one's own.


class Setting(NamedTuple):
  """A setting."""
  # 'program' or 'run' if `towers.Program` or `towers.train` takes it as an argument, 'command' if
  # the command line alone does.
  of: str
  name: str  # Of its flag, and of the argument.
  # int, float, bool, list for comma-separated numbers, str for one of its choices, `Count`,
  # `Function`, `Path` or `Text`.
  kind: Any
  default: Any  # Where it is not given.
  help: str  # One line.
  # Its choices; or a function from a value to what it must be instead, '' or None if it may.
  valid: Union[Tuple[str, ...], Callable[[Any], Optional[str]]] = ()
  # 'all' if the workers must share it, 'own' if each may have another one, as paths on its machine
  # and what changes no result; 'chief' if it is an output, which the chief alone writes.
  whose: str = 'all'
  alias: str = ''  # Another name of its flag.

  @property
  def choices(self) -> Tuple[str, ...]:
    """The values that it is one of, or ()."""
    return () if callable(self.valid) else tuple(self.valid)

  def check(self, value: Any) -> None:
    """Refuses by a UsageError a value that it cannot have."""
    name = self.name
    if value is None and self.default is None:
      return
    wanted = '' if _is_of_kind(value, self.kind) else WANTED.get(self.kind, '')
    if not wanted and callable(self.valid) and value != AUTO:
      wanted = self.valid(value) or ''
    if wanted:
      raise UsageError(f'{name}={value!r}: it must be {wanted}{self._find_line(value)}.'
                       if isinstance(value, str) else f'{name}={value}: it must be {wanted}.')
    if self.kind is Path:
      check_local_path(name, value)
    if self.choices and value not in self.choices and not (
        self.kind is Function and is_function(value)):
      own = ', or write module:function for your own' if self.kind is Function else ''
      raise UsageError(f"{name}={value}: choose one of {', '.join(self.choices)}{own}.")

  def _find_line(self, text):
    """Returns the line to write where a text holds the number that the setting takes."""
    with contextlib.suppress(ValueError):
      number = (float if self.kind is float else int)(text)
      if self.kind in (int, Count, float) and math.isfinite(number):
        return f', and not a text: write {self.name}={number:g}'
    return ''


def is_function(text: str) -> bool:
  """Whether a setting names a function: 'package.module:function' or 'path/file.py:function'."""
  return ':' in text


WANTED = {
    int: 'a whole number', Count: 'a whole number, or auto', float: 'a finite number, such as 0.1',
    list: 'finite numbers', bool: 'true or false', Path: 'a path', Text: 'text'}


def _is_of_kind(value, kind):
  """Whether a value is of a kind; NumPy's numbers are, and choices are compared elsewhere."""
  if kind is list:
    return all(_is_of_kind(number, float) for number in value)
  if kind is bool:
    return value in (True, False)
  if kind in (int, Count):
    return (isinstance(value, numbers.Integral) and not isinstance(value, bool)
            or kind is Count and value == AUTO)
  if kind is float:
    return (isinstance(value, numbers.Real) and not isinstance(value, bool)
            and math.isfinite(value))
  if kind is Text:  # A number of steps or segments is as good.
    return isinstance(value, (str, numbers.Real))
  return kind is not Path or isinstance(value, (str, os.PathLike))


class Values:
  """A value for each of some settings, by its name; those not given have defaults.

  A value that a setting cannot have, or that contradicts another one, is a UsageError.
  """

  @classmethod
  def of(cls, given: Mapping[str, Any]) -> Any:
    """Returns the settings among what is given by name, with NumPy's numbers as Python's."""
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    values = {field.name: given[field.name] for field in fields}
    return cls(**{name: value.item() if isinstance(value, np.generic) else value
                  for name, value in values.items()})


def values_of(settings: Mapping[str, Setting],
              together: Callable[[Any], None] = lambda values: None, **others: Any) -> Any:
  """Returns a class of `Values` for settings, and for `others`, which have these defaults.

  Each value is checked by itself, and then all of them `together`.
  """
  def check(values):
    for name, setting in settings.items():
      setting.check(getattr(values, name))
    together(values)

  fields = {**{name: setting.default for name, setting in settings.items()}, **others}
  return dataclasses.make_dataclass(
      '_Values', [(name, Any, default) for name, default in fields.items()], bases=(Values,),
      frozen=True, namespace=dict(__post_init__=check))
