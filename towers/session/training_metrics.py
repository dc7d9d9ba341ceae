"""Training metrics: sums over the steps so far, whose means anyone may read, each since a mark.

A step brings one vector with its loss, which the towers have summed already, see
`towers.reduce.gradients`. It is only kept here, and many are summed up at once: while Python works
between two steps, all threads of the session wait.
"""

from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from towers.input.plan import Plan
from towers.training_graph import TrainingGraph
from towers.validation import find_means

_FIRST_LOSSES = 5
_MOST_KEPT = 1000


class TrainingMetrics:
  """The loss, the metrics and the input wait of a program's training steps."""

  def __init__(self, program: TrainingGraph):
    tower, gradients = program.towers[0], program.gradients
    self._plan = program.plan  # Of what is kept.
    self._tower, self._weighted = tower, list(tower.weights)
    self._has_vector = gradients.metrics is not None
    self._begins_with_loss = gradients.begins_with_loss
    self._has_count = self._has_vector and not isinstance(tower.num_examples, int)
    self._sums = np.zeros(len(tower.sums) + len(tower.weights) + 1)
    self._kept: List[Tuple[Any, ...]] = []
    self._first_losses: List[float] = []
    self._waited = 0.0

  def add(self, plan: Plan, step: int, loss: Any, is_done: bool, wait: float,
          metrics: Optional[np.ndarray] = None, num_examples: Optional[int] = None) -> Any:
    """Adds what `Calls` fetches in the step of an index; returns its loss, NaN of no example.

    `num_examples` are those of the step where some may be damaged, or None for those of the plan.
    """
    if plan is not self._plan:
      self._sum_up()
      self._plan = plan
    if self._begins_with_loss:
      metrics, loss = loss, loss[0]
    if num_examples == 0:
      loss = np.float32('nan')
    # A copy, for an array would keep the session's memory from its next run.
    vector = b'' if metrics is None else metrics.tobytes()
    self._kept.append((step, loss, is_done, wait, vector, num_examples))
    if not step % _MOST_KEPT:
      self._sum_up()
    return loss

  def add_wait(self, seconds: float) -> None:
    """Adds the input wait of a run that ends no step."""
    self._waited += max(seconds, 0.0)

  @property
  def input_wait_seconds(self) -> float:
    """How long all training steps so far have waited for input."""
    self._sum_up()
    return self._waited

  @property
  def first_losses(self) -> List[float]:
    """Those of the first few steps of this process, to compare runs."""
    self._sum_up()
    return self._first_losses

  def mark(self) -> np.ndarray:
    """Returns the sums until now, for `since`."""
    self._sum_up()
    return self._sums.copy()

  def since(self, mark: np.ndarray) -> Dict[str, float]:
    """Returns the means over the examples of the steps since a mark, by name; {} without a step.

    A metric whose weights are all 0 has none.
    """
    self._sum_up()
    sums = self._sums - mark
    return find_means(self._tower, sums) if sums[-1] else {}

  def _sum_up(self):
    """Adds up what is kept; of steps that were refused only the wait."""
    if not self._kept:
      return
    kept, self._kept = self._kept, []
    steps, losses, are_done, waits, vectors, found = zip(*kept)
    done = np.array(are_done)
    if self._has_vector:
      sums = np.frombuffer(b''.join(vectors), np.float32).reshape(len(kept), -1)[done]
      self._sums[1:sums.shape[1]] += sums[:, 1:].sum(0, np.float64)
    self._waited += sum(wait for wait in map(float, waits) if wait > 0)
    self._first_losses += map(float, losses[:_FIRST_LOSSES - len(self._first_losses)])
    losses = np.array(losses, np.float64)[done]
    if self._has_count:
      counts = sums[:, -1]
    else:
      indices, plan = np.array(steps), self._plan
      planned = np.asarray(plan.examples_before(indices + 1)) - plan.examples_before(indices)
      counts = (planned if found[0] is None else np.array(found))[done]
      self._sums[-1] += counts.sum()
    if 'loss' in self._weighted:
      counts = sums[:, len(self._tower.sums) + self._weighted.index('loss')]
    self._sums[0] += counts.dot(np.where(counts, losses, 0))
