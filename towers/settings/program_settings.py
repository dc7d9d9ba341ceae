"""What a program is set to: one frozen object, made from the table."""

import dataclasses
from typing import Any, Dict, Mapping

import numpy as np

from towers.settings.table import arguments_of
from towers.update.groups import name_optimizer
from towers.warm_start.matching import InitFrom

# What flags say in other words, or not at all.
_OWN: Dict[str, Any] = dict(optimizer=None, learning_rate=None, frozen=(), rate_factors=None,
                            init_from=None)


def _check(settings):
  for name, setting in arguments_of('program').items():
    setting.check(getattr(settings, name))


_Values: Any = dataclasses.make_dataclass('_Values', [
    *((name, Any, setting.default) for name, setting in arguments_of('program').items()),
    *((name, Any, default) for name, default in _OWN.items())], frozen=True,
    namespace=dict(__post_init__=_check))


class ProgramSettings(_Values):
  """The arguments of a `towers.Program` that are settings, by name; see there for what they are.

  A value that a setting cannot have is a UsageError.
  """

  @classmethod
  def of(cls, given: Mapping[str, Any]) -> 'ProgramSettings':
    """Returns the settings among what is given by name, with NumPy's numbers as Python's."""
    values = {field.name: given[field.name] for field in dataclasses.fields(cls)}
    return cls(**{name: value.item() if isinstance(value, np.generic) else value
                  for name, value in values.items()})

  def describe(self) -> Dict[str, Any]:
    """Returns them for people: of functions their names, of initial weights the path."""
    start = self.init_from
    path = start.path if isinstance(start, InitFrom) else getattr(start, '__name__', start)
    values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    return dict(values, optimizer=name_optimizer(self.optimizer), init_from=path)
