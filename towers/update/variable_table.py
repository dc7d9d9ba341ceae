"""A table of a model's variables: how large each is, and what moves it."""

from typing import List, Sequence

from tensorflow_v1 import Variable
from towers.update.groups import Group


def format_variables(variables: Sequence[Variable], groups: Sequence[Group]) -> str:
  """Returns a line for each variable: its name, shape, dtype and learning rate."""
  rates = {name: group.rate for group in groups for name in group.names}
  rows: List[Sequence[str]] = [('variable', 'shape', 'dtype', 'learning rate')]
  for variable in variables:
    # Averages of batch normalization and the like were never to be trained.
    untrained = 'frozen' if getattr(variable, 'trainable', False) else 'not trained'
    rows.append((variable.op.name, str(variable.shape.as_list()), variable.dtype.base_dtype.name,
                 rates.get(variable.op.name, untrained)))
  widths = [max(len(row[column]) for row in rows) for column in range(3)]
  return '\n'.join('  '.join([*map(str.ljust, row, widths), row[3]]) for row in rows)
