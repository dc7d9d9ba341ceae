"""Functions of your own that a flag names: --model=my_nets.small:model, --data=my_data.py:load."""

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any, Callable, Dict

from towers.base.usage_error import UsageError

# What `towers.main` was given, by the name that its setting then has.
_GIVEN: Dict[str, Callable[..., Any]] = {}


def is_function(text: str) -> bool:
  """Whether a setting names a function: 'package.module:function' or 'path/file.py:function'."""
  return ':' in text


def give_function(function: Callable[..., Any]) -> str:
  """Returns a name under which `load_function` finds a function of this process."""
  module = getattr(function, '__module__', '') or '__main__'
  name = f"{module}:{getattr(function, '__name__', type(function).__name__)}"
  _GIVEN[name] = function
  return name


def load_function(setting: str, text: str) -> Callable[..., Any]:
  """Returns the function that the value `text` of a setting names.

  Modules are found as Python finds them from the current folder.

  Raises:
    UsageError: there is no such module or function, or it cannot be imported.
  """
  if text in _GIVEN:
    return _GIVEN[text]
  place, _, name = text.rpartition(':')
  function: Any = _import(setting, text, place)
  for part in name.split('.'):
    function = getattr(function, part, None)
  if not callable(function):
    raise UsageError(f'{setting}={text}: {place} has no function {name}. Write module:function, '
                     'with a function that the module has at its top.')
  return function


def _import(setting: str, text: str, place: str) -> ModuleType:
  """Returns the module, from a file or by its name."""
  try:
    if not place.endswith('.py'):
      if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
      return importlib.import_module(place)
    if not os.path.isfile(place):
      raise UsageError(f'{setting}={text}: there is no file {place}.')
    name = os.path.basename(place)[:-len('.py')]
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A file may import those beside it.
    sys.path.insert(0, os.path.dirname(os.path.abspath(place)))
    spec.loader.exec_module(module)
    return module
  except (ImportError, SyntaxError, ValueError) as error:
    raise UsageError(f'{setting}={text}: {place or "nothing"} cannot be imported: {error}. Write '
                     'package.module:function or path/file.py:function.') from None
