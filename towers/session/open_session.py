"""The open session: a program's variables from when its `tf.Session` is opened until it is closed.

  opened ─► resume | restore ─► start ─► (steps) ─► snapshot, save ─► closed

This is the only place that opens a program's `tf.Session`: it meets the other workers, gives the
variables their values, and explains errors in plain words.
"""

import contextlib
import os
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, TypeVar

from towers.base.checksums import INDEX
from towers.base.output import write_line
from towers.base.paths import read_path
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import Checkpoints, Snapshot, find_best, path_of
from towers.checkpoint.history import History
from towers.checkpoint.lock import lock_folder
from towers.checkpoint.restore import Data, restore_variables
from towers.data.digest import Digest, take_digest
from towers.input.plan import Plan
from towers.input.resume_point import ResumePoint
from towers.placement.cluster import read_cluster
from towers.placement.devices import build_session_config
from towers.process.startup import Startup
from towers.session.engine import Engine
from towers.session.failure import explain
from towers.session.watchdog import Watchdog
from towers.tensorflow_v1 import RUN_ERRORS, SessionInterface, SharedSession, is_run_error, tf
from towers.training_graph import TrainingGraph
from towers.update.learning_rate import get_rate_factor
from towers.warm_start.matching import Names
from towers.warm_start.slices import open_reader
from towers.warm_start.warm_start import load_values
from towers.workers.agreement import follow_chief
from towers.workers.worker import Worker, join_workers

Self = TypeVar('Self', bound='OpenSession')

_TOGETHER = 'the first step', 'training', 'validation'  # Of which each needs all workers.
_MOST_SECONDS_OF_A_STEP = 30.0  # That another thread takes, before a call says that it waits.


class OpenSession(SessionInterface):
  """A program in a `tf.Session`, whose variables start, go on from others, and are saved."""

  def __init__(self, program: TrainingGraph, *, stall_seconds: Optional[float] = None,
               **settings: Any):
    """Prepares, with the arguments of `towers.Program.session`; the session opens with `with`."""
    self.program = program
    self.watchdog = Watchdog(limit_seconds=stall_seconds or float('inf'))
    self._has_watchdog = stall_seconds is not None
    self._settings: Dict[str, Any] = dict(
        settings, collective=program.given.collective, precision=program.given.precision)
    self._closing = contextlib.ExitStack()
    self._opened: Optional[Engine] = None
    self._closed_at: Optional[int] = None
    self._worker: Optional[Worker] = None
    self._digest: Optional[Digest] = None  # Of the training examples, once it is asked for.
    self._calling = threading.RLock()  # Whose owner is in a call.
    # An entry for each thread that waits for it: a number may lose one of two added at once.
    self._waiting: List[None] = []

  def open(self: Self) -> Self:
    """Opens the session until `close`, as `with` does, but changes no default of TensorFlow's.

    Any thread may open, call and close it; a call waits for that of another thread. To open it
    twice is a UsageError.
    """
    if self._opened is not None:
      raise UsageError('The session is open already: call session.close() before.')
    with contextlib.ExitStack() as closing, Startup(time.monotonic()) as startup:
      closing.enter_context(self.opened(startup))
      with self.as_default(), self.explained():
        self._engine.broadcast()
        self._engine.start()
      self.program.sessions.append(self)
      closing.callback(self.program.sessions.remove, self)
      self._closing = closing.pop_all()
    return self

  def close(self) -> None:
    """Closes the session, and frees what it holds; does nothing to one that is not open."""
    self._closing.close()

  def __enter__(self: Self) -> Self:
    self.open()
    self._closing.enter_context(self.as_default())
    return self

  def __exit__(self, *error: Any) -> None:
    self._closing.__exit__(*error)

  def __repr__(self) -> str:
    where = f'at step {self._opened.step}' if self._opened else 'not open'
    return f'<towers.Session {where}, of {self.program!r}>'

  @contextlib.contextmanager
  def opened(self: Self, startup: Startup, worker: Optional[Worker] = None) -> Iterator[Self]:
    """Opens the session with new variables; no input is started, and nothing is restored.

    The worker is this process among several that have met; None to meet them, if any.
    """
    with contextlib.ExitStack() as closing:
      with self.program.graph.as_default():
        self._worker = worker or closing.enter_context(self._join(startup))
        if self._worker is not None:
          self._worker.compare_graphs(self.program.graph, startup)
          self._worker.peers.find_call = self._find_call
        startup.begin('variables', 'starting the variables')
        if self._has_watchdog:
          closing.enter_context(self.watchdog)
          if self._worker is not None:
            self._worker.peers.is_busy = self.watchdog.is_busy
        session = closing.enter_context(contextlib.closing(self._open()))
        self._opened = Engine(SharedSession(session, self._note_outside_run), self.program)
        closing.push(self._close)
        with self.explained():
          self._opened.start_variables()
      yield self

  @contextlib.contextmanager
  def as_default(self) -> Iterator[None]:
    """Opens a context in which graph and session are TensorFlow's defaults."""
    with self.program.graph.as_default(), self.tf_session.as_default():
      yield

  @property
  def graph(self) -> tf.Graph:
    """The program's, for functions of TensorFlow that take a session: `eval`, a `Saver`'s `save`.

    They run what they need by `run`.
    """
    return self.program.graph

  @property
  def tf_session(self) -> tf.Session:
    """The open `tf.Session` beneath, for tools that take one.

    A run there that takes a batch must put the next one by itself, with `feed.put_ops`; else a
    later run fails by name. `run` does all that. Where a run there moves `global_step`, as a
    `tf.train.Saver` does that restores, the next call of this session follows it, with the input.
    """
    return self._engine.session.given

  @property
  def step(self) -> int:
    """Weight updates so far, those before a `restore` included; of a closed session, until then."""
    engine = self._opened
    if engine is None and self._closed_at is not None:
      return self._closed_at
    if engine is None or engine.ran_outside:
      with self._called() as engine:
        pass
    return engine.step

  @property
  def plan(self) -> Plan:
    """The plan of the training split, from where the session has resumed."""
    return self._engine.plan

  def snapshot(self) -> Snapshot:
    """Returns the variables and counters, and where the data stands, between two steps.

    With several workers all call it, and only the chief's has values.

    Raises:
      RunError: the towers' replicas of a variable differ.
    """
    with self._called('saving') as engine:
      return engine.take_snapshot()

  def save(self, folder: str = '') -> str:
    """Saves all variables and counters as a checkpoint in `folder`; returns its path.

    With several workers all call it, and the chief writes.

    Raises:
      UsageError: the folder is not given or cannot be made, or a run saves there.
      RunError: it cannot be written.
    """
    folder = read_path(folder, line="session.save('checkpoints')")
    snapshot = self.snapshot()
    if self.program.workers.rank != 0:
      return ''
    with self._called('saving'), lock_folder(folder), contextlib.closing(
        self.checkpoints_in(folder, stop_on_full_disk=True)) as saved:
      return saved.save(snapshot)

  def restore(self, folder: str = '', *, best: bool = False, best_metric: Optional[str] = None,
              map: Names = None, new: Sequence[str] = (), new_data: bool = False) -> str:
    """Restores a checkpoint, and goes on with the examples behind it; returns its path.

    With several workers all call it, and the chief's folder counts.

    Args:
      folder: whose newest checkpoint is taken; or the path of one checkpoint, as `save` returns it.
      best: whether to take that of the folder's best validation instead.
      best_metric: of the validations; None for that of the run.
      map: from names in the checkpoint to names in the program, as `names` of `towers.init_from`;
        None in place of a name leaves a variable of the checkpoint behind. Its slots go along.
      new: patterns of the program's variables and slots that the checkpoint lacks or has in
        another shape: they keep the values that they have, in a new session the initial ones.
      new_data: whether the training examples may differ from those that it was written on; then
        an epoch of the new ones begins.

    Raises:
      UsageError: there is no checkpoint, or no best one; or it is of another program, other data or
        another batch size.
    """
    folder = read_path(folder, line="session.restore('checkpoints')")

    def restore(session):
      own, chosen = folder, None
      if best:
        chosen = path_of(folder, find_best(folder, best_metric, or_newest=False))
      elif os.path.exists(folder + INDEX):
        own, chosen = os.path.dirname(folder) or '.', folder
      if not os.path.isdir(own):
        return None
      return self.checkpoints_in(own, new_data=new_data).restore(
          session, chosen, names=map, new=new)

    path = self._resume_by(restore)
    if path is None:
      raise UsageError(f'There is no checkpoint in {folder}: name the folder that was saved to.')
    self.start()
    return path

  def resume(self, checkpoints: Optional[Checkpoints] = None,
             history: Optional[History] = None) -> Optional[str]:
    """Gives all workers the chief's newest checkpoint, or its initial weights; starts no input.

    A run's history is read from beside the checkpoint, whose path it returns, or None without one.
    """
    path = None
    if checkpoints is not None:
      path = self._resume_by(checkpoints.restore, history)
      checkpoints.saved_step = self.step if path else None
    if path is None:
      with self._called(begins=False) as engine:
        engine.begin()
    return path

  def _resume_by(self, restore: Callable[[Any], Optional[Tuple[str, ResumePoint]]],
                 history: Optional[History] = None) -> Optional[str]:
    """The chief restores a checkpoint, by `restore(session)`, and all workers resume from it.

    Returns its path, or None without one.
    """
    with self._called(begins=False) as engine:
      def restore_with_history():
        restored = restore(engine.session)
        if restored is None:
          return None
        path, point = restored
        if history is not None:
          history.read_beside(path, point.step)
        return path, point, None if history is None else history.content

      worker, warm_start = self._worker, self.program.warm_start
      told = (restore_with_history() if worker is None else
              follow_chief(worker, restore_with_history))
      if told is None:
        return None
      path, point, content = told
      if warm_start is not None and not engine.has_begun and self.program.workers.rank == 0:
        write_line(f'initial weights: those of the checkpoint; {warm_start.source} is not read')
      engine.resume(ResumePoint(*point))
      if history is not None:
        history.load(content, engine.step)
      return path

  def resume_snapshot(self, snapshot: Snapshot) -> None:
    """Gives the variables the values of a snapshot, also of another graph; starts no input."""
    with self._called(begins=False) as engine:
      load_values(engine.session, {variable: snapshot.values[variable.op.name]
                                   for variable in tf.global_variables()})
      engine.resume(snapshot.point)

  def restore_to_measure(self, path: str) -> None:
    """Gives the variables a checkpoint's values, to measure them; compares no data.

    Of another program it raises a UsageError, of a damaged one TensorFlow raises anything.
    """
    engine = self._engine
    with self.as_default():
      notice = restore_variables(engine.session, path, averages=self.program.averages)
      if notice:
        write_line(notice)
      engine.resume(engine.find_point(open_reader(path)))

  def start(self) -> None:
    """Starts the input where the next step's examples begin."""
    with self._called(begins=False) as engine:
      engine.start()

  def checkpoints_in(self, folder: Optional[str], *, keep: int = 1 << 30,
                     stop_on_full_disk: bool = False, new_data: bool = False,
                     warn: Callable[[str], None] = write_line) -> Checkpoints:
    """Returns what saves the program to a folder, and restores it; see `Checkpoints`."""
    program, writes, data = self.program, self.program.workers.rank == 0, None
    if writes and folder is not None:
      self._digest = self._digest or take_digest(program.train_examples)
      data = Data(self._digest, program.plan, program.feed.inputs.order, may_be_new=new_data,
                  may_skip=program.train_examples.marks_bad)
    with program.graph.as_default():
      return Checkpoints(folder, keep=keep, writes=writes, stop_on_full_disk=stop_on_full_disk,
                         data=data, averages=program.averages, warn=warn)

  def scale_learning_rate(self, factor: float) -> None:
    """Multiplies the schedule's rate by `factor`, if the program is built for on_nan=rollback."""
    if not isinstance(self.program.learning_rate, float):
      with self.program.graph.as_default():
        get_rate_factor().load(factor, self._engine.session)

  def watch(self) -> None:
    """Lets the watchdog watch between calls too, until the session is closed."""
    self.watchdog.engine = self._engine

  @contextlib.contextmanager
  def explained(self) -> Iterator[None]:
    """Opens a context in which an error of TensorFlow becomes a `RunError` in plain words."""
    try:
      yield
    except RUN_ERRORS as error:
      raise self._explain(error) from None

  def _explain(self, error):
    if not is_run_error(error):
      return error
    if self._worker is not None:
      others = self._worker.peers.explain(error)
      if others is not None:
        return others
    return explain(error, self._engine)

  @contextlib.contextmanager
  def _called(self, name: str = '', *, begins: bool = True) -> Iterator[Engine]:
    """Opens the context of a call: in graph and session, whatever thread asks, and watched.

    The variables have their first values, if it `begins`, and the steps stand where these say. An
    error names the call, where it is no training.

    It waits for the call of another thread, which may change weights as this one reads them.
    """
    engine = self._engine
    has_lock, watched = self._wait_for_turn(engine), self.watchdog.engine
    activity, self.watchdog.engine = engine.activity, engine
    engine.activity = name or activity
    try:
      with self.as_default(), self.explained():
        if begins and not engine.has_begun:
          engine.begin()
        if begins and engine.ran_outside:
          engine.follow()
        yield engine
    finally:
      self.watchdog.engine = watched
      if name:
        engine.activity = activity
      if has_lock:
        self._calling.release()

  def _wait_for_turn(self, engine) -> bool:
    """Takes the lock of calls, once that of another thread has ended; returns whether it has it.

    A thread of TensorFlow's, which runs the generator of a stream, gets none: the call that has it
    waits for what that generator asks. Where a step of the other thread takes so long that it may
    wait for this one, it is a UsageError.
    """
    if self._calling.acquire(blocking=False):
      return True
    if isinstance(threading.current_thread(), threading._DummyThread):
      return False
    self._waiting.append(None)
    try:
      while True:
        runs = engine.runs
        if self._calling.acquire(timeout=_MOST_SECONDS_OF_A_STEP):
          return True
        if engine.activity == 'training' and runs == engine.runs:
          raise UsageError(f'Another thread has been in a step for {_MOST_SECONDS_OF_A_STEP:g} s. '
                           'If its input waits for what this thread asks of the session, give '
                           'batches by session.train(batch), or ask in the function that '
                           'towers.from_stream takes.')
    finally:
      self._waiting.pop()

  def _find_call(self):
    """Returns the call of all workers that this one is in, and how often it has run; ('', 0) for
    none, or one that a worker makes alone."""
    engine = self._opened
    if self._calling.acquire(blocking=False):  # It is in none: a callback may take its time.
      self._calling.release()
      return '', 0
    if engine is None or engine.activity not in _TOGETHER:
      return '', 0
    return f'{engine.activity} after {engine.step} steps', engine.runs

  def _note_outside_run(self):
    """Gives a run that is not of a call the first values too; the next call sees what it did."""
    engine = self._opened
    if engine is not None and not engine.has_begun:
      with self._called():
        pass
    if engine is not None:
      engine.ran_outside = True

  @property
  def _engine(self) -> Engine:
    if self._opened is None:
      raise UsageError('The session is not open: use `with program.session() as session:`, '
                       'or session.open().')
    return self._opened

  def _join(self, startup):
    program = self.program
    if program.workers.num_workers == 1:
      return contextlib.nullcontext()
    return join_workers(
        read_cluster(os.environ), dict(training_data=program.train_examples,
                                       validation_data=program.validation_examples),
        startup=startup, session_settings=dict(self._settings, devices=program.devices))

  def _open(self):
    """Returns a `tf.Session`, on the server of a worker where there are several."""
    if self._worker is not None:
      return self._worker.open_session()
    return tf.Session(config=build_session_config(
        self.program.devices, needs_threads=self.program.needs_threads, **self._settings))

  def _close(self, kind, *_):
    self._engine.activity = 'the end'
    self._opened, self._closed_at = None, self._engine.step
    if self._worker is not None and kind is None:
      self._worker.peers.stop()
