"""Opened: a program in a `tf.Session`, from its first variable to its last step.

It alone opens one: meets other workers, starts or restores the variables, takes steps, and tells
errors in words. `towers.Session` is what a user calls of it; a training run and an evaluator are
loops over it, which open it by `opened` and choose from where it goes on.
"""

import contextlib
import os
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

from tensorflow_v1 import tf
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.data.digest import Digest, take_digest
from towers.placement.cluster import read_cluster
from towers.placement.counters import get_examples_seen, get_global_step
from towers.placement.devices import build_session_config
from towers.training.cluster.worker import Worker, facts_of_graph, join_workers
from towers.training.saving.checkpoints import Checkpoints
from towers.training.saving.data import Data
from towers.training.settings.schedule import check_resume
from towers.training.stepping.failure import explain
from towers.training.stepping.not_finite import NotFinite, Retried
from towers.training.stepping.startup import Startup
from towers.training.stepping.steps import Steps
from towers.training.stepping.taken import Taken, explain_starved
from towers.training.stepping.validation_pass import ValidationPass
from towers.training.stepping.watchdog import Watchdog
from towers.training_graph import TrainingGraph
from towers.warm_start.matching import Names

# Before the reason, in place of a path.
_REFUSED = '\0'


class Opened:
  """A program, and its `tf.Session` while `opened`.

  Attributes:
    program: that it runs.
    watchdog: of `stall_seconds`.
  """

  def __init__(self, program: TrainingGraph, *, graph_rewriter: str = 'auto',
               inter_threads: Optional[int] = None, intra_threads: Optional[int] = None,
               stall_seconds: Optional[float] = None):
    """Prepares; the session opens with `with`.

    Args:
      program: to run.
      graph_rewriter, inter_threads, intra_threads: see `build_session_config`.
      stall_seconds: without any progress in a call, after which the process ends and says why; None
        to wait.
    """
    self.program = program
    self.watchdog = Watchdog(limit_seconds=stall_seconds or float('inf'))
    self._has_watchdog = stall_seconds is not None
    self._settings: Dict[str, Any] = dict(
        graph_rewriter=graph_rewriter, inter_threads=inter_threads, intra_threads=intra_threads,
        collective=program.settings['collective'], precision=program.settings['precision'])
    self._closing = contextlib.ExitStack()
    self._opened: Optional[Steps] = None
    self._digest: Optional[Digest] = None  # Of the training examples, once it is asked for.
    self._worker: Optional[Worker] = None
    # Until variables have their first values, of a file or of a checkpoint.
    self._warm_start = program.warm_start
    self._taken: Dict[Tuple[str, ...], Taken] = {}
    # What `evaluate` and `predict` have built last, by whether it is the model: key and `Forward`.
    self._forwards: Dict[bool, Tuple[Any, Any]] = {}
    # Whether `run` has taken batches, which training and validation are still to have.
    self._training_moved = self._validation_moved = False
    self._beside: Optional[ValidationPass] = None

  @contextlib.contextmanager
  def opened(self, startup: Startup, worker: Optional[Worker] = None) -> Iterator['Opened']:
    """Opens the session with new variables; no input is started, and nothing is restored.

    Args:
      startup: shows what takes long.
      worker: this process among several workers, which have met; None to meet them, if any.
    """
    with contextlib.ExitStack() as closing:
      with self.program.graph.as_default():
        self._worker = worker or closing.enter_context(self._join(startup))
        if self._worker is not None:
          self._compare_graphs(self._worker, startup)
        startup.begin('variables', 'starting the variables')
        if self._has_watchdog:
          closing.enter_context(self.watchdog)
        session = closing.enter_context(contextlib.closing(self._open()))
        self._opened = Steps(session, self.program)
        self._mark = self._opened.metrics.mark()
        closing.push(self._close)
        with self.explained():
          self.steps.start_variables()
      yield self

  @contextlib.contextmanager
  def as_default(self) -> Iterator[None]:
    """Opens a context in which graph and session are TensorFlow's defaults."""
    with self.program.graph.as_default(), self.steps.session.as_default():
      yield

  @property
  def steps(self) -> Steps:
    """What the runs of the `tf.Session` do, one by one."""
    if self._opened is None:
      raise UsageError('The session is not open: use `with program.session() as session:`.')
    return self._opened

  @property
  def step(self) -> int:
    """Weight updates so far, those before a `restore` included."""
    return self.steps.step

  @property
  def tf_session(self) -> tf.Session:
    """The open `tf.Session` beneath, for tools that take one.

    A run there that takes a batch must put the next one by itself, with `feed.put_ops`; else a
    later run fails by name. `run` does all that.
    """
    return self.steps.session

  def take_step(self, beside: Optional[ValidationPass] = None) -> Tuple[float, Optional[Retried]]:
    """Updates the weights once; tries again where that is not finite.

    Args:
      beside: a pass that the validation tower goes on with at the same time, or None.

    Returns:
      The loss, and None or what the second try has found: then it is done too, or has changed no
      variable and does not count.
    """
    steps = self.steps
    if self._training_moved:
      self.move_back()
    self._beside = beside
    try:
      return steps.train() if beside is None else steps.train_and_validate(beside), None
    except NotFinite:
      retried = steps.retry()
      return retried.loss, retried

  def begin_pass(self) -> ValidationPass:
    """Begins a pass over the validation split, at its first example, with the current weights."""
    if self._validation_moved:
      self.steps.start_validation()
      self._validation_moved = False
    return self.steps.begin_pass(self.steps.step)

  def checkpoints_in(self, folder: str, *, keep: int = 1 << 30,
                     stop_on_full_disk: bool = False, names: Names = None,
                     new: Sequence[str] = (), new_data: bool = False) -> Checkpoints:
    """Returns what saves the program to a folder, and restores it; see `Checkpoints`."""
    program = self.program
    self._digest = self._digest or take_digest(program.train_examples)
    return Checkpoints(folder, keep=keep, stop_on_full_disk=stop_on_full_disk,
                       inputs=program.feed.inputs, averages=program.averages,
                       data=Data(self._digest, program.plan, may_be_new=new_data),
                       names=names, new=new)

  def take_up(self, choose: Callable[[], Tuple[Any, Optional[str]]], *,
              may_skip: bool = False) -> Optional[str]:
    """Gives all workers a checkpoint of the chief; returns its path, or None without one.

    Args:
      choose: returns the `Checkpoints` of this worker, or None, and the path to take, or None for
        the newest. Where it, or a checkpoint, is refused by the chief, all workers raise.
      may_skip: see `check_resume`.

    Raises:
      UsageError: it is of another program, other data or another batch size.
    """
    steps, session = self.steps, self.steps.session
    checkpoints, path = None, None
    try:
      checkpoints, chosen = choose()
      path = checkpoints.restore(session, chosen) if checkpoints else None
    except Exception as error:
      if self._worker is not None:
        self._worker.share(_REFUSED + str(error))
      raise
    if self._worker is not None:
      path = self._worker.share(path or '')[0] or None
      if path is not None and path.startswith(_REFUSED):
        raise UsageError(f'The chief restores nothing: {path[len(_REFUSED):]}')
    if path is None:
      return None
    steps.broadcast()
    step, examples_seen = session.run([get_global_step(), get_examples_seen()])
    check_resume(path, step=int(step), examples_seen=int(examples_seen), plan=self.program.plan,
                 may_skip=may_skip, was_carried=checkpoints.was_carried if checkpoints else True)
    if self._warm_start is not None and self.program.workers.rank == 0:
      write_line(f'initial weights: those of the checkpoint; {self._warm_start.settings.path} is '
                 'not read')
    self._warm_start = None
    steps.resume(int(step))
    return path

  def begin_anew(self) -> None:
    """Gives all workers the chief's variables, started from the file that the program names."""
    if self._warm_start is not None and self.program.workers.rank == 0:
      write_line(self._warm_start.open())
      self._warm_start.start(self.steps.session)
    self._warm_start = None
    self.steps.broadcast()

  def start(self, step: int) -> None:
    """Starts the input again, where the examples of the step after `step` begin."""
    self._training_moved = self._validation_moved = False
    self._beside = None
    self.steps.start(step)

  @contextlib.contextmanager
  def explained(self) -> Iterator[None]:
    """Opens a context in which an error of TensorFlow becomes a `RunError` in plain words."""
    try:
      yield
    except tf.errors.OpError as error:
      raise self._explain(error) from None

  def _explain(self, error):
    others = self._worker and self._worker.peers.explain(error)
    return others or explain_starved(error) or explain(error, self.steps)

  @contextlib.contextmanager
  def _called(self, name: str = '') -> Iterator[Steps]:
    """Opens the context of a call: watched, and once the variables have their first values.

    An error names the call, where it is no training.
    """
    steps, watched = self.steps, self.watchdog.steps
    activity, self.watchdog.steps = steps.activity, steps
    steps.activity = name or activity
    try:
      if self._warm_start is not None:
        self.begin_anew()
      yield steps
    except tf.errors.OpError as error:
      raise self._explain(error) from None
    finally:
      self.watchdog.steps = watched
      if name:
        steps.activity = activity

  def make_ready(self) -> Steps:
    """Makes sure that variables have their first values, and that the next step has its batch."""
    with self._called() as steps:
      self.move_back()
    return steps

  def move_back(self):
    """Starts the training input again where the next step's examples begin."""
    if self._training_moved:
      self.program.feed.start(self.steps.session, step=self.steps.step,
                              offset=self.steps.plan.offset)
      self._training_moved = False

  def _join(self, startup):
    """Returns a context that meets the other workers, if there are any."""
    program = self.program
    if program.workers.num_workers == 1:
      return contextlib.nullcontext()
    return join_workers(
        read_cluster(os.environ), dict(training_data=program.train_examples,
                                       validation_data=program.validation_examples),
        startup=startup, session_settings=dict(self._settings, devices=program.devices))

  def _compare_graphs(self, worker, startup):
    """Makes sure that all workers have built the same, before they take a step together."""
    startup.begin('workers\' graphs', 'waiting for the graphs of the other workers')
    worker.compare('graphs', facts_of_graph(self.program.graph),
                   'Something in the model or the data depends on the machine: see to it '
                   'that all workers build the same.')
    if self._has_watchdog:
      worker.peers.is_busy = self.watchdog.is_busy

  def _open(self):
    """Returns a `tf.Session`, on the server of a worker where there are several."""
    if self._worker is not None:
      return self._worker.open_session()
    return tf.Session(config=build_session_config(
        self.program.devices, needs_threads=self.program.needs_threads, **self._settings))

  def _close(self, kind, *_):
    self._opened = None
    while self._forwards:
      self._forwards.popitem()[1][1].close()
    if self._worker is not None and kind is None:
      self._worker.peers.stop()
