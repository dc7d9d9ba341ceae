"""What a program is set to: one frozen object, made from the table."""

import dataclasses
import numbers
from typing import Any, Dict

from towers.settings.checks import check_program
from towers.settings.setting import values_of
from towers.settings.table import arguments_of
from towers.update.groups import name_optimizer
from towers.warm_start.matching import InitFrom

# The last five are what flags say in other words, or not at all.
_Values: Any = values_of(arguments_of('program'), check_program, optimizer=None,
                         learning_rate=None, frozen=(), rate_factors=None, init_from=None)


class ProgramSettings(_Values):
  """The arguments of a `towers.Program` that are settings, by name; see there for what they are."""

  def describe(self) -> Dict[str, Any]:
    """Returns them for people: of functions their names, of initial weights the path."""
    start, factors = self.init_from, self.rate_factors
    values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    return dict(values, optimizer=name_optimizer(self.optimizer),
                init_from=_tell(start.path if isinstance(start, InitFrom) else start),
                learning_rate=_tell(self.learning_rate),
                rate_factors=factors and {name: float(factor) for name, factor in factors.items()})


def _tell(given: Any) -> Any:
  """Returns a number as a float, and what is none by its name, or as text."""
  if given is None:
    return None
  return float(given) if isinstance(given, numbers.Real) else getattr(
      given, '__name__', str(given))
