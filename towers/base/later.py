"""Later: TensorFlow for files that must not load it, which takes seconds, before a graph is built.

  from towers.base.later import as_written, tf     # Names of `towers.tensorflow_v1`.

A wrong flag, file or array is then refused within a moment.
"""

import importlib
from typing import Any


class _Later:
  """A name of `towers.tensorflow_v1`, which is imported when it is first used."""

  def __init__(self, name: str):
    self._name = name

  def _find(self):
    return getattr(importlib.import_module('towers.tensorflow_v1'), self._name)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._find(), name)

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    return self._find()(*args, **kwargs)


def __getattr__(name: str) -> Any:
  return _Later(name)
