"""Modules of public repositories, which lie side by side in the folder that FIELD_FOLDER names.

Their code stays outside of this project and is not changed. What they import and the environment
does not have is stood in for by modules that can do nothing. On TensorFlow 2.x their `tensorflow`
is compat.v1; those that need more of 1.x, as tf.contrib, are skipped.
"""

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import types
from typing import Any, Iterator, List, Tuple

import pytest
from absl import flags

from towers.tensorflow_v1 import tf

FOLDER = os.environ.get('FIELD_FOLDER', '')


class Blank:
  """What stands in for classes of packages that are not installed: it keeps what is named."""

  def __init__(self, *_: Any, **named: Any) -> None:
    vars(self).update(named)


class Missing(types.ModuleType):
  """A package that is not installed: what is in it is such a module again, a decorator, or a
  class."""
  __path__: List[str] = []

  def __init__(self, name: str, *_: Any) -> None:
    super().__init__(name)

  def __getattr__(self, name: str) -> Any:
    if name.startswith('__'):
      raise AttributeError(name)
    is_class = name[0].isupper() and not name.isupper()
    setattr(self, name, type(name, (Blank,), {}) if is_class else Missing(name))
    return vars(self)[name]

  def __call__(self, *args: Any, **_: Any) -> Any:
    is_decorator = len(args) == 1 and isinstance(args[0], (type, types.FunctionType))
    return args[0] if is_decorator else Missing('called')


class MissingFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds what no other finder has, so it stands last."""

  def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
    del path, target
    if fullname.startswith('tensorflow.'):
      return None
    return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

  def create_module(self, spec: Any) -> Missing:
    return Missing(spec.name)

  def exec_module(self, module: Any) -> None:
    pass


def write(text: str) -> str:
  """Writes a file that a repository reads; returns its path."""
  path = os.path.join(tempfile.mkdtemp(), 'file')
  with open(path, 'w') as file:
    file.write(text)
  return path


@contextlib.contextmanager
def within(folder: str) -> Iterator[None]:
  """Runs in a folder, as programs that name files by where they are started."""
  before = os.getcwd()
  os.chdir(folder)
  try:
    yield
  finally:
    os.chdir(before)


@contextlib.contextmanager
def as_tensorflow_1() -> Iterator[None]:
  """Makes `tensorflow` that of 1.x; skips where 2.x lacks what is asked for."""
  if tf.__version__[0] == '1':
    yield
    return
  before, sys.modules['tensorflow'] = sys.modules['tensorflow'], tf
  try:
    yield
  except (AttributeError, ImportError) as error:
    if "'tensorflow" not in str(error):
      raise
    pytest.skip(f'TensorFlow 2.x lacks what this repository needs: {error}')
  finally:
    sys.modules['tensorflow'] = before


@contextlib.contextmanager
def importing(path: str, arguments: Tuple[str, ...],
              without: Tuple[str, ...]) -> Iterator[None]:
  """Imports from a path first, and leaves none of its modules: many have a `model` or `utils`."""
  # A checkout of this project has a `models` too.
  hidden = {name: sys.modules.pop(name) for name in list(sys.modules)
            if os.path.exists(os.path.join(path, name.split('.')[0], '__init__.py'))}
  modules, argv, finder = set(sys.modules), sys.argv, MissingFinder()
  sys.path.insert(0, path)
  sys.meta_path.append(finder)
  sys.argv = [path, *arguments]
  sys.modules.update({name: Missing(name) for name in without})
  try:
    yield
  finally:
    sys.argv = argv
    sys.meta_path.remove(finder)
    sys.path.remove(path)
    for name in set(sys.modules) - modules:
      module = sys.modules[name]
      if isinstance(module, Missing) or (getattr(module, '__file__', '') or '').startswith(FOLDER):
        del sys.modules[name]
    sys.modules.update(hidden)


def run_file(name: str) -> Any:
  """Returns a module whose last line runs it, which ends by an error: it finds no data."""
  spec: Any = importlib.util.find_spec(name)
  module = importlib.util.module_from_spec(spec)
  with contextlib.suppress(Exception):
    spec.loader.exec_module(module)
  return module


@functools.lru_cache(maxsize=None)
def load(path: str, *names: str, arguments: Tuple[str, ...] = (),
         without: Tuple[str, ...] = (), runs: bool = False) -> Any:
  """Returns a module, or a list of them, of a repository; skips where it is not there.

  Args:
    path: of its code, from the repository's name on.
    names: of the modules.
    arguments: of its command line, which some read as they are imported.
    without: modules of it that cannot be imported here, and are not needed.
    runs: whether it runs as it is imported.
  """
  folder = os.path.join(FOLDER, path)
  if not FOLDER or not os.path.isdir(folder):
    pytest.skip(f'no {path} in the folder {FOLDER!r} that FIELD_FOLDER names')
  known = set(flags.FLAGS)
  with as_tensorflow_1(), within(folder), importing(folder, arguments, without):
    modules = [(run_file if runs else importlib.import_module)(name) for name in names]
  # Two of them define flags of one name.
  defined = {name: flags.FLAGS[name].value for name in set(flags.FLAGS) - known}
  for name in defined:
    delattr(flags.FLAGS, name)
  for module in modules:
    if defined and hasattr(module, 'FLAGS'):
      module.FLAGS = types.SimpleNamespace(**defined)
  return modules[0] if len(modules) == 1 else modules
