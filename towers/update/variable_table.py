"""A table of a model's variables: how large each is, and what moves it."""

from typing import Dict, List, Mapping, Optional, Sequence

from tensorflow_v1 import Variable
from towers.input.plan import Plan
from towers.update.groups import Optimizers, Rate, assign, by_pattern, is_function
from towers.update.rate import choose_rate


def format_variables(variables: Sequence[Variable], *, rates: Mapping[str, str]) -> str:
  """Returns a line for each variable: its name, shape, dtype and rate, of `describe_rates`."""
  rows: List[Sequence[str]] = [('variable', 'shape', 'dtype', 'learning rate')]
  for variable in variables:
    # Averages of batch normalization and the like were never to be trained.
    untrained = 'frozen' if getattr(variable, 'trainable', False) else 'not trained'
    rows.append((variable.op.name, str(variable.shape.as_list()), variable.dtype.base_dtype.name,
                 rates.get(variable.op.name, untrained)))
  widths = [max(len(row[column]) for row in rows) for column in range(3)]
  return '\n'.join('  '.join([*map(str.ljust, row, widths), row[3]]) for row in rows)


def describe_rates(names: Sequence[str], optimizer: Optimizers, rate: Rate, plan: Plan,
                   factors: Optional[Mapping[str, float]] = None) -> Dict[str, str]:
  """Returns the learning rate of each trained variable, in words where it is no number.

  The rate, times a factor by pattern, is for optimizers that are functions of it.
  """
  optimizers = by_pattern(optimizer)
  patterns = assign('optimizer', optimizers, names)
  factored = assign('rate_factors', factors or {}, names)
  found = {}
  for name in names:
    every, one = optimizers[patterns[name]]
    own = rate if is_function(one) else choose_rate(one, None, plan)
    factor = (factors or {})[factored[name]] if name in factored else 1
    if not isinstance(own, float):
      found[name] = 'scheduled' if factor == 1 else f'scheduled, times {factor:g}'
    else:
      found[name] = f'{own * factor:g}' if own == own else "the optimizer's own"
    if every != 1:
      found[name] += f', every {every} steps'
  return found
