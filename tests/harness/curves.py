"""Runs the loop of main.py on a small model with writers of curves."""

import dataclasses
import io
import os

from towers.training.faults.signals import Signals
from towers.training.keeper import Keeper
from towers.training.loop import Loop
from towers.training.reporting.metric_samples import MetricSamples, MetricWriter
from towers.training.reporting.progress import Progress
from towers.training.reporting.summaries import Summaries
from towers.training.saving.checkpoints import Checkpoints
from towers.training.saving.history import History
from towers.training.settings.timetable import Interval, Timetable
from towers_tools.report import Report

CURVES = dict(summary_dir='unused', summary_every='3steps')


class Killed(Exception):
  pass


class List(MetricWriter):
  """Keeps all samples and validations."""

  def __init__(self):
    self.samples, self.validations = [], []

  def sample(self, sample, metrics, summaries):
    self.samples.append(sample)

  def validation(self, *, step, metrics):
    self.validations.append((step, metrics))


def train(run, *, folder=None, summaries=None, report=None, metric_writers=(), every=3,
          total_steps=12, kill_after=None, on_nan='stop', before_step=lambda step: None,
          validate_every=5, save_every=4):
  """Runs main.py's loop to the end; returns its screen output."""
  stream = io.StringIO()
  history = History()
  with run.graph.as_default():
    keeper = Keeper(run.opened, folder and Checkpoints(str(folder), keep=3), history)
    keeper.begin()
    step = run.steps.step
    progress = Progress(total_steps=total_steps, first_step=step,
                        plan=run.program.plan, learning_rate=run.steps.learning_rate,
                        stream=stream)
    writers = list(metric_writers)
    if summaries:
      os.makedirs(str(summaries), exist_ok=True)
      writers.append(Summaries(str(summaries), first_step=step, texts={'run': 'text'},
                               graph=run.graph, warn=progress.write))
    if report:
      writers.append(Report(
          str(report), settings=dataclasses.asdict(run.config), first_step=step,
          description='<two> towers', versions={}, read_seconds=progress.seconds,
          warn=progress.write))
    if writers:
      samples = MetricSamples(run.steps, plan=run.program.plan, every=Interval(every),
                              first_step=step, metric_writers=writers,
                              has_validated=history.has_validated)
      progress.callbacks.append(samples)
    show = progress.step

    def step_or_die(*, step, loss):
      show(step=step, loss=loss)
      before_step(step + 1)
      if step == kill_after:
        raise Killed

    progress.step = step_or_die
    run.steps.start(step)
    try:
      Loop(run.opened, progress=progress, keeper=keeper, signals=Signals(),
           timetable=Timetable(total_steps, on_nan=on_nan, validate_every=Interval(validate_every),
                               save_every=Interval(save_every))).run()
    except Killed:
      return stream.getvalue()
    finally:
      # As `kill -9` would leave it.
      if writers and kill_after is None:
        samples.close()
  return stream.getvalue()
