"""What is not finite: a step that was not done, and what taking it again has shown."""

from typing import List, NamedTuple

import numpy as np


class NotFinite(Exception):
  """A step was not done, since its loss or gradients are not finite; weights, slots and counters
  are unchanged.
  """


class Retried(NamedTuple):
  """What taking a step again that was not finite has shown.

  Attributes:
    loss: the mean loss over the global batch.
    is_done: whether everything was finite this time, and the step is done.
    losses: `[runs, towers]` float32: the shares of the mean loss.
    finite: `[runs, towers + 1, variables]` bool, of the gradients, those of all towers together
      last.
    names: of the variables.
    has_other_workers: which tell of their own towers.
  """
  loss: float
  is_done: bool
  losses: np.ndarray
  finite: np.ndarray
  names: List[str]
  has_other_workers: bool = False

  def describe(self) -> str:
    """Returns which towers' losses and which variables' gradients are not finite, the first ones by
    name.
    """
    clauses = []
    for tower in range(self.losses.shape[1]):
      losses, finite = self.losses[:, tower], self.finite[:, tower].all(0)
      told = []
      if not np.isfinite(losses).all():
        told.append(f'the loss is {losses[~np.isfinite(losses)][0]}')
      if not finite.all():
        told.append(f'the gradient of {self.names[int(np.argmin(finite))]} is not finite (the '
                    f'first of {int(np.sum(~finite))} variables out of {len(self.names)})')
      if told:
        clauses.append(f"in tower {tower} {' and '.join(told)}")
    if clauses:
      return '; '.join(clauses)
    if self.has_other_workers:
      return 'every tower of this worker is finite, so it is another worker that tells the tower'
    finite = self.finite[:, -1].all(0)
    if not finite.all():
      return ('every tower is finite, but the sum of their gradients of '
              f'{self.names[int(np.argmin(finite))]} is not')
    return ('the loss and gradients of every tower are finite, but their sum over the runs of the '
            'step is not')
