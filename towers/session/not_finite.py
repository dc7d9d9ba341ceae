"""Steps that are not finite: what a retry finds out."""

from typing import NamedTuple

import numpy as np

from towers.update.nan_guard import Diagnosis


class Retried(NamedTuple):
  """The result of taking a step again that was not finite."""
  is_done: bool  # Whether everything was finite this time, so that the step is done.
  found: Diagnosis  # In place of its tensors arrays, with micro-batches as their first axis.
  # Whether the fault may be in a tower of another worker, which then names it.
  has_other_workers: bool = False
  wire: str = 'float32'  # In what workers send gradients, as the setting says.

  @property
  def advice(self) -> str:
    """What to do about it."""
    weighs = self.found.weighs and not np.isfinite(self.found.losses).all()
    return ('Lower the learning rate or clip the gradients' if self.found.inputs.all() else
            'Leave such values out of the data') + (
                '; where a weight is 0 its value must be finite too: replace what it is computed '
                'from, by tf.where' if weighs else '')

  def __str__(self) -> str:
    """Returns in words which towers' losses and which variables' gradients are not finite."""
    clauses, found, names = [], self.found, self.found.names
    for tower in range(found.losses.shape[1]):
      (losses, *several), finite = found.losses[:, tower].T, found.finite[:, tower].all(0)
      faults = []
      if not np.isfinite(losses).all():
        named = next((f'{name} ' for name, sums in zip(found.loss_names, several)
                      if not np.isfinite(sums).all()), '')
        faults.append(f'the loss {named}is {losses[~np.isfinite(losses)][0]}')
      if not finite.all():
        faults.append(f'the gradient of {names[int(np.argmin(finite))]} is not finite (the '
                      f'first of {int(np.sum(~finite))} variables out of {len(names)})')
      are_fine = found.inputs[:, tower:tower + 1].all((0, 1))
      causes = [f'{path and f"component {path} of "}the batch holds NaN or Inf'
                for path, is_fine in zip(found.paths, are_fine) if not is_fine]
      if faults:
        clauses.append(f"in tower {tower} {' and '.join(causes + faults)}")
    if clauses:
      return '; '.join(clauses)
    finite = found.finite[:, -1].all(0)
    if self.has_other_workers and self.wire == 'float16' and not finite.all():
      return ('every tower of this worker is finite, but the mean gradient of '
              f'{names[int(np.argmin(finite))]} is not: another worker names a tower, or '
              'workers send a gradient above 65,504, the largest float16; then use wire=bfloat16')
    if self.has_other_workers:
      return 'every tower of this worker is finite, so another worker names the tower'
    if not finite.all():
      return ('every tower is finite, but the sum of their gradients of '
              f'{names[int(np.argmin(finite))]} is not')
    return ('the loss and gradients of every tower are finite, but their sum over the '
            'micro-batches of the step is not')
