"""History: what a run remembers besides its variables, as JSON beside the checkpoints.

  {"checksum": 3735928559, "validations": [{"step": 63, "loss": 0.61, "accuracy": 0.78}, …],
   "rollbacks": [{"step": 120, "to": 63}], "metric": "min:loss"}

The best step, early stopping and the lowered learning rate all follow from it. It is written before
the checkpoint that it belongs to. A run that resumes drops what lies after its checkpoint, since
that will happen again, and the validation by which it ended early, if that was not due: so it knows
exactly what the uninterrupted run knew at that step.
"""

import math
import os
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import numpy as np

from towers.base.best_metric import BestMetric, parse_best_metric
from towers.base.json_files import recall, seal
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.settings.table import find_meant
from towers.whole import find_numbers

HISTORY = 'history.json'
MOST_ROLLBACKS = 3
_RATE_FACTOR = 0.5
_SCHEMA = dict(validations=[{'step': int, str: float}], rollbacks=[dict(step=int, to=int)],
               metric=(str, None), length=(str, None), undue=(int, None))


class History:
  """The validations and rollbacks of a run so far.

  Attributes:
    metric: by which the best is kept.
    length: of the run, as '8 epochs'; None if it does not say.
  """

  def __init__(self, *, metric: Optional[str] = None, patience: Optional[int] = None):
    """Starts an empty history.

    `metric` says what is the best, as 'loss' or 'min:rmse'; None for what the run has chosen. After
    `patience` validations in a row without a new best the run is to stop.
    """
    self.metric, self._is_of_run = parse_best_metric(metric or 'loss'), metric is None
    self.length: Optional[str] = None
    self._patience = patience
    self._validations: List[Dict[str, Any]] = []
    self._rollbacks: List[Dict[str, int]] = []
    self._undue: Optional[int] = None  # The step of a validation that only the end asked for.

  def add(self, step: int, means: Dict[str, float], *, is_due: bool = True) -> None:
    """Adds a validation of the weights after `step` updates; a run that goes on drops one that was
    not due."""
    name = self.metric.name
    if name in means and np.ndim(means[name]):
      raise UsageError(f'best_metric={name} is an array of the shape '
                       f'{list(np.shape(means[name]))}: choose a metric that is a number.')
    self._validations.append(dict(find_numbers(means), step=step))
    self._undue = None if is_due else step

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

  def best_first(self, *, undue: bool = True) -> List[int]:
    """Returns the steps of all validations, the best one first; without those that are NaN, and
    perhaps without one that was not due."""
    name, sign = self.metric.name, self.metric.sign
    values = [(sign * validation.get(name, math.nan), validation['step'])
              for validation in self._validations if undue or validation['step'] != self._undue]
    return [step for _, step in sorted(pair for pair in values if pair[0] < math.inf)]

  @property
  def best(self) -> Optional[Dict[str, Any]]:
    """The means of the best validation by name, with its 'step'; None without any."""
    found = {means['step']: means for means in self._validations}
    best = self.best_first()
    return dict(found[best[0]]) if best else None

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
    """Returns the best validation in words, or that there is none."""
    name, best = self.metric.name, self.best
    if best is None:
      return f'{name} nan: none had a {name} that is a number'
    return f"{name} {best[name]:.4f} after step {best['step']}"

  @property
  def content(self) -> Dict[str, Any]:
    """All of it, as JSON has it."""
    return dict(validations=self._validations, rollbacks=self._rollbacks,
                metric=str(self.metric), length=self.length, undue=self._undue)

  def format(self) -> str:
    """Returns the text of the file."""
    return seal(self.content) + '\n'

  def check_metric(self, names: Sequence[str] = ()) -> None:
    """Raises a UsageError if the metric of the best has no direction, or is not measured.

    `names` are those that validation measures; without any, those that it has measured count.
    """
    names = names or sorted({name for validation in self._validations for name in validation
                             if name != 'step'})
    name, mode = self.metric
    bare = re.sub('^val(idation)?_', '', name)  # Results and curves have it with its split.
    if name not in names and bare in names:
      name, _ = self.metric = BestMetric(bare, mode)
    if names and name not in names:
      meant = find_meant(name, names)
      raise UsageError(f"best_metric={name}: validation measures {', '.join(names)}; "
                       f"{f'did you mean {meant[0]}?' if meant else 'choose one of these.'}")
    if not mode:
      raise UsageError(f'best_metric={name}: the name does not say whether the smallest or the '
                       f'largest is the best. Write best_metric=min:{name} or '
                       f'best_metric=max:{name}.')

  def read(self, folder: str, step: int, warn: Callable[[str], None] = write_line) -> None:
    """Reads the history in a folder as it was after `step` updates; warns if it cannot."""
    found = recall(os.path.join(folder, HISTORY), _SCHEMA,
                   'the best checkpoint and early stopping start anew', warn)
    if found:
      self.load(found, step)
      before = _read_metric(found.get('metric') or '')
      if before.name == self.metric.name and before.mode != self.metric.mode and self._validations:
        warn(f'The best validation in {folder} was {before.describe()}, and is '
             f'{self.metric.describe()} now: {self.describe_best()}')

  def read_beside(self, path: str, step: int) -> None:
    """Reads the history beside a checkpoint, of that step; says so where there is none."""
    folder = os.path.dirname(path)
    self.read(folder, step)
    if not os.path.exists(os.path.join(folder, HISTORY)):
      write_line(f'{HISTORY} is not beside {path}: the best checkpoint and early stopping start '
                 'anew')

  def load(self, content: Mapping[str, Any], step: int) -> None:
    """Becomes the history of a `content`, as it was after `step` updates."""
    if self._is_of_run:
      self.metric = parse_best_metric(content.get('metric') or str(self.metric))
    self.length = content.get('length')
    # From another worker, NaN and infinity come as texts.
    self._validations = [{name: value if name == 'step' else float(value)
                          for name, value in validation.items()}
                         for validation in content['validations']]
    self._rollbacks, self._undue = content['rollbacks'], content.get('undue')
    self.drop_after(step)
    if self._undue == step:
      self._drop_validations_after(step - 1)

  def drop_after(self, step: int) -> None:
    """Drops what comes after `step` updates, for a run that goes on from there."""
    self._rollbacks = [rollback for rollback in self._rollbacks if rollback['to'] <= step]
    self._drop_validations_after(step)

  def _drop_validations_after(self, step):
    self._validations = [
        validation for validation in self._validations if validation['step'] <= step]


def _read_metric(text):
  """Returns by what the best was kept; versions that wrote a name alone looked for two words."""
  if text.startswith(('min:', 'max:')):
    return parse_best_metric(text)
  return BestMetric(text, 'min' if 'loss' in text or 'error' in text else 'max')
