"""The zoo: the package `models` beside `towers`, which `--model` chooses from.

If Python finds a `models` of the user's first, the zoo loads under another name.
"""

import functools
import importlib
import importlib.util
import os
import sys
from types import ModuleType

import towers

_FILE = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(towers.__file__))), 'models', '__init__.py')


@functools.lru_cache(maxsize=None)
def load_zoo() -> ModuleType:
  """Returns the package, which imports TensorFlow only to build a model."""
  found = importlib.util.find_spec('models')
  if found is not None and found.origin and os.path.samefile(found.origin, _FILE):
    return importlib.import_module('models')
  spec = importlib.util.spec_from_file_location('towers_models', _FILE)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module
  spec.loader.exec_module(module)
  return module
