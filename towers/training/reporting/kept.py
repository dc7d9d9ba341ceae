"""What a run keeps of its steps: a timeline, and curves for TensorBoard and the report."""

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from tensorflow_v1 import tf
from towers.annexes import load as load_annex
from towers.training.reporting.metric_samples import MetricSamples
from towers.training.reporting.metric_writer import MetricWriter
from towers.training.reporting.progress import Callback, Progress
from towers.training.saving.history import History
from towers.training.settings.config import Config
from towers.training.settings.intervals import build_interval, parse_trace_steps
from towers.training.stepping.startup import Startup
from towers.training.stepping.steps import Steps


def build_callbacks(config: Config, settings: Mapping[str, Any], description: str, *,
                    steps: Steps, first_step: int, progress: Progress, startup: Startup,
                    history: History) -> Tuple[List[Callback], Optional[Any]]:
  """Returns the callbacks that keep what config asks for, and its `Summaries` or None.

  Args:
    config: of the run.
    settings: of program and run, by name.
    description: of the program, some lines.
    steps: of the session.
    first_step: steps that are done.
    progress: shows warnings, and counts seconds.
    startup: of the run.
    history: of validations that earlier runs have written.
  """
  callbacks: List[Callback] = []
  program, summaries = steps.program, None
  if config.trace_steps:
    timeline = load_annex('--trace_steps')
    first, last = parse_trace_steps(config.trace_steps)
    callbacks.append(timeline(config.trace_file, steps, first=first, last=last,
                              first_step=first_step, warn=progress.write))
  if config.keeps_curves:
    every = build_interval('summary_every', config.summary_every, steps.plan)
    metric_writers = _build_metric_writers(
        config, settings, description, first_step=first_step, notice=program.devices.notice,
        warn=progress.write, read_seconds=lambda: dict(startup.seconds, **progress.seconds()))
    callbacks.append(MetricSamples(
        steps, plan=program.plan, every=every, first_step=first_step,
        metric_writers=metric_writers, has_validated=history.has_validated))
    summaries = metric_writers[0] if config.summary_dir else None
  return callbacks, summaries


def _build_metric_writers(config: Config, settings: Mapping[str, Any], description: str, *,
                          first_step: int, notice: str, warn: Callable[[str], None],
                          read_seconds: Callable[[], Dict[str, float]]) -> List[MetricWriter]:
  """Returns the writers of a run's curves: for TensorBoard, and the report."""
  metric_writers: List[MetricWriter] = []
  if config.summary_dir:
    from towers.training.reporting.summaries import Summaries, format_settings, format_verbatim
    metric_writers.append(Summaries(
        config.summary_dir, first_step=first_step, graph=tf.get_default_graph(), warn=warn,
        texts=dict(configuration=format_settings(settings, defaults=dataclasses.asdict(Config())),
                   run=format_verbatim(description))))
  if config.report:
    report = load_annex('--report')
    metric_writers.append(report(
        config.report, settings=settings, first_step=first_step, description=description,
        warnings=[notice] if notice else [],
        read_seconds=read_seconds, warn=warn))
  return metric_writers
