"""A pass over the validation split: sums, batch by batch, and in the end their means."""

from typing import Callable, Dict, List

import numpy as np


def format_means(means: Dict[str, float], num_examples: int) -> str:
  """Returns means as they are told: 'loss 0.4470, accuracy 0.8410 (1,000 examples)'."""
  return '{} ({} examples)'.format(', '.join('{} {:.4f}'.format(*item) for item in means.items()),
      f'{num_examples:,}')


class ValidationPass:
  """One pass over the validation split, summed up batch by batch."""

  def __init__(self, *, names: List[str], num_steps: int, step: int):
    """Begins a pass of `num_steps` runs over the metrics `names`, for the weights after `step`
    updates.
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
    """Replaces the sums by `change` of them, which adds what others have measured."""
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
