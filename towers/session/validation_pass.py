"""A pass over the validation split: sums batch by batch, and their means at the end."""

from typing import Any, Dict, Sequence

import numpy as np

from towers.base.usage_error import UsageError
from towers.tower.tower import Tower
from towers.validation import find_means
from towers.whole import WholeRows, find_numbers


def format_means(means: Dict[str, Any], num_examples: int) -> str:
  """Returns 'loss 0.4470, accuracy 0.8410 (1,000 examples)'."""
  text = ', '.join(f'{name} {mean:.4f}' for name, mean in find_numbers(means).items())
  return f'{text} ({num_examples:,} examples)'


class ValidationPass:
  """One pass over the validation split, summed up batch by batch.

  Attributes:
    sums, rows: of all batches so far, those of `stack_sums` and of `WholeRows`.
  """

  def __init__(self, tower: Tower, rows: WholeRows, *, num_steps: int, step: int):
    """Begins a pass of so many runs, of the weights after so many steps, on towers as this one."""
    self.step = step
    self.num_runs = 0  # That have been added.
    self._tower, self.rows, self._num_steps = tower, rows, num_steps
    self.sums = np.zeros(len(tower.sums) + len(tower.weights) + 1)

  def add(self, sums: np.ndarray, rows: Sequence[np.ndarray] = ()) -> None:
    """Adds a run's sums and rows."""
    self.sums += sums
    self.rows.add(rows)
    self.num_runs += 1

  @property
  def is_complete(self) -> bool:
    """Whether every example of the split has been measured."""
    return self.num_runs == self._num_steps

  @property
  def num_examples(self) -> int:
    """The number of examples measured so far."""
    return int(self.sums[-1])

  def means(self, *, leaves_out: bool = False) -> Dict[str, Any]:
    """Returns each metric's mean, or its value of all, over the examples measured so far.

    A metric whose weights are all 0 is a UsageError, unless the pass `leaves_out` such ones.
    """
    means = find_means(self._tower, self.sums)
    empty = [name for name in self._tower.sums if name not in means]
    if empty and not leaves_out:
      raise UsageError(f'The weights of {empty[0]!r} are all 0 over the {self.num_examples:,} '
                       'examples measured, so that it has no mean: give validation examples '
                       f'for it, or leave {empty[0]!r} out.')
    return {**means, **self.rows.compute()}
