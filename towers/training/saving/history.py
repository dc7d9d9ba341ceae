"""The history of a run: what it must remember besides its variables, as JSON beside the
checkpoints.

  {"validations": [{"step": 63, "loss": 0.61, "accuracy": 0.78}, …], "rollbacks": [{"step": 120,
  "to": 63}]}

Which step was the best, whether to stop early and how far the rate was lowered all follow from it.
It is written before the checkpoint that it belongs to. A run that resumes leaves out what lies
after its checkpoint, since it will happen again, and so knows exactly what the uninterrupted run
knew at that step.
"""

import json
import math
import os
from typing import Any, Callable, Dict, List, Optional, Sequence

from towers.base.usage_error import UsageError

HISTORY = 'history.json'
MOST_ROLLBACKS = 3
_RATE_FACTOR = 0.5


class History:
  """Validations and rollbacks so far."""

  def __init__(self, *, metric: str = 'loss', patience: Optional[int] = None):
    """Begins a history.

    Args:
      metric: that tells the best validation: the smallest, if its name holds "loss" or "error",
        else the largest.
      patience: validations in a row without a new best one after which to stop, or None.
    """
    self.metric = metric
    self._sign = 1.0 if 'loss' in metric or 'error' in metric else -1.0
    self._patience = patience
    self._validations: List[Dict[str, Any]] = []
    self._rollbacks: List[Dict[str, int]] = []

  def add(self, step: int, means: Dict[str, float]) -> None:
    """Takes note of a validation of the weights after `step` updates."""
    self._validations.append(dict(means, step=step))

  def roll_back(self, step: int, to: int) -> None:
    """Takes note that the run went back from `step` to `to`; what was in between will happen again.
    """
    self._rollbacks.append(dict(step=step, to=to))
    self._leave_out_validations_after(to)

  def has_validated(self, step: int) -> bool:
    """Whether the weights after `step` updates have been measured."""
    return any(validation['step'] == step for validation in self._validations[-2:])

  @property
  def num_rollbacks(self) -> int:
    """How often the run went back."""
    return len(self._rollbacks)

  @property
  def rate_factor(self) -> float:
    """What the learning rate is multiplied by, after all rollbacks."""
    return _RATE_FACTOR ** len(self._rollbacks)

  def best_first(self) -> List[int]:
    """Returns the steps whose validations were the best of their time, the best one first."""
    best: List[int] = []
    value = math.inf
    for validation in self._validations:
      ours = self._sign * validation.get(self.metric, math.nan)
      # No number is smaller than one that is none.
      if ours < value:
        value = ours
        best.insert(0, validation['step'])
    return best

  @property
  def is_best(self) -> bool:
    """Whether the last validation is the best one."""
    return bool(self._validations) and self.best_first()[:1] == [self._validations[-1]['step']]

  @property
  def has_stopped(self) -> bool:
    """Whether as many validations as there is patience for were no better than one before them."""
    if self._patience is None or not self._validations:
      return False
    best = self.best_first()
    since = [
        validation for validation in self._validations if not best or validation['step'] > best[0]
    ]
    return len(since) >= self._patience

  def describe_best(self) -> str:
    """Returns the best validation in words, or ''."""
    best = self.best_first()
    if not best:
      return ''
    [value] = [
        validation[self.metric] for validation in self._validations if validation['step'] == best[0]
    ][-1:]
    return f'{self.metric} {value:.4f} after step {best[0]}'

  def format(self) -> str:
    """Returns the text of the file."""
    return json.dumps(dict(validations=self._validations, rollbacks=self._rollbacks)) + '\n'

  def check_metric(self, names: Sequence[str]) -> None:
    """Raises a UsageError if validation does not measure what the best is told by."""
    if self.metric not in names:
      raise UsageError(f"best_metric={self.metric}: validation measures {', '.join(names)}; choose "
                       "one of these.")

  def read(self, folder: str, step: int, warn: Callable[[str], None] = print) -> None:
    """Takes up the history in a folder as it was after `step` updates; what cannot be read is a
    warning.
    """
    try:
      with open(os.path.join(folder, HISTORY), encoding='utf-8') as file:
        self.parse(file.read(), step)
    except FileNotFoundError:
      return
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
      warn(f'WARNING: {HISTORY} in {folder} cannot be read ({error}): the best checkpoint and '
           'early stopping begin anew')

  def parse(self, text: str, step: int) -> None:
    """Takes up the history that a text of `format` tells, as it was after `step` updates.

    Raises:
      ValueError, KeyError, TypeError, AttributeError, RecursionError: a text that tells none.
    """
    content = json.loads(text)
    validations, rollbacks = content['validations'], content['rollbacks']
    for validation in validations:
      _check(validation, 'step')
    for rollback in rollbacks:
      _check(rollback, 'step', 'to')
    self._validations = validations
    self._rollbacks = [rollback for rollback in rollbacks if rollback['to'] <= step]
    self._leave_out_validations_after(step)

  def _leave_out_validations_after(self, step):
    self._validations = [
        validation for validation in self._validations if validation['step'] <= step
    ]


def _check(entry, *steps):
  """Raises a ValueError for an entry that is none: numbers by name, some of which are steps."""
  if not all(isinstance(value, (int, float)) for value in entry.values()):
    raise ValueError(f'{entry!r} is no number')
  if not all(type(entry[name]) is int for name in steps):
    raise ValueError(f'{entry!r} has no step')
