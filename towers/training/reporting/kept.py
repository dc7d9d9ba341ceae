"""What a run keeps of its steps: a timeline, and curves for TensorBoard and the report."""

import dataclasses
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from tensorflow_v1 import tf
from towers.annexes import load as load_annex
from towers.training.reporting.metric_samples import MetricSamples, MetricWriter
from towers.training.reporting.progress import Callback, Progress
from towers.training.saving.history import History
from towers.training.settings.config import Config
from towers.training.settings.intervals import build_interval, parse_trace_steps
from towers.training.stepping.startup import Startup
from towers.training.stepping.steps import Steps


class About(NamedTuple):
  """What a run says of itself: all settings by name, and its program in some lines."""
  settings: Mapping[str, Any]
  description: str


def build_callbacks(config: Config, about: About, *, steps: Steps, progress: Progress,
                    startup: Startup, history: History) -> Tuple[List[Callback], Optional[Any]]:
  """Returns the callbacks that keep what config asks for, and its `Summaries` or None.

  `steps` stand behind those that earlier runs did, whose validations `history` has.
  """
  callbacks: List[Callback] = []
  summaries = None
  if config.trace_steps:
    timeline = load_annex('--trace_steps')
    first, last = parse_trace_steps(config.trace_steps)
    callbacks.append(timeline(config.trace_file, steps, first=first, last=last,
                              first_step=steps.step, warn=progress.write))
  if config.keeps_curves:
    every = build_interval('summary_every', config.summary_every, steps.plan)
    metric_writers = _build_metric_writers(config, about, steps, progress, startup)
    callbacks.append(MetricSamples(
        steps, plan=steps.plan, every=every, first_step=steps.step,
        metric_writers=metric_writers, has_validated=history.has_validated))
    summaries = metric_writers[0] if config.summary_dir else None
  return callbacks, summaries


def _build_metric_writers(config, about, steps, progress, startup) -> List[MetricWriter]:
  """Returns the writers of a run's curves: for TensorBoard, and the report."""
  metric_writers: List[MetricWriter] = []
  if config.summary_dir:
    from towers.training.reporting.summaries import Summaries, format_settings, format_verbatim
    defaults = dataclasses.asdict(Config())
    metric_writers.append(Summaries(
        config.summary_dir, first_step=steps.step, graph=tf.get_default_graph(),
        warn=progress.write, texts=dict(
            configuration=format_settings(about.settings, defaults=defaults),
            run=format_verbatim(about.description))))
  if config.report:
    notice = steps.program.devices.notice
    metric_writers.append(load_annex('--report')(
        config.report, settings=about.settings, first_step=steps.step,
        description=about.description, warnings=[notice] if notice else [], warn=progress.write,
        read_seconds=lambda: dict(startup.seconds, **progress.seconds())))
  return metric_writers
