"""A run: a loop over a session, from the first variable to the result."""

import contextlib
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Optional, Sequence

from tensorflow_v1 import tf
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.data import BadRecords
from towers.placement.counters import get_examples_seen
from towers.session import Session
from towers.training.callbacks import Callbacks
from towers.training.cluster.worker import Worker
from towers.training.faults.run_error import OutOfMemory
from towers.training.faults.signals import Signals
from towers.training.fitting import take_in_more
from towers.training.keeper import Keeper
from towers.training.loop import Loop
from towers.training.reporting.kept import build_callbacks
from towers.training.reporting.progress import Callback, Progress
from towers.training.reporting.result import advise, build_result
from towers.training.reporting.writer import Writer
from towers.training.saving.checkpoints import ChiefsCheckpoints
from towers.training.saving.history import History
from towers.training.saving.standing import Standing, take_standing
from towers.training.settings.config import Config
from towers.training.settings.timetable import Timetable, build_timetable
from towers.training.stepping.out_of_memory import has_changed_nothing
from towers.training.stepping.startup import Startup
from towers.training_graph import TrainingGraph


class Request(NamedTuple):
  """What is asked of a run.

  Attributes:
    config: of this worker; its folder is locked.
    settings: of program and run, by name, for summaries and the report.
    startup: entered; finished with the first step.
    signals: entered.
    bad_records: met in the data; None where there can be none.
    callbacks: of the user.
  """
  config: Config
  settings: Mapping[str, Any]
  startup: Startup
  signals: Signals
  bad_records: Optional[BadRecords] = None
  callbacks: Sequence[Callback] = ()


class Run:
  """A training run of a program; out of memory it may go on in another graph.

  Attributes:
    program: the program, in its current graph.
    session: the open `towers.Session` that it runs in.
    writer: writes a callback's images, histograms and texts to the summaries, see `Writer`.
    result: what the run has come to, as `towers.train` returns it; {} until its end.
  """

  session: Session
  writer: Writer
  _loop: Loop

  def __init__(self, program: TrainingGraph, request: Request, *, description: str,
               worker: Optional[Worker] = None):
    """Prepares.

    Args:
      program: built.
      request: what is asked of it.
      description: of the program, some lines.
      worker: this process among several workers, which have met; or None.
    """
    self.program = program
    self._request, self._config, self._settings = request, request.config, request.settings
    self._startup, self._signals = request.startup, request.signals
    self._description, self._worker, self._callbacks = description, worker, request.callbacks
    self.result: Dict[str, Any] = {}
    self._trained: Dict[str, float] = {}
    self._validated: Dict[str, float] = {}

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
            **{f'validation_{name}': mean for name, mean in self._validated.items()}}

  def stop(self, why: str) -> None:
    """Ends the run after this step: it validates, saves, writes its result, and exits with 0.

    Started again, it goes on from there. One of several workers ends all of them.

    Args:
      why: said on the screen and in the result.
    """
    self._loop.stop(why)

  def note_validation(self, means: Dict[str, float]) -> None:
    """Takes the means of a validation that has ended; the training steps behind it begin anew."""
    self._trained, self._validated = self._find_trained(), means
    self._mark = self.session.steps.metrics.mark()

  def _find_trained(self):
    """Returns the means of training since the last validation, or those before it."""
    return self.session.steps.metrics.since(self._mark) or self._trained

  def train(self, rebuild: Optional[Callable[[int], TrainingGraph]] = None) -> Dict[str, Any]:
    """Runs from the newest checkpoint to the last step; returns what `--result_file` holds.

    Where a step does not fit, the run goes on from there in more micro-batches, in another graph.

    Args:
      rebuild: builds the program in a number of micro-batches, in a graph of its own; None to end
        if a step does not fit.

    Raises:
      UsageError: checkpoints of another program, or settings that do not fit it.
      RunError: the run cannot go on.
      Interrupted: a signal ended it.
    """
    standing: Optional[Standing] = None
    reached = 0
    with contextlib.ExitStack() as closing:
      for callback in self._callbacks:
        closing.callback(callback.close)
      while True:
        try:
          result = self._train_in_session(
              standing, reached, may_shrink=rebuild is not None and self._worker is None)
          break
        except OutOfMemory as shortage:
          if rebuild is None:
            raise
          self.program = take_in_more(shortage, self.program, rebuild=rebuild, worker=self._worker,
                                      folder=self._config.checkpoint_dir)
          standing, reached = shortage.standing, shortage.step
    for callback in self._callbacks:
      callback.finish(result)
    return result

  def _train_in_session(self, standing: Optional[Standing], reached: int, *,
                        may_shrink: bool) -> Dict[str, Any]:
    """Trains in the current graph.

    Args:
      standing: where the run stands between two steps of a former graph; None to go on from its
        newest checkpoint.
      reached: the steps that were done there; what comes before is taken again.
      may_shrink: whether an OutOfMemory is to tell where the run stands.
    """
    config, program = self._config, self.program
    history = self._build_history()
    if config.keeps_curves:
      program.build_gradient_norm()
    self.session = session = Session(program, stall_seconds=config.stall_seconds,
                                     **config.session_settings())
    with session.opened(self._startup, self._worker), session.as_default():
      checkpoints = self._build_checkpoints()
      try:
        with session.explained():
          path = self._begin(checkpoints, history, standing)
          timetable = self._build_timetable()
          if path is not None:
            write_line(f'resumed from {path}: {session.step} of {timetable.total_steps} steps are '
                       'done')
          return self._loop_from(session.step, timetable, checkpoints, history, reached)
      except OutOfMemory as shortage:
        if may_shrink and (session.steps.pass_began is not None or
                           has_changed_nothing(shortage.error, session.steps)):
          shortage.standing = take_standing(session.tf_session, history, session.steps.pass_began)
          # A signal while the graph is built again leaves no time to save.
          Keeper(session, checkpoints, history).save_standing()
        raise

  def _build_timetable(self) -> Timetable:
    config = self._config
    timetable = build_timetable(
        self.session.steps.plan, epochs=config.epochs, steps=config.steps, on_nan=config.on_nan,
        validate_every=config.validate_every, checkpoint_every=config.checkpoint_every)
    is_chief = self._worker is None or self._worker.cluster.is_chief
    # The chief's clock counts.
    return timetable if is_chief else timetable._replace(save_seconds=None)

  def _build_history(self) -> History:
    history = History(metric=self._config.best_metric, patience=self._config.early_stopping)
    if self.program.validation is not None:
      history.check_metric(self.program.validation.all_names)
    return history

  def _build_checkpoints(self) -> Any:
    """Returns what saves the run and finds its newest checkpoint; None if it saves nothing."""
    config = self._config
    if not config.checkpoint_dir:
      return None
    if self._worker is not None and not self._worker.cluster.is_chief:
      return ChiefsCheckpoints()
    return self.session.state.checkpoints_in(config.checkpoint_dir, keep=config.keep_checkpoints,
                                       stop_on_full_disk=config.on_full_disk == 'stop',
                                       new_data=config.new_data)

  def _begin(self, checkpoints: Any, history: History,
             standing: Optional[Standing]) -> Optional[str]:
    """Gives the variables of all workers the values to go on from; returns the checkpoint."""
    session = self.session
    path = None
    if standing is not None:
      standing.restore(session.tf_session)
      session.steps.resume(standing.step)
      history.parse(standing.history, standing.step)
    else:
      may_skip = (self._config.on_bad_record == 'skip' or self.program.train_examples.marks_bad)
      path = session.state.take_up(lambda: (checkpoints, None), may_skip=may_skip)
      if path is None:
        session.state.begin()
    if path is not None:
      if checkpoints.folder is not None:
        history.read(checkpoints.folder, session.step)
      else:
        checkpoints.write(checkpoints.take(session.tf_session))  # The chief has it saved.
      if self._worker is not None:
        history.parse(self._worker.share(history.format())[0], session.step)
    session.steps.scale_learning_rate(history.rate_factor)
    return path

  def _loop_from(self, step: int, timetable: Timetable, checkpoints: Any, history: History,
                 reached: int) -> Dict[str, Any]:
    """Takes the steps behind `step`; returns the result."""
    session, startup, steps = self.session, self._startup, self.session.steps
    startup.begin('first step', 'running the first step')
    session.watchdog.steps = steps
    startup.limit(None)
    progress = Progress(
        total_steps=timetable.total_steps, first_step=step, plan=steps.plan,
        learning_rate=steps.learning_rate, on_first_step=startup.finish,
        input_wait_seconds=lambda: steps.metrics.input_wait_seconds, metrics=steps.metrics,
        is_quiet=self._config.quiet)
    if checkpoints:
      checkpoints.warn = progress.write

    with watch_records(self._request.bad_records, progress), contextlib.ExitStack() as closing:
      closing.callback(progress.close)
      own, summaries = build_callbacks(
          self._config, self._settings, self._description, steps=steps, progress=progress,
          startup=startup, history=history)
      for callback in own:
        closing.callback(callback.close)
      self.writer, self._mark = Writer(summaries, lambda: steps.step), steps.metrics.mark()
      self._loop = loop = Loop(
          session, timetable=timetable, checkpoints=checkpoints, progress=progress, history=history,
          signals=self._signals, end_at=self._find_end())
      callbacks = Callbacks(self, self._callbacks, loop.save_last)
      progress.callbacks.extend([*own, callbacks])
      if step < reached:
        callbacks.rewind(step)
      session.start(step)
      # Before, there is nothing to save, and a signal ends the process at once.
      self._signals.leave_to_run(progress.seconds_per_step)
      end = loop.run()
      examples_seen = int(session.tf_session.run(get_examples_seen()))
      self.result = build_result(
          steps, progress, end, trained=self._find_trained(), examples_seen=examples_seen,
          started=startup.started)
      callbacks.end()
      if self._worker is not None:
        self._worker.peers.stop()
    steps.activity = 'the end'
    self._advise(progress)
    for callback in own:
      callback.finish(self.result)
    return self.result

  def _find_end(self) -> Optional[float]:
    """Returns by when the run is to end, by time.monotonic(), or None."""
    seconds = self._config.max_seconds
    return None if seconds is None else self._startup.started + seconds

  def _advise(self, progress):
    """Says what would make the input faster, if the towers wait for it."""
    advice = advise(progress.input_wait or 0.0, input_threads=self._settings['input_threads'],
                    staging_depth=self._settings['staging_depth'],
                    is_image_folder=self._settings.get('data') == 'images',
                    needs_threads=self.program.feed.inputs.needs_threads)
    if advice:
      write_line(advice)


@contextlib.contextmanager
def watch_records(bad_records: Optional[BadRecords], progress: Any) -> Iterator[None]:
  """Turns a pipeline's error into one that names the damaged record; sums up skipped ones.

  Raises:
    UsageError: under the policy 'fail', in place of TensorFlow's error.
  """
  try:
    yield
  except tf.errors.OpError:
    if bad_records is None or bad_records.failure is None:
      raise
    raise UsageError(bad_records.failure) from None
  finally:
    if bad_records is not None and bad_records.summary():
      progress.write(bad_records.summary())
