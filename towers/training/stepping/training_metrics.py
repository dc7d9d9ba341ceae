"""Training metrics: sums over the steps so far, whose means anyone may read, each since a mark.

A step brings one vector with its loss, which the towers have summed already, see
`towers.reduce.gradients`.
"""

from typing import Any, Dict

import numpy as np

from towers.training_graph import TrainingGraph


class TrainingMetrics:
  """The loss and the metrics of a program's training steps."""

  def __init__(self, program: TrainingGraph):
    """Begins with no step."""
    tower = program.towers[0]
    self._plan = program.plan
    self._names = list(tower.sums)
    self._weighted = [name for name in tower.weights if name != 'loss']
    self._has_count = len(self._names) > 1 and not isinstance(tower.num_examples, int)
    self._sums = np.zeros(len(self._names) + len(self._weighted) + 1, np.float64)

  def add(self, step: int, loss: float, sums: Any) -> None:
    """Adds a step that has been done.

    Args:
      step: its index.
      loss: the mean over its examples.
      sums: `ReducedGradients.metrics`, or None.
    """
    if self._has_count:
      count = sums[-1]
      self._sums[1:] += sums[1:]
    else:
      count = self._plan.size_at(step)
      self._sums[-1] += count
      if sums is not None:
        self._sums[1:-1] += sums[1:]
    self._sums[0] += loss * count

  def mark(self) -> np.ndarray:
    """Returns the sums until now, for `since`."""
    return self._sums.copy()

  def since(self, mark: np.ndarray) -> Dict[str, float]:
    """Returns the means over the examples of the steps since a mark, by name; {} without a step.

    A metric whose weights are all 0 has none.
    """
    sums = self._sums - mark
    divisors = dict(zip(self._weighted, sums[len(self._names):]))
    return {name: float(total / divisor) for name, total in zip(self._names, sums)
            for divisor in [divisors.get(name, sums[-1])] if divisor}
