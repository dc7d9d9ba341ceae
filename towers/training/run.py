"""A run: a loop over a session, from the workers that meet to the result.

  workers meet ─► graph ─► session ─► newest checkpoint ─► loop ─► result
                    ▲                                        │
                    └─── more micro-batches ◄─── out of memory (accumulate=auto)
"""

import contextlib
import math
import os
import time
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence

from towers.annexes import load as load_annex
from towers.base.best_metric import parse_best_metric
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import Checkpoints, Snapshot
from towers.checkpoint.history import History
from towers.data import BadRecords
from towers.data.examples import Examples
from towers.input.micro_batches import AUTO
from towers.placement.cluster import read_cluster
from towers.placement.devices import Devices
from towers.placement.variables import choose_placement
from towers.process.run_error import OutOfMemory, RunError
from towers.process.signals import Signals
from towers.process.startup import Startup
from towers.session.session import Session
from towers.session.validation_pass import ValidationPass
from towers.settings.run_settings import RunSettings
from towers.settings.table import common_to_workers
from towers.settings.timetable import Timetable, build_timetable
from towers.tensorflow_v1 import tf
from towers.training.callbacks import Callback, Callbacks
from towers.training.fitting import recall_accumulate, take_in_more
from towers.training.loop import Loop
from towers.training.reporting.advice import advise
from towers.training.reporting.describe import describe_run
from towers.training.reporting.kept import build_callbacks
from towers.training.reporting.progress import Progress
from towers.training.reporting.result import build_result, format_result, write_result
from towers.training.reporting.writer import Writer
from towers.training_graph import TrainingGraph
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

  program: TrainingGraph
  session: Session
  writer: Writer
  _loop: Loop
  _progress: Progress
  _called: Callbacks
  _worker: Optional[Worker]
  _description: str
  _is_auto: bool

  def __init__(self, settings: RunSettings, told: Mapping[str, Any], startup: Startup,
               signals: Signals, *, bad_records: Optional[BadRecords] = None,
               callbacks: Sequence[Callback] = ()):
    """Prepares.

    Args:
      settings: of this worker; its folder is locked.
      told: settings of program and run by name, for other workers, summaries and the report.
      startup: entered; finished with the first step.
      signals: entered.
      bad_records: met in the data, besides those of the splits; None where there can be none.
      callbacks: of the user.
    """
    self._settings, self._told = settings, told
    self._startup, self._signals = startup, signals
    self._bad_records, self._callbacks = [*filter(None, [bad_records])], callbacks
    self.result: Dict[str, Any] = {}
    self.loss = math.nan
    self.validation: Dict[str, float] = {}
    self.validation_step: Optional[int] = None
    self.validation_examples = 0
    self._trained: Dict[str, float] = {}

  @property
  def step(self) -> int:
    """Weight updates so far, those before a resume included."""
    return self.session.step

  @property
  def metrics(self) -> Dict[str, float]:
    """The newest means: of the training steps since the validation before, and `validation_…`.

    The first are 'loss' and what the model returns, over the examples of these steps.
    """
    return {**self._find_trained(),
            **{f'validation_{name}': mean for name, mean in self.validation.items()}}

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
    self._called.call('on_step')

  def report_validation(self, measured: ValidationPass, means: Dict[str, float]) -> None:
    """Takes a validation that has ended, and tells the callbacks."""
    self._trained, self.validation = self._find_trained(), means
    self.validation_step, self.validation_examples = measured.step, measured.num_examples
    self._mark = self.session.training_metrics.mark()
    self._called.call('on_validation')

  def report_rewind(self) -> None:
    """Tells the callbacks that the session is at an earlier step."""
    self._called.call('on_rewind')

  def warn(self, text: str) -> None:
    """Gives the user and the callbacks a warning; from any thread."""
    self._called.warn(text)

  def _find_trained(self):
    """Returns the means of training since the last validation, or those before it."""
    return self.session.training_metrics.since(self._mark) or self._trained

  def train(self, build: Callable[[int], TrainingGraph], given: Any, *, devices: Devices,
            num_towers: int, splits: Sequence[Optional[Examples]],
            described: Optional[Mapping[str, str]] = None) -> Dict[str, Any]:
    """Trains as the worker that this process is, or follows as the evaluator; see `towers.train`.

    Args:
      build: returns the program in a number of micro-batches.
      given: has the settings of the program.
      devices: of this worker's towers.
      num_towers: that train, of these.
      splits: the data: training, validation.
      described: what `describe_run` is to say besides.
    """
    cluster = read_cluster(os.environ)
    settings, accumulate = self._settings, given.accumulate
    for split in filter(None, splits):
      self._bad_records += [log for log in split.bad_records if log not in self._bad_records]
    self._is_auto = accumulate == AUTO
    with contextlib.ExitStack() as closing:
      self._worker = closing.enter_context(join_workers(
          cluster, dict(common_to_workers(self._told), towers=len(devices.names),
                        variables=choose_placement(given.variables, devices.names).kind,
                        training_data=splits[0], validation_data=splits[1]),
          session_settings=dict(settings.session_settings(), devices=devices,
                                collective=given.collective, precision=given.precision),
          startup=self._startup, start_seconds=settings.start_seconds,
          worker_seconds=settings.worker_seconds))
      if self._is_auto:
        accumulate = recall_accumulate(
            settings.checkpoint_dir, batch_size=given.batch_size, num_towers=num_towers,
            worker=self._worker)
      self._is_chief = self._worker is None or cluster.is_chief
      program = build(accumulate)
      if cluster.is_evaluator:
        load_annex('an evaluator')(program, settings, startup=self._startup)
        return {}
      self._describe(program, cluster, described or {})
      for callback in self._callbacks:
        closing.callback(callback.on_close, self)
      snapshot, reached = None, 0
      while not self.result:
        try:
          self._train_in_session(program, snapshot, reached)
        except OutOfMemory as shortage:
          if not self._is_auto:
            raise
          program = take_in_more(shortage, program, rebuild=build, folder=settings.checkpoint_dir,
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
      self._description = describe_run(
          program, best=parse_best_metric(self._settings.best_metric).describe(), **described)
    write_line(self._description if cluster.is_chief else
               f'{cluster.describe(cluster.rank)} of {cluster.num_workers}; '
               f'{cluster.describe(0)} prints the rest')
    if cluster.is_chief and not self._settings.checkpoint_dir:
      write_line('no checkpoint_dir: the weights are gone when the run ends')

  def _train_in_session(self, program: TrainingGraph, snapshot: Optional[Snapshot],
                        reached: int) -> None:
    """Trains a program to its last step, from the newest checkpoint on.

    Args:
      program: to train.
      snapshot: where the run stood between two steps of a former graph, to go on from instead.
      reached: the steps that were done there; what comes before is taken again.
    """
    settings, worker, self.program = self._settings, self._worker, program
    history = History(metric=settings.best_metric, patience=settings.early_stopping)
    if program.validation is not None:
      history.check_metric(program.validation.all_names)
    if settings.keeps_curves:
      program.build_gradient_norm()
    self.session = session = Session(program, stall_seconds=settings.stall_seconds,
                                     **settings.session_settings())
    with session.opened(self._startup, worker), session.as_default():
      checkpoints = session.checkpoints_in(
          settings.checkpoint_dir, keep=settings.keep_checkpoints,
          stop_on_full_disk=settings.on_full_disk == 'stop', new_data=settings.new_data)
      timetable = self._resume(checkpoints, history, snapshot)
      try:
        with session.explained(), contextlib.ExitStack() as closing:
          self._called = Callbacks(self, self._callbacks, lambda: self._loop.save_last())
          progress = self._show(timetable, closing)
          self._loop = Loop(
              self, timetable=timetable, checkpoints=checkpoints, history=history,
              progress=progress, signals=self._signals,
              end_at=settings.max_seconds and self._startup.started + settings.max_seconds)
          if session.step < reached:
            self.report_rewind()
          kept, self.writer = build_callbacks(
              settings, self._told, self._description, session=session, progress=progress,
              warn=self.warn, startup=self._startup, history=history)
          for callback in kept:
            self._add(callback, closing)
          self._mark = session.training_metrics.mark()
          session.start()
          # Before, there is nothing to save, and a signal ends the process at once.
          self._signals.leave_to_run(progress.seconds_per_step)
          self.result = build_result(
              session, progress, self._loop.run(), trained=self._find_trained(),
              started=self._startup.started)
          self._called.call('on_end')
          if worker is not None:
            worker.peers.stop()
      except OutOfMemory as shortage:
        if self._is_auto and worker is None:
          # Saved too, since a signal while the graph is built again leaves no time for it.
          shortage.snapshot = self._loop.suspend(shortage)
        raise
      advice = advise(progress.input_wait or 0.0, program, data=self._told.get('data', ''))
      if advice:
        write_line(advice)

  def _resume(self, checkpoints: Checkpoints, history: History,
              snapshot: Optional[Snapshot]) -> Timetable:
    """Gives the variables their values, and the history its own; returns when to do what."""
    session, path = self.session, None
    if snapshot is not None:
      session.go_on_from(snapshot)
      history.parse(snapshot.history, session.step)
    else:
      path = session.resume(checkpoints, history)
    session.scale_learning_rate(history.rate_factor)
    timetable = build_timetable(self._settings, session.plan)
    if path is not None:
      write_line(f'resumed from {path}: {session.step} of {timetable.total_steps} steps are done')
    length, is_constant = self._settings.length, isinstance(self.program.learning_rate, float)
    if path is not None and history.length not in (None, length) and not is_constant:
      write_line(f'the run was to have {history.length} and is now to have {length}: a rate that '
                 'falls over the whole run, as schedule=cosine, goes on as one of the new length, '
                 f'with {session.learning_rate():.3g}')
    history.length = length
    # The chief's clock counts.
    return timetable if self._is_chief else timetable._replace(save_seconds=None)

  def _add(self, callback: Callback, closing: contextlib.ExitStack) -> None:
    """Adds a callback of the run's own, until `closing` ends."""
    self._called.add(callback)
    closing.callback(callback.on_close, self)

  def _show(self, timetable: Timetable, closing: contextlib.ExitStack) -> Progress:
    """Returns what shows the steps to come, until `closing` ends."""
    session, startup = self.session, self._startup
    startup.begin('first step', 'running the first step')
    session.watch()
    startup.limit(None)
    self._progress = progress = Progress(
        session, total_steps=timetable.total_steps, on_first_step=startup.finish,
        is_chief=self._is_chief)
    closing.enter_context(watch_records(self._bad_records, progress))
    self._add(progress, closing)
    return progress


@contextlib.contextmanager
def watch_records(bad_records: Sequence[BadRecords], progress: Any) -> Iterator[None]:
  """Turns a pipeline's error into one that names the damaged record; sums up skipped ones.

  Raises:
    UsageError: under the policy 'fail', in place of the session's or TensorFlow's error.
  """
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
