"""A pass over the validation split: sums batch by batch, and their means at the end."""

from typing import Callable, Dict, List

import numpy as np


def format_means(means: Dict[str, float], num_examples: int) -> str:
  """Returns 'loss 0.4470, accuracy 0.8410 (1,000 examples)'."""
  text = ', '.join(f'{name} {mean:.4f}' for name, mean in means.items())
  return f'{text} ({num_examples:,} examples)'


class ValidationPass:
  """One pass over the validation split, summed up batch by batch."""

  def __init__(self, *, names: List[str], num_steps: int, step: int):
    """Begins a pass.

    Args:
      names: of the metrics.
      num_steps: session runs that cover the split.
      step: updates of the weights that are measured.
    """
    self.step = step
    self._names = names
    self._steps_left = num_steps
    self._sums = np.zeros(len(names) + 1, np.float64)

  def add(self, sums: np.ndarray) -> None:
    """Adds a run's sums, `[len(names) + 1]` with the number of examples last."""
    self._sums += sums
    self._steps_left -= 1

  def sum_up(self, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Replaces the sums by `change(sums)`, which adds those of other workers."""
    self._sums = change(self._sums)

  @property
  def is_complete(self) -> bool:
    """Whether every example of the split has been measured."""
    return self._steps_left == 0

  @property
  def num_examples(self) -> int:
    """The number of examples measured so far."""
    return int(self._sums[-1])

  def means(self) -> Dict[str, float]:
    """Returns each metric's mean over the examples measured so far."""
    return {name: float(total / self._sums[-1]) for name, total in zip(self._names, self._sums)}
