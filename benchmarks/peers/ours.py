"""Steps of ours: the program of main.py in its loop."""

import contextlib
import io
import tempfile
from typing import Any

from benchmarks.harness.task import LEARNING_RATE, MOMENTUM, Task
from towers.settings.config import Config

_ENDLESS = 10 ** 9
# As often as TensorFlow's own sessions save by default.
_CHECKPOINT_EVERY = '600seconds'


def build_config(task: Task) -> Config:
  """Returns the config of a task."""
  return Config(model=task.net, batch_size=task.global_batch_size, num_towers=task.num_towers,
                device=task.kind.lower(), learning_rate=LEARNING_RATE, momentum=MOMENTUM,
                schedule='constant', validation='none', shuffle=False,
                steps=_ENDLESS, checkpoint_every=_CHECKPOINT_EVERY)


def run_towers(turns: Any, task: Task) -> None:
  """Takes steps in main.py's loop, with progress, signals and checkpoints; without validation."""

  from benchmarks.harness.program import open_program
  from towers.checkpoint.checkpoints import Checkpoints
  from towers.checkpoint.history import History
  from towers.process.signals import Signals
  from towers.settings.timetable import build_timetable
  from towers.tensorflow_v1 import tf
  from towers.training.loop import Loop
  from towers.training.reporting.progress import Progress

  config = build_config(task)
  with Signals() as signals, tempfile.TemporaryDirectory() as folder, open_program(
      config, task.load(), num_towers=task.num_towers, model=task.build_model()) as session:
    progress = Progress(session, total_steps=_ENDLESS, stream=io.StringIO())
    turns.watch(session.tf_session, [variable for variable in tf.trainable_variables()
                                if not variable.name.startswith('copies/')])
    session.start()
    signals.leave_to_run(progress.seconds_per_step)
    with contextlib.suppress(_Over):
      Loop(_Run(session, progress, turns), progress=progress, signals=signals,
           checkpoints=Checkpoints(folder, keep=config.keep_checkpoints), history=History(),
           timetable=build_timetable(config, session.plan)).run()


class _Over(Exception):
  """The parent requests no further step."""


class _Run:
  """Shows each step as a run does, and ends after the last one that the parent requests."""

  def __init__(self, session, progress, turns):
    self.session, self._progress, self._turns = session, progress, turns
    self.warn = progress.write

  @property
  def step(self):
    return self.session.step

  def report_step(self, loss):
    self.loss = float(loss)
    self._progress.on_step(self)
    if not self._turns.end_step(loss):
      raise _Over
