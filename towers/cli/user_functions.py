"""Functions of your own that a flag names: --model=my_nets.small:model, --data=my_data.py:load."""

import functools
import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any, Callable, Dict, Optional

from towers.base.usage_error import UsageError

# What `towers.main` was given, by the name that its setting then has.
_GIVEN: Dict[str, Any] = {}


def give_function(function: Callable[..., Any]) -> str:
  """Returns a name under which `load_function` finds a function of this process."""
  module = getattr(function, '__module__', '') or '__main__'
  name = f"{module}:{getattr(function, '__name__', type(function).__name__)}"
  _GIVEN[name] = function
  return name


def load_function(setting: str, text: str) -> Callable[..., Any]:
  """Returns the function that the value `text` of a setting names, found from the current folder.

  A module or function that is not there, or cannot be imported, is a UsageError.
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


def is_given(text: str) -> bool:
  """Whether a setting names a function that a script gave, and no flag can name."""
  return text in _GIVEN


def give_predict(model_text: str, predict: Optional[Callable[..., Any]]) -> None:
  """Keeps what a model predicts, for `find_predict`; None forgets what an earlier call gave."""
  _GIVEN[f'{model_text}.predict'] = predict


def find_predict(model_text: str) -> Callable[..., Any]:
  """Returns what a model of one's own predicts, see `towers.export`; raises a UsageError.

  It is the function `predict` beside the model in its module, or the model's own attribute of that
  name, which a `KerasModel` has.
  """
  predict: Any = (_GIVEN.get(f'{model_text}.predict') or
                  getattr(load_function('model', model_text), 'predict', None))
  if predict is None and model_text not in _GIVEN:
    place = model_text.rpartition(':')[0]
    predict = getattr(_import('model', model_text, place), 'predict', None)
  if not callable(predict):
    fix = ('give it to towers.main beside the model' if model_text in _GIVEN else
           'write one beside the model')
    raise UsageError(f'export_dir and predict need a function that says what model={model_text} '
                     f'predicts, as `def predict(images): return {{"class": …}}`: {fix}.')
  return predict


def _import(setting: str, text: str, place: str) -> ModuleType:
  """Returns the module, from a file or by its name."""
  if place.endswith('.py') and not os.path.isfile(place):
    raise UsageError(f'{setting}={text}: there is no file {place}.')
  try:
    if not place.endswith('.py'):
      if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
      return importlib.import_module(place)
    return _import_file(os.path.abspath(place))
  except (ImportError, SyntaxError, ValueError) as error:
    raise UsageError(f'{setting}={text}: {place or "nothing"} cannot be imported: {error}. Write '
                     'package.module:function or path/file.py:function.') from None


@functools.lru_cache(maxsize=None)
def _import_file(path: str) -> ModuleType:
  """Returns the module of a file, which runs once however many functions are of it."""
  spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-len('.py')], path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  # A file may import those beside it.
  sys.path.insert(0, os.path.dirname(path))
  spec.loader.exec_module(module)
  return module
