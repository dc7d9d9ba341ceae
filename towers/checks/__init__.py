"""Checks: whether towers are one tower."""

from typing import Any

from towers.annexes import load


def __getattr__(name: str) -> Any:
  if name != 'check_inputs':
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return load('towers.check_inputs')
