"""Session: a program in a `tf.Session`, from its first variable to its last step.

  with program.session() as session:       variables started, or the chief's; input started
    while session.step < 10_000:
      loss = session.train()               takes a batch on every tower, updates, puts the next one
    print(session.validate())              the whole validation split, every metric as a mean

This is the only place that opens a program's `tf.Session`: it meets the other workers, starts the
variables, takes steps, and explains errors in plain words. A training run and an evaluator are
loops over it; they open it by `opened`, and decide themselves where it goes on from.
"""

import contextlib
import functools
import os
import time
from typing import Any, Callable, Dict, Iterator, Optional, Sequence

from towers.base.usage_error import UsageError
from towers.placement.cluster import read_cluster
from towers.placement.devices import build_session_config
from towers.process.run_error import RunError
from towers.process.startup import Startup
from towers.session.batches_taken import find_taken, list_fetched, put_back
from towers.session.failure import explain
from towers.session.forward import ForwardCache
from towers.session.not_finite import NotFinite
from towers.session.rows import open_rows
from towers.session.shared_session import SharedSession
from towers.session.state import State
from towers.session.steps import Steps
from towers.session.watchdog import Watchdog
from towers.tensorflow_v1 import RUN_ERRORS, CountedSession, is_run_error, tf
from towers.training_graph import TrainingGraph
from towers.warm_start.matching import Names
from towers.workers.worker import Worker, join_workers


class Session:
  """A program in an open `tf.Session`, ready to train.

  Whatever is called, in whatever order, the staging areas stay as full as they were: nothing
  blocks, and no tower falls behind another.

  Attributes:
    program: the program that it runs.
    watchdog: ends the process after `stall_seconds` without progress.
    state: the program's variables, once the session is open.
  """

  state: State

  def __init__(self, program: TrainingGraph, *, stall_seconds: Optional[float] = None,
               **settings: Any):
    """Prepares, with the arguments of `towers.Program.session`; the session opens with `with`."""
    self.program = program
    self.watchdog = Watchdog(limit_seconds=stall_seconds or float('inf'))
    self._has_watchdog = stall_seconds is not None
    self._settings: Dict[str, Any] = dict(
        settings, **{name: program.settings[name] for name in ('collective', 'precision')})
    self._closing = contextlib.ExitStack()
    self._steps: Optional[Steps] = None
    self._worker: Optional[Worker] = None
    self._find_taken = functools.lru_cache(maxsize=None)(functools.partial(find_taken, program))
    self._forward_cache = ForwardCache(program)

  def __enter__(self) -> 'Session':
    with contextlib.ExitStack() as closing, Startup(time.monotonic()) as startup:
      closing.enter_context(self.opened(startup))
      closing.enter_context(self.as_default())
      with self.explained():
        self.steps.broadcast()
        self.steps.start(0)
      self._closing = closing.pop_all()
    return self

  def __exit__(self, *error: Any) -> None:
    self._closing.__exit__(*error)

  def __repr__(self) -> str:
    where = f'at step {self._steps.step}' if self._steps else 'not open'
    return f'<towers.Session {where}, of {self.program!r}>'

  @contextlib.contextmanager
  def opened(self, startup: Startup, worker: Optional[Worker] = None) -> Iterator['Session']:
    """Opens the session with new variables; no input is started, and nothing is restored.

    Args:
      startup: shows what takes long.
      worker: this process among several workers, which have met; None to meet them, if any.
    """
    with contextlib.ExitStack() as closing:
      with self.program.graph.as_default():
        self._worker = worker or closing.enter_context(self._join(startup))
        if self._worker is not None:
          self._worker.compare_graphs(self.program.graph, startup)
        startup.begin('variables', 'starting the variables')
        if self._has_watchdog:
          closing.enter_context(self.watchdog)
          if self._worker is not None:
            self._worker.peers.is_busy = self.watchdog.is_busy
        session = closing.enter_context(contextlib.closing(self._open()))
        self._steps = Steps(SharedSession(session, self._tell), self.program)
        self.state = State(self._steps, self._worker)
        self._mark = self._steps.metrics.mark()
        closing.push(self._close)
        with self.explained():
          self.steps.start_variables()
      yield self

  @contextlib.contextmanager
  def as_default(self) -> Iterator[None]:
    """Opens a context in which graph and session are TensorFlow's defaults."""
    with self.program.graph.as_default(), self.tf_session.as_default():
      yield

  @property
  def steps(self) -> Steps:
    """What the runs of the `tf.Session` do, one by one."""
    if self._steps is None:
      raise UsageError('The session is not open: use `with program.session() as session:`.')
    return self._steps

  @property
  def step(self) -> int:
    """Weight updates so far, those before a `restore` included."""
    if self.steps.was_told:
      with self._called():
        pass
    return self.steps.step

  @property
  def tf_session(self) -> tf.Session:
    """The open `tf.Session` beneath, for tools that take one.

    A run there that takes a batch must put the next one by itself, with `feed.put_ops`; else a
    later run fails by name. `run` does all that. Where a run there moves `global_step`, as a
    `tf.train.Saver` does that restores, the next call of this session follows it, with the input.
    """
    return self.steps.session.given

  def train(self) -> float:
    """Updates the weights once; returns the mean loss over the global batch before the update.

    Raises:
      RunError: the loss or a gradient is NaN or infinite, also when the step is taken again. No
        variable has changed; the step counts as done, so that one may go on.
    """
    # No context: the less Python does between two runs, the fewer of the session's threads sleep.
    steps, watchdog = self._steps, self.watchdog
    if steps is None or steps.training_moved or steps.was_told or not self.state.has_begun:
      with self._called() as steps:
        steps.move_back()
    watched, watchdog.steps = watchdog.steps, steps
    try:
      return float(steps.train())
    except NotFinite:
      return self._take_again()
    except RUN_ERRORS as error:
      raise self._explain(error) from None
    finally:
      watchdog.steps = watched

  def _take_again(self):
    """Returns the loss of a step that was not finite, if it is on a second try."""
    with self._called() as steps:
      retried = steps.retry()
      if retried.is_done:
        return retried.loss
      steps.skip()
      raise RunError(f'Step {steps.step} is not finite: {retried.describe()}. It has changed no '
                     'variable. Lower the learning rate or clip the gradients; or catch this '
                     'error to go on with the next step.')

  def validate(self) -> Dict[str, float]:
    """Returns the mean of 'loss' and of each metric over the whole validation split.

    Raises:
      UsageError: the program has no validation examples.
    """
    if not self.steps.can_validate:
      raise UsageError('The program has nothing to validate on: give towers.Program the argument '
                       'validation.')
    with self._called() as steps:
      steps.check_beside()
      measured = steps.begin_pass(steps.step)
      steps.validation_moved = True  # Until all of it is measured.
      steps.validate(measured)
      steps.validation_moved = False
    return measured.means()

  def metrics(self) -> Dict[str, float]:
    """Returns the means of 'loss' and of each metric over the training steps since the last call.

    Over the examples of these steps, each with the weights before its update; {} without a step.
    """
    metrics, mark = self.steps.metrics, self._mark
    self._mark = metrics.mark()
    return metrics.since(mark)

  def evaluate(self, examples: Any, *, batch_size: Optional[int] = None) -> Dict[str, float]:
    """Returns the mean of 'loss' and of each metric over other examples, such as a third split.

    It is the same number on any towers. The weights are their averages if the program has any; the
    training goes on as if nothing had been asked. Each of several workers computes all by itself.

    Args:
      examples: `towers.Examples` in the structure of the training split; or what
        `towers.from_arrays` takes, one structure of arrays; or an iterator of batches of these.
      batch_size: rows at a time, of what does not come in batches; None for the program's.

    Raises:
      UsageError: the examples do not fit the model.
    """
    with self._forwarded('evaluate', self.program.model, examples, batch_size) as (model, rows):
      return model.measure(rows)

  def predict(self, examples: Any, function: Callable[..., Any], *,
              batch_size: Optional[int] = None) -> Any:
    """Returns what a function computes of each example, in order, each once, on any towers.

      session.predict(images, lambda images: {'class': tf.argmax(net(images), 1)})

    Args:
      examples: as for `evaluate`; parts that the function does not take may be missing.
      function: of parts of a batch, `[n, ...]` each, to a tensor or a dict of tensors, `[n, ...]`,
        as `predict` of `towers.export`; it makes the model's variables by the same names.
      batch_size: rows at a time, of what does not come in batches; None for the program's.

    Returns:
      An array with a row for each example, a list if rows differ in size; or a dict of these.

    Raises:
      UsageError: the function does not fit the examples, or has variables of its own.
    """
    with self._forwarded('predict', function, examples, batch_size) as (model, rows):
      found = model.predict(rows)
    return found['output'] if list(found) == ['output'] else found

  def run(self, fetches: Any, feed_dict: Optional[Dict[Any, Any]] = None) -> Any:
    """Returns the values of `fetches`, any structure of tensors and ops of the graph.

    Where they need a batch, every tower takes its next one, and puts another. They only look at it:
    the next `train` takes the batch that it would have taken, at the cost of starting the input
    again. Where `feed_dict` feeds the program's `is_validating` True, the batch is of the
    validation split, and the weights are their averages if the program has any.

    Raises:
      UsageError: the fetches update the weights of a program that accumulates micro-batches.
    """
    validation = self.program.validation
    with self._called() as steps:
      taken = self._find_taken(list_fetched(self.program.graph, fetches))
      switch = None if validation is None else validation.is_validating
      is_validating = switch is not None and bool((feed_dict or {}).get(switch, False))
      if taken.by_validation:
        steps.check_beside()
      puts = put_back(self.program, taken, is_validating=is_validating)
      if taken.updates:
        steps.move_back()
      steps.training_moved |= taken.by_towers and not is_validating and not taken.updates
      steps.validation_moved |= is_validating or taken.by_validation
      measures = is_validating and not taken.updates
      with steps.averaged() if measures else contextlib.nullcontext():
        result = steps.session.run([fetches, puts], feed_dict)[0]
      if taken.moves_step:
        steps.follow(has_updated=taken.updates)
    return result

  def save(self, folder: str) -> str:
    """Saves all variables and counters as a checkpoint in `folder`; returns its path.

    With several workers all call it, and the chief writes.

    Raises:
      UsageError: the folder cannot be made, or a run saves there.
      RunError: it cannot be written.
    """
    with self._called():
      return self.state.save(folder)

  def restore(self, folder: str, *, best: bool = False, best_metric: Optional[str] = None,
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
      UsageError: there is no checkpoint, or it is of another program, other data or another batch
        size.
    """
    with self._called(begins=False) as steps:
      path = self.state.restore(folder, best=best, best_metric=best_metric, map=map, new=new,
                                new_data=new_data)
      steps.start(steps.step)
    return path

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
    others = self._worker and self._worker.peers.explain(error)
    return others or explain(error, self.steps)

  @contextlib.contextmanager
  def _called(self, name: str = '', *, begins: bool = True) -> Iterator[Steps]:
    """Opens the context of a call: in graph and session, whatever thread asks, and watched.

    The variables have their first values, if it `begins`, and the steps stand where these say. An
    error names the call, where it is no training.
    """
    steps, watched = self.steps, self.watchdog.steps
    activity, self.watchdog.steps = steps.activity, steps
    steps.activity = name or activity
    try:
      with self.as_default(), self.explained():
        if begins and not self.state.has_begun:
          self.state.begin()
        if begins and steps.was_told:
          steps.follow()
        yield steps
    finally:
      self.watchdog.steps = watched
      if name:
        steps.activity = activity

  def _tell(self):
    """Gives a run that is not of a call the first values too; the next call sees what it did."""
    steps = self._steps
    if steps is not None and not self.state.has_begun:
      with self._called():
        pass
    if steps is not None:
      steps.was_told = True

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
    return CountedSession(config=build_session_config(
        self.program.devices, needs_threads=self.program.needs_threads, **self._settings))

  def _close(self, kind, *_):
    self._steps = None
    self._forward_cache.close()
    if self._worker is not None and kind is None:
      self._worker.peers.stop()

  @contextlib.contextmanager
  def _forwarded(self, name, compute, examples, batch_size):
    """Opens the context of a call with a model or function beside the session, and its rows."""
    batch_size = batch_size or self.program.plan.micro_batch_size
    with self._called(name) as steps, self.watchdog.paused(), \
        open_rows(examples, batch_size) as rows:
      yield self._forward_cache.find(compute, rows, steps, is_model=name == 'evaluate'), rows
