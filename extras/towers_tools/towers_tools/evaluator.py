"""Evaluator: a process beside the workers that measures each new checkpoint.

  workers    train ─► save 500 ─► train ─► save 1000 ─► … ─► save the last ─► done
  evaluator            └─► measure 500      └─► measure 1000          └─► measure ─► done

It trains nothing and writes nothing that the chief reads. If it is slower than the workers, it
measures the newest checkpoint and skips those before. Its results are in `evaluations.json` beside
the checkpoints, so a restarted evaluator continues after them.
"""

import os
import time
from typing import Dict, List

from towers.base.json_files import recall, write_sealed
from towers.base.output import write_line
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import list_steps, path_of
from towers.checkpoint.history import History
from towers.process.startup import Startup
from towers.session.session import Session
from towers.session.validation_pass import format_means
from towers.settings.config import RunSettings
from towers.tensorflow_v1 import tf
from towers.training_graph import TrainingGraph
from towers.whole import find_numbers

EVALUATIONS = 'evaluations.json'
_SCHEMA = dict(evaluations=[{'step': int, str: float}])
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BETWEEN_LINES = 60.0


class Evaluations:
  """The means of each measured step, in a file."""

  def __init__(self, folder: str):
    """Reads what an earlier evaluator left in a folder; a damaged file is a warning."""
    self._path = os.path.join(folder, EVALUATIONS)
    found = recall(self._path, _SCHEMA, 'the checkpoints are measured again')
    self.rows: List[Dict[str, float]] = found['evaluations'] if found else []

  def last_step(self) -> int:
    """Returns the newest measured step, or -1."""
    return max((int(row['step']) for row in self.rows), default=-1)

  def add(self, step: int, means: Dict[str, float]) -> None:
    """Adds the means of a step, and writes the file."""
    self.rows.append(dict(means, step=step))
    write_sealed(self._path, dict(evaluations=self.rows), indent=1)


def evaluate(program: TrainingGraph, settings: RunSettings, *, startup: Startup) -> None:
  """Measures each new checkpoint until the workers have trained to the end.

  The program is as that of the workers, without a validation tower; the settings are theirs, and
  summaries go to a folder `evaluation` in their summary_dir. There is nothing to save, so a signal
  ends the process at once.

  Raises:
    UsageError: there is no checkpoint_dir, or its checkpoints are of another program.
  """
  folder = settings.checkpoint_dir
  if folder is None:
    raise UsageError(
        'An evaluator measures checkpoints: give it the checkpoint_dir of the workers.')
  evaluations = Evaluations(folder)
  summaries = _build_summaries(settings.summary_dir)
  session = Session(program, **settings.session_settings())
  with session.opened(startup), session.as_default(), session.explained():
    startup.finish()
    told_at = float('-inf')
    while not _is_over(folder, evaluations.last_step(), settings.count_steps(session.plan),
                       best_metric=settings.best_metric, early_stopping=settings.early_stopping):
      after = evaluations.last_step()
      if not _load_newest(session, folder, after):
        if time.monotonic() - told_at >= _SECONDS_BETWEEN_LINES:
          told_at = time.monotonic()
          write_line(f"{time.strftime('%H:%M:%S')} waiting for a checkpoint after step "
                     f'{max(0, after)}')
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        continue
      measured = session.begin_validation()
      session.finish_validation(measured)
      step, means = measured.step, find_numbers(measured.means())
      evaluations.add(step, means)
      write_line(f"{time.strftime('%H:%M:%S')} evaluation of step {step:,}: "
                 f"{format_means(means, measured.num_examples)}")
      if summaries is not None:
        summaries.validated(step=step, metrics=means)
  if summaries is not None:
    summaries.on_close(None)


def _load_newest(session, folder, after) -> bool:
  """Loads the newest readable checkpoint after a step; returns whether there is any.

  Those that a newer one has overtaken are left out.
  """
  for step in list_steps(folder):
    if step <= after:
      return False
    try:
      session.restore_to_measure(path_of(folder, step))
      return True
    except UsageError:
      raise
    except Exception as error:  # A damaged file makes TensorFlow raise anything.
      # The chief may have deleted it meanwhile.
      if step in list_steps(folder):
        write_line(f'WARNING: {path_of(folder, step)} cannot be read: {find_reason(error)}')
  return False


def _is_over(folder, measured_step, last_step, *, best_metric='loss', early_stopping=None):
  """Whether the last step is measured, or the last one of workers that stopped early."""
  if measured_step >= last_step:
    return True
  history = History(metric=best_metric, patience=early_stopping)
  history.read(folder, measured_step, warn=lambda _: None)
  return history.has_stopped and measured_step >= max(list_steps(folder), default=0)


def _build_summaries(summary_dir):
  if not summary_dir:
    return None
  from towers.training.reporting.summaries import Summaries
  folder = os.path.join(summary_dir, 'evaluation')
  os.makedirs(folder, exist_ok=True)
  return Summaries(folder, first_step=0, texts={}, graph=tf.Graph())
