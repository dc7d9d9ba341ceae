"""The callbacks of a run's own: a timeline, and curves for TensorBoard and the report."""

import dataclasses
import textwrap
from typing import Any, Callable, List, Mapping, Optional, Tuple

from towers.checkpoint.history import History
from towers.extras import load_extra
from towers.process.startup import Startup
from towers.session.session import Session
from towers.settings.config import Config, RunSettings
from towers.settings.timetable import build_interval, parse_trace_steps
from towers.tensorflow_v1 import tf
from towers.training.callbacks import Callback
from towers.training.reporting.metric_samples import MetricSamples, MetricWriter
from towers.training.reporting.progress import Progress
from towers.training.reporting.summaries import Summaries, format_settings
from towers.training.reporting.writer import Writer


def build_callbacks(settings: RunSettings, told: Mapping[str, Any], description: str, *,
                    session: Session, progress: Progress, warn: Callable[[str], None],
                    startup: Startup, history: History) -> Tuple[List[Callback], Writer]:
  """Returns the callbacks that keep what settings ask for, and what else writes to its summaries.

  All settings by name, as `told`, and the `description` of the program are kept as text. The
  session stands behind the steps that earlier runs did, whose validations `history` has.
  """
  callbacks: List[Callback] = []
  writers: List[MetricWriter] = []
  summaries: Optional[Summaries] = None
  if settings.trace_steps:
    first, last = parse_trace_steps(settings.trace_steps)
    callbacks.append(load_extra('trace_steps')(
        settings.trace_file, session, first=first, last=last, first_step=session.step, warn=warn))
  if settings.summary_dir:
    summaries = Summaries(
        settings.summary_dir, first_step=session.step, graph=tf.get_default_graph(),
        warn=warn, texts=dict(
            configuration=format_settings(told, defaults=dataclasses.asdict(Config())),
            run=textwrap.indent(description, '    ')))  # Markdown that keeps lines and columns.
    writers.append(summaries)
  if settings.report:
    notice = session.program.devices.notice
    writers.append(load_extra('report')(
        settings.report, settings=told, first_step=session.step, description=description,
        warnings=[notice] if notice else [], warn=warn,
        read_seconds=lambda: dict(startup.seconds, **progress.seconds())))
  if writers:
    every = build_interval('summary_every', settings.summary_every, session.plan)
    callbacks.append(MetricSamples(session, every=every, metric_writers=writers,
                                   has_validated=history.has_validated))
    callbacks.extend(writers)
  # Other workers than the chief keep none, whatever the run has.
  is_chief = session.program.workers.rank == 0
  return callbacks, Writer(summaries, lambda: session.step, warn if is_chief else None)
