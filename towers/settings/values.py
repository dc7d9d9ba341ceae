"""Values: settings that belong together in one frozen object, whose fields the table makes."""

import dataclasses
from typing import Any, Callable, Mapping, Type, TypeVar

import numpy as np

from towers.settings.setting import Setting

Self = TypeVar('Self', bound='Values')


class Values:
  """A value for each of some settings, by its name; those not given have defaults.

  A value that a setting cannot have, or that contradicts another one, is a UsageError.
  """

  @classmethod
  def of(cls: Type[Self], given: Mapping[str, Any]) -> Self:
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
