"""A run: a loop over a session, from the workers that meet to the result.

  workers meet ─► graph ─► session ─► newest checkpoint ─► loop ─► result
                    ▲                                        │
                    └─── more micro-batches ◄─── out of memory (accumulate=auto)
"""

import contextlib
import dataclasses
import math
import os
import sys
import textwrap
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import Checkpoints, Snapshot, find_checkpoints
from towers.checkpoint.history import History
from towers.data import BadRecords
from towers.data.examples import Examples
from towers.extras import load_extra
from towers.input.micro_batches import AUTO
from towers.placement.cluster import read_cluster
from towers.placement.devices import Devices
from towers.placement.variables import choose_placement
from towers.process.run_error import OutOfMemory, RunError
from towers.process.signals import Signals
from towers.process.startup import Startup
from towers.session.session import Session
from towers.session.validation_pass import ValidationPass
from towers.settings.config import RunSettings
from towers.settings.table import common_to_workers
from towers.settings.timetable import build_interval, build_timetable, parse_trace_steps
from towers.tensorflow_v1 import tf
from towers.training.auto_accumulate import recall_accumulate, take_in_more
from towers.training.callbacks import Callback, Callbacks, closed_with
from towers.training.loop import Loop
from towers.training.reporting.advice import advise
from towers.training.reporting.describe import describe_run
from towers.training.reporting.metric_samples import MetricSamples, MetricWriter
from towers.training.reporting.progress import Progress
from towers.training.reporting.result import build_result, format_result, write_result
from towers.training.reporting.summaries import Summaries, Writer, format_settings
from towers.training_graph import TrainingGraph
from towers.warm_start.weights_file import check_weights
from towers.workers.worker import Worker, join_workers


class Run:
  """A training run of a program; out of memory it may go on in another graph.

  Attributes:
    program: the program, in its current graph.
    session: the open `towers.Session` that it runs in.
    loss: the mean loss of the newest step's global batch; NaN before the first step.
    validation: the means over the validation split of the newest validation, {} before the first.
    validation_step: the updates after which the weights stood that it has measured; None before.
    validation_examples: how many examples its means are over.
    writer: writes a callback's images, histograms and texts to the summaries, see `Writer`.
    result: what the run has come to, as `towers.train` returns it; {} until its end.
  """

  # Those of the open session, of which a run has another one in each graph.
  program: TrainingGraph
  session: Session
  writer: Writer
  _callbacks: Callbacks
  _loop: Loop
  _progress: Progress

  def __init__(self, settings: RunSettings, told: Mapping[str, Any], startup: Startup,
               signals: Signals, *, bad_records: Optional[BadRecords] = None,
               callbacks: Sequence[Callback] = ()):
    """Prepares, with `startup` and `signals` entered, and the folder of checkpoints locked.

    Args:
      settings: of this worker.
      told: settings of program and run by name, for other workers, summaries and the report.
      bad_records: met in the data, besides those of the splits; None where there can be none.
      callbacks: of the user.
    """
    self._settings, self._told = settings, told
    self._startup, self._signals = startup, signals
    self._bad_records, self._users = [*filter(None, [bad_records])], callbacks
    self._history = History(metric=settings.best_metric, patience=settings.early_stopping)
    self.result: Dict[str, Any] = {}
    self.loss = math.nan
    self.validation: Dict[str, float] = {}
    self.validation_step: Optional[int] = None
    self.validation_examples = 0
    self._description, self._is_auto = '', False
    self._worker: Optional[Worker] = None  # This process among several, once they have met.
    self._trained: Dict[str, float] = {}
    self._mark: Any = None  # Of the session's metrics, while it is open.
    self._step = 0  # The last one, once it is closed.

  @property
  def step(self) -> int:
    """Weight updates so far, those before a resume included."""
    return self._step if self._mark is None else self.session.step

  @property
  def metrics(self) -> Dict[str, float]:
    """The newest means: of the training steps since the validation before, and `validation_…`.

    The first are 'loss' and what the model returns, over the examples of these steps.
    """
    return {**self._find_trained(),
            **{f'validation_{name}': mean for name, mean in self.validation.items()}}

  @property
  def best(self) -> Optional[Dict[str, Any]]:
    """The means of the best validation so far, those before a resume included, with its 'step'."""
    return self._history.best

  @property
  def train_seconds(self) -> float:
    """Seconds of training in this process, without pauses and the first step."""
    return self._progress.train_seconds

  def stop(self, why: str = 'a callback ended it') -> None:
    """Ends the run after this step: it validates, saves, writes its result, and exits with 0.

    Started again, it goes on from there. One of several workers ends all of them.

    Args:
      why: said on the screen and in the result.
    """
    self._loop.stop(why)

  def report_step(self, loss: float) -> None:
    """Takes the loss of a step that is done, and tells the callbacks."""
    self.loss = float(loss)
    self._callbacks.call('on_step')

  def report_validation(self, measured: ValidationPass, means: Dict[str, float]) -> None:
    """Takes a validation that has ended, and tells the callbacks."""
    self._trained, self.validation = self._find_trained(), means
    self.validation_step, self.validation_examples = measured.step, measured.num_examples
    self._mark = self.session.training_metrics.mark()
    self._callbacks.call('on_validation')

  def report_rewind(self) -> None:
    """Tells the callbacks that the session is at an earlier step."""
    self._callbacks.call('on_rewind')

  def warn(self, text: str) -> None:
    """Gives the user and the callbacks a warning; from any thread."""
    self._callbacks.warn(text)

  def _find_trained(self):
    """Returns the means of training since the last validation, or those before it."""
    if self._mark is None:
      return self._trained
    return self.session.training_metrics.since(self._mark) or self._trained

  def _keep_last(self):
    """Keeps what callbacks may ask for once the session is closed."""
    self._step, self._trained, self._mark = self.session.step, self._find_trained(), None

  @contextlib.contextmanager
  def joined(self, given: Any, devices: Devices,
             splits: Sequence[Optional[Examples]]) -> Iterator[int]:
    """Meets the other workers, if any; yields how many micro-batches to build the program in.

    What is `given` has the settings of the program, and the splits are training and validation.
    """
    settings, accumulate, start = self._settings, given.accumulate, given.init_from
    cluster, folder = read_cluster(os.environ), settings.checkpoint_dir
    if (cluster.is_chief and start is not None and not callable(start) and
        not (folder and find_checkpoints(folder))):
      check_weights(os.fspath(getattr(start, 'path', start)))
    for split in filter(None, splits):
      self._bad_records += [log for log in split.bad_records if log not in self._bad_records]
    with join_workers(
        cluster,
        dict(common_to_workers(self._told), towers=len(devices.names),
             variables=choose_placement(given.variables, devices.names).kind,
             training_data=splits[0], validation_data=splits[1]),
        session_settings=dict(settings.session_settings(), devices=devices,
                              collective=given.collective, precision=given.precision),
        startup=self._startup, start_seconds=settings.start_seconds,
        worker_seconds=settings.worker_seconds) as self._worker:
      self._is_auto = accumulate == AUTO
      if self._is_auto:
        accumulate = recall_accumulate(
            settings.checkpoint_dir, batch_size=given.batch_size,
            num_towers=len(devices.names) - given.validation_tower, worker=self._worker)
      yield accumulate

  def train(self, program: TrainingGraph, **described: str) -> Dict[str, Any]:
    """Trains as the worker that has `joined`, or follows as the evaluator; see `towers.train`.

    `described` is what `describe_run` is to say besides.
    """
    cluster, settings = read_cluster(os.environ), self._settings
    self._history.check_metric(program.validation.names if program.validation else ())
    if cluster.is_evaluator:
      settings = dataclasses.replace(settings, best_metric=str(self._history.metric))
      load_extra('an evaluator')(program, settings, startup=self._startup)
      return {}
    self._describe(program, cluster, described)
    with closed_with(self, self._users):
      snapshot, reached = None, 0
      while not self.result:
        try:
          self._train_in_session(program, snapshot, reached)
        except OutOfMemory as shortage:
          if not self._is_auto:
            raise
          self._startup.begin('graph', 'building the graph again')
          program = take_in_more(shortage, program, folder=settings.checkpoint_dir,
                                 worker=self._worker)
          snapshot, reached = shortage.snapshot, shortage.step
    if settings.result_file:
      write_result(settings.result_file, self.result)
    if cluster.is_chief:  # The other workers have printed what is theirs.
      write_line(format_result(self.result, time.monotonic() - self._startup.started))
    return self.result

  def _describe(self, program, cluster, described):
    """Says what is trained, where, and whether it is kept."""
    with program.graph.as_default():
      self._description = describe_run(program, best=self._history.metric.describe(), **described)
    write_line(self._description if cluster.is_chief else
               f'{cluster.describe(cluster.rank)} of {cluster.num_workers}; '
               f'{cluster.describe(0)} prints the rest')
    if cluster.is_chief and not self._settings.checkpoint_dir:
      write_line('no checkpoint_dir: the weights are gone when the run ends')

  def _train_in_session(self, program: TrainingGraph, snapshot: Optional[Snapshot],
                        reached: int) -> None:
    """Trains a program to its last step, from the newest checkpoint on.

    Or from a snapshot, where the run stood between two steps of a former graph. Steps up to
    `reached` were done there, and those behind the snapshot are taken again.
    """
    settings, startup, worker = self._settings, self._startup, self._worker
    if settings.keeps_curves:
      program.build_gradient_norm()
    self.program, self._callbacks = program, Callbacks(self, (), self._users)
    self.session = session = Session(program, stall_seconds=settings.stall_seconds,
                                     **settings.session_settings())
    session.is_of_run = True
    with session.opened(startup, worker), session.as_default():
      checkpoints = session.checkpoints_in(
          settings.checkpoint_dir, keep=settings.keep_checkpoints, new_data=settings.new_data,
          stop_on_full_disk=settings.on_full_disk == 'stop', warn=self.warn)
      self._resume(checkpoints, snapshot)
      try:
        with session.explained(), contextlib.ExitStack() as closing:
          startup.begin('first step', 'running the first step')
          session.watch()
          startup.limit(None)
          self._build_loop(checkpoints, closing)
          if session.step < reached:
            self.report_rewind()
          session.start()
          # Before, there is nothing to save, and a signal ends the process at once.
          self._signals.leave_to_run(self._progress.seconds_per_step)
          self._loop.run()
          self.result = build_result(self, self._progress, self._loop,
                                     trained=self._find_trained(), started=startup.started)
          self._callbacks.call('on_end')
          if worker is not None:
            worker.peers.stop()
      except OutOfMemory as shortage:
        if self._is_auto and worker is None:
          # Saved too, since a signal while the graph is built again leaves no time for it.
          shortage.snapshot = self._loop.suspend(shortage)
        raise
      advice = advise(self._progress.input_wait or 0.0, program, data=self._told.get('data', ''))
      if advice:
        write_line(advice)

  def _build_loop(self, checkpoints: Checkpoints, closing: contextlib.ExitStack) -> None:
    """Builds the loop, and the callbacks of the run's own, which end with `closing`."""
    session, settings, startup = self.session, self._settings, self._startup
    is_chief = self._worker is None or self._worker.cluster.is_chief
    timetable = build_timetable(settings, session.plan)
    if not is_chief:
      timetable = timetable._replace(save_seconds=math.inf)  # The chief's clock counts.
    self._progress = progress = Progress(
        session, total_steps=timetable.total_steps, on_first_step=startup.finish,
        is_chief=is_chief)
    closing.enter_context(watch_records(self._bad_records, progress))
    own = [progress, *self._build_callbacks()]
    closing.enter_context(closed_with(self, own))
    self._callbacks = Callbacks(self, own, self._users)
    self._loop = Loop(self, timetable=timetable, checkpoints=checkpoints, history=self._history,
                      progress=progress, signals=self._signals, on_nan=settings.on_nan,
                      end_at=startup.started + (settings.max_seconds or math.inf))
    self._mark = session.training_metrics.mark()
    closing.callback(self._keep_last)

  def _build_callbacks(self) -> List[Callback]:
    """Returns the callbacks that keep what settings ask for: a timeline, curves and the report.

    The session stands behind the steps that earlier runs did.
    """
    session, settings, first_step = self.session, self._settings, self.session.step
    callbacks: List[Callback] = []
    writers: List[MetricWriter] = []
    summaries: Optional[Summaries] = None
    if settings.trace_steps:
      first, last = parse_trace_steps(settings.trace_steps)
      callbacks.append(load_extra('trace_steps')(
          settings.trace_file, session, first=first, last=last, first_step=first_step,
          warn=self.warn))
    if settings.summary_dir:
      summaries = Summaries(
          settings.summary_dir, first_step=first_step, graph=tf.get_default_graph(),
          warn=self.warn, texts=dict(
              configuration=format_settings(self._told),
              run=textwrap.indent(self._description, '    ')))  # Markdown that keeps lines.
      writers.append(summaries)
    if settings.report:
      notice = session.program.devices.notice
      writers.append(load_extra('report')(
          settings.report, settings=self._told, first_step=first_step, warn=self.warn,
          description=self._description, warnings=[notice] if notice else [],
          read_seconds=lambda: dict(self._startup.seconds, **self._progress.seconds())))
    if writers:
      every = build_interval('summary_every', settings.summary_every, session.plan)
      callbacks.append(MetricSamples(session, every=every, metric_writers=writers,
                                     has_validated=self._history.has_validated))
      callbacks.extend(writers)
    # Other workers than the chief keep none, whatever the run has.
    is_chief = session.program.workers.rank == 0
    self.writer = Writer(summaries, lambda: session.step, self.warn if is_chief else None)
    return callbacks

  def _resume(self, checkpoints: Checkpoints, snapshot: Optional[Snapshot]) -> None:
    """Gives variables and history their values: of a snapshot, else of the newest checkpoint."""
    session, history, settings, path = self.session, self._history, self._settings, None
    if snapshot is not None:
      session.resume_snapshot(snapshot)
    else:
      path = session.resume(checkpoints, history)
    history.drop_after(session.step)
    session.scale_learning_rate(history.rate_factor)
    if path is not None:
      done, planned = session.step, settings.count_steps(session.plan)
      write_line(f'resumed from {path}: {done} of {planned} steps are done')
      advice = ('more steps' if done >= planned else history.has_stopped and
                'a larger early_stopping, or none,')
      if advice:  # Who tries settings in one folder would take them for equal.
        write_line(f'WARNING: no step is left to take: give {advice} to go on, or another '
                   'checkpoint_dir to begin another run', sys.stderr)
    length, is_constant = settings.length, isinstance(self.program.learning_rate, float)
    if path is not None and history.length not in (None, length) and not is_constant:
      write_line(f'the run was to have {history.length} and is now to have {length}: a rate that '
                 'falls over the whole run, as schedule=cosine, goes on as one of the new length, '
                 f'with {session.learning_rate():.3g}')
    history.length = length


@contextlib.contextmanager
def watch_records(bad_records: Sequence[BadRecords], progress: Any) -> Iterator[None]:
  """Turns a pipeline's error into one that names the damaged record; sums up skipped ones."""
  try:
    yield
  except (tf.errors.OpError, RunError):
    for log in bad_records:
      if log.failure is not None:
        raise UsageError(log.failure) from None
    raise
  finally:
    for summary in filter(None, [log.summary() for log in bad_records]):
      progress.write(f'WARNING: {summary}')
