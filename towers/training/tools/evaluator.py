"""Evaluator: a process beside the workers that measures every new checkpoint on the validation
split.

  workers    train ─► save 500 ─► train ─► save 1000 ─► … ─► save the last ─► done
  evaluator            └─► measure 500      └─► measure 1000          └─► measure ─► done

It trains nothing, writes nothing that the chief reads, and may be slower than the workers: then it
takes the newest checkpoint and leaves out those before. What it has found stands in
`evaluations.json` beside the checkpoints, so that an evaluator that is started again goes on behind
it.
"""

import json
import os
import time
from typing import Any, Callable, Dict, List, Optional

import towers
from tensorflow_v1 import tf
from towers.base.usage_error import UsageError
from towers.base.whole_file import write_whole
from towers.program import Program
from towers.training.faults.reason import find_reason
from towers.training.faults.signals import Interrupted, Signals
from towers.training.saving.checkpoints import list_steps, path_of, restore_variables
from towers.training.saving.history import History
from towers.training.settings.config import Config
from towers.training.stepping.startup import Startup
from towers.training.stepping.steps import Steps
from towers.training.stepping.validation_pass import format_means

EVALUATIONS = 'evaluations.json'
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BETWEEN_LINES = 60.0


class Evaluations:
  """What has been measured, by step, in a file."""

  def __init__(self, folder: str):
    """Reads what an earlier evaluator has left in a folder; a file that tells nothing is begun
    anew.
    """
    self._path = os.path.join(folder, EVALUATIONS)
    self.rows: List[Dict[str, float]] = []
    try:
      with open(self._path, encoding='utf-8') as file:
        self.rows = [dict(row, step=int(row['step'])) for row in json.load(file)]
    except (OSError, ValueError, KeyError, TypeError):
      self.rows = []

  def last_step(self) -> int:
    """Returns the newest step that was measured, or -1."""
    return max((int(row['step']) for row in self.rows), default=-1)

  def add(self, step: int, means: Dict[str, float]) -> None:
    """Adds the means of a step, and writes the file whole."""
    self.rows.append(dict(means, step=step))
    write_whole(self._path, (json.dumps(self.rows, indent=1) + '\n').encode())


def evaluate(program: Program, *, config: Config, devices: towers.Devices, startup: Startup,
             signals: Signals, sleep: Callable[[float], Any] = time.sleep) -> None:
  """Measures checkpoints as they come, to that of the last step.

  Args:
    program: built in the default graph as that of the workers, with the switch.
    config: that it was built from.
    devices: that it stands on.
    startup: entered.
    signals: entered.
    sleep: waits some seconds.

  Raises:
    UsageError: there is no folder to look in, or the checkpoints are of another program.
    Interrupted: a signal ended it.
  """
  folder = config.checkpoint_dir
  if folder is None:
    raise UsageError(
        'An evaluator measures checkpoints: give it the checkpoint_dir of the workers.')
  last_step = config.count_steps(program.train.inputs.plan.steps_per_epoch)
  evaluations = Evaluations(folder)
  summaries = _build_summaries(config)
  startup.begin('variables', 'starting the variables')
  session_config = towers.build_session_config(devices, **config.session_settings())
  with tf.Session(config=session_config) as session:
    steps = Steps(session, program)
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    steps.start_validation()
    startup.finish()
    signals.leave_to_run(lambda: 0.0)
    saver = tf.train.Saver(tf.global_variables())
    told_at = float('-inf')
    while not _is_over(config, evaluations.last_step(), last_step):
      step = _take_newest(session, saver, folder, after=evaluations.last_step())
      if step is None:
        if time.monotonic() - told_at >= _SECONDS_BETWEEN_LINES:
          told_at = time.monotonic()
          print(
              '%s waiting for a checkpoint after step %d' %
              (time.strftime('%H:%M:%S'), max(0, evaluations.last_step())), flush=True)
        _leave_if_asked(signals)
        sleep(_SECONDS_BETWEEN_LOOKS)
        continue
      measured = steps.begin_pass(step)
      steps.validate(measured, goes_on=lambda: signals.received is None)
      _leave_if_asked(signals)
      means = measured.means()
      evaluations.add(step, means)
      print(f"{time.strftime('%H:%M:%S')} evaluation of step {step:,}: "
            f"{format_means(means, measured.num_examples)}", flush=True)
      if summaries is not None:
        summaries.validation(step, means)
  if summaries is not None:
    summaries.close()


def _take_newest(session, saver, folder, after) -> Optional[int]:
  """Restores the newest checkpoint after a step; returns its step, or None where there is none that
  can be read.
  """
  for step in list_steps(folder) if os.path.isdir(folder) else []:
    if step <= after:
      return None
    try:
      restore_variables(session, saver, path_of(folder, step), tf.global_variables())
      return step
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
      # The chief may have deleted it meanwhile.
      if step in list_steps(folder):
        print(f'WARNING: {path_of(folder, step)} cannot be read: {find_reason(error)}', flush=True)
  return None


def _is_over(config, measured_step, last_step):
  """Whether no checkpoint will come that has not been measured: the last step's is, or the workers
  stopped early.
  """
  if measured_step >= last_step:
    return True
  history = History(metric=config.best_metric, patience=config.early_stopping)
  history.read(config.checkpoint_dir, measured_step, warn=lambda _: None)
  return history.has_stopped and measured_step >= max(list_steps(config.checkpoint_dir), default=0)


def _build_summaries(config):
  if not config.summary_dir:
    return None
  from towers.training.reporting.summaries import Summaries
  folder = os.path.join(config.summary_dir, 'evaluation')
  os.makedirs(folder, exist_ok=True)
  return Summaries(folder, first_step=0, texts={}, graph=tf.Graph())


def _leave_if_asked(signals):
  if signals.received is not None:
    signals.answer()
    raise Interrupted(signals.received, f'what has been measured stands in {EVALUATIONS}')
