"""Steps that are not finite: what a retry finds out."""

from typing import List, NamedTuple, Sequence

import numpy as np


class Retried(NamedTuple):
  """The result of taking a step again that was not finite.

  Attributes:
    loss: the mean loss over the global batch.
    is_done: whether everything was finite this time, so that the step is done.
    losses: `[micro_batches, towers, 1 + losses]` float32: each tower's share of the mean loss, and
      its sums of several losses, whose names are `loss_names`.
    finite: `[micro_batches, towers + 1, variables]` bool, for the gradients of each tower and, in
      the last row, of their sum.
    names: of the variables.
    has_other_workers: whether the fault may be in a tower of another worker, which then names it.
    wire: in what workers send gradients, as the setting says.
    inputs: `[micro_batches, towers, parts]` bool, for the parts of each tower's batch at `paths`.
  """
  loss: float
  is_done: bool
  losses: np.ndarray
  finite: np.ndarray
  names: List[str]
  has_other_workers: bool = False
  wire: str = 'float32'
  loss_names: Sequence[str] = ()
  inputs: np.ndarray = np.ones([1, 1, 0], bool)
  paths: Sequence[str] = ()

  @property
  def advice(self) -> str:
    """What to do about it."""
    return ('Lower the learning rate or clip the gradients' if self.inputs.all() else
            'Leave such values out of the data')

  def __str__(self) -> str:
    """Returns in words which towers' losses and which variables' gradients are not finite."""
    clauses = []
    for tower in range(self.losses.shape[1]):
      (losses, *several), finite = self.losses[:, tower].T, self.finite[:, tower].all(0)
      faults = []
      if not np.isfinite(losses).all():
        named = next((f'{name} ' for name, sums in zip(self.loss_names, several)
                      if not np.isfinite(sums).all()), '')
        faults.append(f'the loss {named}is {losses[~np.isfinite(losses)][0]}')
      if not finite.all():
        faults.append(f'the gradient of {self.names[int(np.argmin(finite))]} is not finite (the '
                      f'first of {int(np.sum(~finite))} variables out of {len(self.names)})')
      are_fine = self.inputs[:, tower:tower + 1].all((0, 1))
      causes = [f'{path and f"component {path} of "}the batch holds NaN or Inf'
                for path, is_fine in zip(self.paths, are_fine) if not is_fine]
      if faults:
        clauses.append(f"in tower {tower} {' and '.join(causes + faults)}")
    if clauses:
      return '; '.join(clauses)
    finite = self.finite[:, -1].all(0)
    if self.has_other_workers and self.wire == 'float16' and not finite.all():
      return ('every tower of this worker is finite, but the mean gradient of '
              f'{self.names[int(np.argmin(finite))]} is not: another worker names a tower, or '
              'workers send a gradient above 65,504, the largest float16; then use wire=bfloat16')
    if self.has_other_workers:
      return 'every tower of this worker is finite, so another worker names the tower'
    if not finite.all():
      return ('every tower is finite, but the sum of their gradients of '
              f'{self.names[int(np.argmin(finite))]} is not')
    return ('the loss and gradients of every tower are finite, but their sum over the '
            'micro-batches of the step is not')
