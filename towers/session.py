"""Session: a program step by step, with nothing to remember between the steps.

  with program.session() as session:       variables started, or the chief's; input started
    while session.step < 10_000:
      loss = session.train()               takes a batch on every tower, updates, puts the next one
    print(session.validate())              the whole validation split, every metric as a mean
"""

import contextlib
import os
import re
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from tensorflow_v1 import tf
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed
from towers.input.pipeline import GET_NEXTS
from towers.placement.cluster import read_cluster
from towers.placement.counters import get_examples_seen, get_global_step
from towers.placement.devices import build_session_config
from towers.training.cluster.worker import Worker, facts_of_graph, join_workers
from towers.training.faults.run_error import RunError
from towers.training.saving.checkpoints import Checkpoints
from towers.training.settings.schedule import check_resume
from towers.training.stepping.failure import explain
from towers.training.stepping.not_finite import NotFinite
from towers.training.stepping.startup import Startup
from towers.training.stepping.steps import Steps
from towers.training_graph import TrainingGraph

# Ops that take a batch from an iterator or a staging area, or put one there.
_INPUT_OPS = (*GET_NEXTS, 'Unstage', 'Stage')


class Session:
  """A program in an open `tf.Session`, ready to train.

  Whatever is called, in whatever order, the staging areas stay as full as they were: nothing
  blocks, and no tower falls behind another.
  """

  def __init__(self, program: TrainingGraph, *, graph_rewriter: str = 'auto',
               inter_threads: Optional[int] = None, intra_threads: Optional[int] = None):
    """Prepares; the session opens with `with`.

    Args:
      program: to run.
      graph_rewriter, inter_threads, intra_threads: see `towers.build_session_config`.
    """
    self._program = program
    self._settings: Dict[str, Any] = dict(
        graph_rewriter=graph_rewriter, inter_threads=inter_threads, intra_threads=intra_threads)
    self._closing = contextlib.ExitStack()
    self._opened: Optional[Steps] = None
    self._worker: Optional[Worker] = None
    # Until variables have their first values, of a file or of `restore`.
    self._warm_start = program.warm_start
    self._extra_fetches: Dict[Tuple[str, ...], _Taken] = {}
    # Whether `run` has taken batches, which training and validation are still to have.
    self._training_moved = self._validation_moved = False

  def __enter__(self) -> 'Session':
    with contextlib.ExitStack() as closing, Startup(time.monotonic()) as startup:
      closing.enter_context(self._program.graph.as_default())
      session = closing.enter_context(self._open(closing, startup))
      steps = Steps(session, self._program)
      with self._explained(steps):
        steps.start_variables()
        steps.broadcast()
        steps.start(0)
      self._opened = steps
      self._closing = closing.pop_all()
    return self

  def __exit__(self, *error: Any) -> None:
    self._opened = None
    if self._worker is not None:
      self._worker.peers.stop()
    self._closing.__exit__(*error)

  @property
  def step(self) -> int:
    """Weight updates so far, those before a `restore` included."""
    return self._steps.step

  @property
  def tf_session(self) -> tf.Session:
    """The open `tf.Session` beneath, for tools that take one.

    A run there that takes a batch must put the next one by itself, with `feed.put_ops`; else a
    later run fails by name. `run` does all that.
    """
    return self._steps.session

  def train(self) -> float:
    """Updates the weights once; returns the mean loss over the global batch before the update.

    Raises:
      RunError: the loss or a gradient is NaN or infinite, also when the step is taken again. No
        variable has changed; the step counts as done, so that one may go on.
    """
    steps = self._begin()
    with self._explained():
      self._move_back()
      try:
        return float(steps.train())
      except NotFinite:
        retried = steps.retry()
        if retried.is_done:
          return retried.loss
        steps.skip()
        raise RunError(f'Step {steps.step} is not finite: {retried.describe()}. It has changed no '
                       'variable. Lower the learning rate or clip the gradients; or catch this '
                       'error to go on with the next step.') from None

  def validate(self) -> Dict[str, float]:
    """Returns the mean of 'loss' and of each metric over the whole validation split.

    Raises:
      UsageError: the program has no validation examples.
    """
    steps = self._begin()
    if not steps.can_validate:
      raise UsageError('The program has nothing to validate on: give towers.Program the argument '
                       'validation.')
    with self._explained():
      if self._validation_moved:
        steps.start_validation()
        self._validation_moved = False
      measured = steps.begin_pass(steps.step)
      steps.validate(measured)
    return measured.means()

  def run(self, fetches: Any, feed_dict: Optional[Dict[Any, Any]] = None) -> Any:
    """Returns the values of `fetches`, any structure of tensors and ops of the graph.

    Where they need a batch, every tower takes its next one, and puts another. They only look at it:
    the next `train` takes the batch that it would have taken, at the cost of starting the input
    again. Where `feed_dict` feeds the program's `is_validating` True, the batch is of the
    validation split, and the weights are their averages if the program has any.

    Raises:
      UsageError: the fetches update the weights of a program that accumulates micro-batches.
    """
    steps = self._begin()
    session = steps.session
    taken = self._find_taken(fetches)
    extra: List[Any] = []
    validation = self._program.validation
    switch = None if validation is None else validation.is_validating
    is_validating = switch is not None and bool((feed_dict or {}).get(switch, False))
    if taken.by_towers:
      feed = validation.feed if validation and is_validating else self._program.feed
      extra += [tensor.op for batch in self._program.batches
                for tensor in tf.nest.flatten(batch.tensors)] + feed.put_ops
    if validation and taken.by_validation:
      extra.append(validation.sums)
    if taken.updates:
      self._move_back()
    self._training_moved |= taken.by_towers and not is_validating and not taken.updates
    self._validation_moved |= is_validating or taken.by_validation
    measures = is_validating and not taken.updates
    with self._explained(), steps.averaged() if measures else contextlib.nullcontext():
      result = session.run([fetches, extra], feed_dict)[0]
      if taken.updates:
        steps.step = int(session.run(get_global_step()))
    return result

  def save(self, folder: str) -> str:
    """Saves all variables and counters as a checkpoint in `folder`; returns its path.

    With several workers all call it, and the chief writes.

    Raises:
      UsageError: the folder cannot be made.
      RunError: it cannot be written.
    """
    steps = self._begin()
    steps.check_replicas()
    if self._program.workers.rank != 0:
      return ''
    with contextlib.closing(Checkpoints(folder, keep=1 << 30, stop_on_full_disk=True,
                                        inputs=self._program.feed.inputs,
                                        averages=self._program.averages)) as saved:
      return saved.save(steps.session)

  def restore(self, folder: str) -> str:
    """Restores the newest checkpoint in `folder`, and goes on with the examples behind it.

    With several workers all call it, and the chief's folder counts. Returns the path.

    Raises:
      UsageError: there is none, or it is of another program, other data or another batch size.
    """
    steps, session = self._steps, self._steps.session
    path = None
    if self._program.workers.rank == 0:
      if os.path.isdir(folder):
        path = Checkpoints(folder, keep=1 << 30, inputs=self._program.feed.inputs,
                           averages=self._program.averages).restore(session)
      if path is None:
        raise UsageError(f'There is no checkpoint in {folder}: name the folder that was saved to.')
    with self._explained():
      steps.broadcast()
      step, examples_seen = session.run([get_global_step(), get_examples_seen()])
      check_resume(path or folder, step=int(step), examples_seen=int(examples_seen),
                   plan=self._program.plan)
      steps.start(int(step))
    self._warm_start = None
    self._training_moved = self._validation_moved = False
    return path or folder

  @property
  def _steps(self) -> Steps:
    if self._opened is None:
      raise UsageError('The session is not open: use `with program.session() as session:`.')
    return self._opened

  def _begin(self) -> Steps:
    """Returns the steps, once variables have started from the file that the program names."""
    steps = self._steps
    if self._warm_start is not None:
      if self._program.workers.rank == 0:
        write_line(self._warm_start.open())
        self._warm_start.start(steps.session)
      steps.broadcast()
      self._warm_start = None
    return steps

  def _move_back(self):
    """Starts the training input again where the next step's examples begin."""
    if self._training_moved:
      self._program.feed.start(self._steps.session, step=self._steps.step)
      self._training_moved = False

  def _open(self, closing, startup):
    """Returns a `tf.Session`, on the server of a worker where there are several."""
    program = self._program
    if program.workers.num_workers == 1:
      return tf.Session(config=build_session_config(
          program.devices, needs_threads=program.needs_threads, **self._settings))
    worker = closing.enter_context(join_workers(
        read_cluster(os.environ), devices=program.devices, facts={},
        splits=(program.train_examples, program.validation_examples), startup=startup,
        session_settings=self._settings))
    startup.begin('variables', 'starting the variables')
    worker.compare('graphs', facts_of_graph(program.graph), 'Something in the model or the data '
                   'depends on the machine: see to it that all workers build the same.')
    self._worker = worker
    return worker.open_session()

  @contextlib.contextmanager
  def _explained(self, steps=None):
    try:
      yield
    except tf.errors.OpError as error:
      others = self._worker and self._worker.peers.explain(error)
      raise (others or _explain_starved(error)
             or explain(error, steps or self._steps)) from None

  def _find_taken(self, fetches):
    """Returns which batches the fetches take."""
    graph = self._program.graph
    ops = [getattr(element, 'op', element) for element in map(
        graph.as_graph_element, tf.nest.flatten(fetches, expand_composites=True))]
    key = tuple(op.name for op in ops)
    if key not in self._extra_fetches:
      self._extra_fetches[key] = _find_taken(self._program, find_needed(ops))
    return self._extra_fetches[key]


def _explain_starved(error: tf.errors.OpError) -> Optional[RunError]:
  """Returns the error of a tower whose staging area a raw run has left out of balance, or None."""
  found = re.search(r'The staging area of tower \d+ \(split \w+\) must hold \d+ batches',
                    str(error))
  return found and RunError(
      f'{found[0]} between two runs, and another number is there: a run of session.tf_session has '
      'taken a batch and put none, or the other way round. Nothing was changed. Use session.run '
      'instead, and session.restore to go on from a checkpoint.')


class _Taken(NamedTuple):
  """Which batches a run takes.

  Attributes:
    by_towers: whether the towers take theirs, of training or of the switch.
    by_validation: whether a validation tower takes its own.
    updates: whether the run updates the weights.
  """
  by_towers: bool
  by_validation: bool
  updates: bool


def _find_taken(program: TrainingGraph, needed: Set[tf.Operation]) -> _Taken:
  updates = program.train_op.op in needed
  add_op = program.gradients.add_op
  added = set() if add_op is None else needed & find_needed([add_op])
  if any(op.type.startswith('Assign') for op in added):
    raise UsageError('The program accumulates micro-batches, so that a step is several runs, and '
                     'these fetches are part of it: use session.train(), or fetch what a single '
                     'tower computes.')
  inputs = {op for op in needed if op.type in _INPUT_OPS}
  validation, own = program.validation, set()
  if validation is not None and validation.is_validating is None:
    own = find_needed([validation.sums.op])
  return _Taken(bool(inputs - own), bool(inputs & own), updates)
