"""History: what a run remembers besides its variables, as JSON beside the checkpoints.

  {"checksum": 3735928559, "validations": [{"step": 63, "loss": 0.61, "accuracy": 0.78}, …],
   "rollbacks": [{"step": 120, "to": 63}], "metric": "loss"}

The best step, early stopping and the lowered learning rate all follow from it. It is written before
the checkpoint that it belongs to. A run that resumes drops what lies after its checkpoint, since
that will happen again, and so knows exactly what the uninterrupted run knew at that step.
"""

import math
import os
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from towers.base.json_files import recall, seal, unseal
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.whole import find_numbers

HISTORY = 'history.json'
MOST_ROLLBACKS = 3
_RATE_FACTOR = 0.5
_SCHEMA = dict(validations=[{'step': int, str: float}], rollbacks=[dict(step=int, to=int)],
               metric=(str, None))


class History:
  """The validations and rollbacks of a run so far."""

  def __init__(self, *, metric: Optional[str] = None, patience: Optional[int] = None):
    """Starts an empty history.

    The smallest value of `metric`, or of that which the run has chosen, is the best if its name has
    "loss" or "error" in it, else the largest. After `patience` validations in a row without a new
    best the run is to stop.
    """
    self.metric, self._is_of_run = metric or 'loss', metric is None
    self._patience = patience
    self._validations: List[Dict[str, Any]] = []
    self._rollbacks: List[Dict[str, int]] = []

  def add(self, step: int, means: Dict[str, float]) -> None:
    """Adds a validation of the weights after `step` updates."""
    if self.metric in means and np.ndim(means[self.metric]):
      raise UsageError(f'best_metric={self.metric} is an array of the shape '
                       f'{list(np.shape(means[self.metric]))}: choose a metric that is a number.')
    self._validations.append(dict(find_numbers(means), step=step))

  def roll_back(self, step: int, to: int) -> None:
    """Adds a rollback from `step` to `to`, and drops the validations between them."""
    self._rollbacks.append(dict(step=step, to=to))
    self._drop_validations_after(to)

  def has_validated(self, step: int) -> bool:
    """Whether the weights after `step` updates have been validated."""
    return any(validation['step'] == step for validation in self._validations[-2:])

  @property
  def num_rollbacks(self) -> int:
    """How often the run rolled back."""
    return len(self._rollbacks)

  @property
  def rate_factor(self) -> float:
    """The factor of the learning rate after all rollbacks."""
    return _RATE_FACTOR ** len(self._rollbacks)

  def best_first(self) -> List[int]:
    """Returns the steps whose validation was a new best, the best one first."""
    best: List[int] = []
    smallest = math.inf
    sign = 1.0 if 'loss' in self.metric or 'error' in self.metric else -1.0
    for validation in self._validations:
      value = sign * validation.get(self.metric, math.nan)
      if value < smallest:  # Never true for NaN.
        smallest = value
        best.insert(0, validation['step'])
    return best

  @property
  def is_best(self) -> bool:
    """Whether the last validation is a new best."""
    return bool(self._validations) and self.best_first()[:1] == [self._validations[-1]['step']]

  @property
  def has_stopped(self) -> bool:
    """Whether the last `patience` validations brought no new best."""
    best = self.best_first()
    since = [validation for validation in self._validations
             if not best or validation['step'] > best[0]]
    return self._patience is not None and len(since) >= self._patience

  def describe_best(self) -> str:
    """Returns the best validation in words, or ''."""
    best = self.best_first()
    if not best:
      return ''
    [*_, value] = [validation[self.metric] for validation in self._validations
                   if validation['step'] == best[0]]
    return f'{self.metric} {value:.4f} after step {best[0]}'

  def format(self) -> str:
    """Returns the text of the file."""
    return seal(dict(validations=self._validations, rollbacks=self._rollbacks,
                     metric=self.metric)) + '\n'

  def check_metric(self, names: Sequence[str] = ()) -> None:
    """Raises a UsageError if validation does not measure, or did not, the metric of the best."""
    names = names or sorted({name for validation in self._validations for name in validation
                             if name != 'step'})
    if names and self.metric not in names:
      raise UsageError(f"best_metric={self.metric}: validation measures {', '.join(names)}; choose "
                       "one of these.")

  def read(self, folder: str, step: int, warn: Callable[[str], None] = write_line) -> None:
    """Reads the history in a folder as it was after `step` updates; warns if it cannot."""
    found = recall(os.path.join(folder, HISTORY), _SCHEMA,
                   'the best checkpoint and early stopping start anew', warn)
    if found:
      self._take(found, step)

  def parse(self, text: str, step: int) -> None:
    """Reads the text of `format`, as it was after `step` updates; raises ValueError."""
    self._take(unseal(text, _SCHEMA), step)

  def _take(self, content, step):
    if self._is_of_run:
      self.metric = content.get('metric') or self.metric
    self._validations = content['validations']
    self._rollbacks = [rollback for rollback in content['rollbacks'] if rollback['to'] <= step]
    self._drop_validations_after(step)

  def _drop_validations_after(self, step):
    self._validations = [
        validation for validation in self._validations if validation['step'] <= step]
