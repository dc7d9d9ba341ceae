"""Packages that a checkout has at its top, and a wheel inside of `towers`: `staging` and `models`.

In a checkout each has two names, `staging` and `towers.staging`, and is one module: the name that
is asked for first loads it, and the other one gets the same. A user's own `staging.py` stays the
user's.
"""

import importlib.abc
import os
import sys
import types
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Optional, Sequence

_INSIDE = 'towers.'
_NAMES = ('staging', 'models')


class _Loaded(importlib.abc.Loader):
  """A module that is there already, under its other name."""

  def __init__(self, module: types.ModuleType):
    self._module, self._spec = module, module.__spec__

  def create_module(self, spec: ModuleSpec) -> types.ModuleType:
    return self._module

  def exec_module(self, module: types.ModuleType) -> None:
    module.__spec__ = self._spec  # The import has just put that of the second name here.


class _Finder(importlib.abc.MetaPathFinder):
  """Finds both names of the packages in `root`, and of the modules in them."""

  def __init__(self, root: str):
    self._root = root

  def find_spec(self, name: str, path: Optional[Sequence[Any]],
                target: Optional[types.ModuleType] = None) -> Optional[ModuleSpec]:
    is_inside = name.startswith(_INSIDE)
    plain = name[len(_INSIDE):] if is_inside else name
    package, _, rest = plain.partition('.')
    if package not in _NAMES:
      return None
    spec = PathFinder.find_spec(name, [self._root] if is_inside and not rest else path)
    folder = os.path.join(self._root, package)
    if spec is None or os.path.dirname(spec.origin or '') != folder:
      return None
    loaded = sys.modules.get(plain if is_inside else _INSIDE + name)
    if loaded is None or loaded.__file__ != spec.origin:  # None yet, or a user's own.
      return spec
    return ModuleSpec(name, _Loaded(loaded))


def find_packages(root: str) -> None:
  """Lets the packages in `root` be imported by both of their names, if `root` is a checkout."""
  if not os.path.isdir(os.path.join(root, 'towers', 'staging')):
    sys.meta_path.insert(0, _Finder(root))
