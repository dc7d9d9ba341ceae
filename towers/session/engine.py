"""The engine of a session: its variables, its input, and the runs of the `tf.Session` in a step.

A session alone calls it. A run of `Calls` takes batches out of the staging areas and puts the next
ones in: one that trains, one that also measures on a validation tower, and one that measures alone.
"""

import contextlib
import itertools
from typing import Any, Callable, ContextManager, Iterator, Optional

import numpy as np

from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import Snapshot
from towers.coupling.check import check_program, has_parts
from towers.input.resume_point import ResumePoint, read_point
from towers.placement.collectives import meet_towers
from towers.placement.counters import get_examples_seen, get_global_step
from towers.process.run_error import RunError
from towers.process.threads import Threads
from towers.session.calls import Calls
from towers.session.not_finite import Retried
from towers.session.rows import deal_batch
from towers.session.training_metrics import TrainingMetrics
from towers.session.validation_pass import ValidationPass
from towers.tensorflow_v1 import Call, tf, uncompiled
from towers.training_graph import TrainingGraph
from towers.update.nan_guard import Diagnosis, build_diagnosis
from towers.whole import WholeRows
from towers.workers.votes import VoteCounter

# With more towers, preparing the step takes longer than starting variables, so these start on one
# thread and leave the other cores to it.
_FEW_TOWERS = 4
# Of a sum of absolute weights; kernels of other machines may round otherwise.
_ROUNDING_OF_WORKERS = 1e-4


class StepResult(float):
  """The loss of a step: the mean over the global batch, before the update.

  Attributes:
    not_finite: where the loss or a gradient was not finite, what a second try on the same examples
      has found; else None. Unless that one is done, no variable has changed.
  """
  not_finite: Optional[Retried] = None


class Engine:
  """A program in an open `tf.Session`, run by run.

  Attributes:
    session: the open `tf.Session`, a `SharedSession`.
    program: the program that runs in it.
    step: how many steps are done, and so the index of the next one.
    plan: of the training split, from where the session has resumed.
    runs: how often the session has run: all that the watchdog reads to see progress.
    activity: what the program is doing, in words.
    has_begun: whether the variables have values to train from; else a file is still to give them.
    has_other_workers: whether other workers take every step as well.
    agree: see `VoteCounter.agree`.
    calls: the runs of the session that a step consists of.
    metrics: of the training steps, and how long they waited for input.
    training_moved, validation_moved: whether a run of other fetches has taken batches that steps
      or validation are still to have.
    ran_outside: whether the session was run by no call of it, which may have moved `global_step`.
  """

  def __init__(self, session: Any, program: TrainingGraph):
    self.step = self.runs = 0
    self.plan = program.plan
    self.activity = 'set-up'
    self.training_moved = self.ran_outside = False
    self.validation_moved = True  # Until it starts.
    self._pass: Optional[ValidationPass] = None  # That steps are in the middle of.
    self.session = session
    self.program = program
    self._validation = program.validation
    self.has_begun = program.warm_start is None
    self.has_other_workers = program.gradients.votes is not None
    self._votes = VoteCounter(session, program.gradients.votes)
    self.agree = self._votes.agree
    self._counters = (get_global_step(), get_examples_seen())
    self._diagnosis: Optional[Diagnosis] = None
    self._num_refused: Any = None  # Examples of a refused step, where some may be damaged.
    self._has_said_empty = self._is_checked = False
    self.calls = Calls(session, program)
    self.metrics = TrainingMetrics(program)

  def start_variables(self) -> None:
    """Starts all variables and lookup tables in a thread, and meanwhile prepares the step."""
    towers, all_reduce = self.program.gradients.towers, self.program.gradients.all_reduce
    others = tf.group(tf.local_variables_initializer(), tf.tables_initializer())
    variables = Call(self.session, [tf.global_variables_initializer(), others],
                     by_caller=len(towers) > _FEW_TOWERS)
    # With all ops built, since 1.14 places the whole graph again when it has grown.
    if all_reduce is not None and all_reduce.num_workers == 1:
      # Those of several workers meet in a step; `peers` ends workers whose partner fails.
      self.session.run(meet_towers([tower.device for tower in towers], all_reduce.kind))
    with uncompiled():
      variables.prepare()
    # TensorFlow frees Python for other threads while it runs ops, but not while it prepares them.
    with Threads(1) as thread:
      started = thread.submit(variables)
      calls = self.calls.chosen
      for name in calls:
        if name != 'measure_and_train':  # The first validation prepares it.
          calls[name] = calls[name].prepare()
      started.result()

  def begin(self) -> None:
    """Gives all workers the chief's variables, started from the file that the program names."""
    warm_start = self.program.warm_start
    if warm_start is not None and self.program.workers.rank == 0:
      write_line(warm_start.start(self.session))
    self.has_begun = True
    self.broadcast()

  def resume(self, point: ResumePoint) -> None:
    """Gives all workers the chief's variables, the counters too, and counts on from there."""
    self.has_begun = True
    self.broadcast()
    self.count_from(point)

  def count_from(self, point: ResumePoint) -> None:
    """Counts steps and examples on from where the variables are."""
    self.step = point.step
    self.plan = self.program.plan.resumed_at(point)

  def start(self) -> None:
    """Starts all iterators, the training split at the next step, and fills the staging areas."""
    self._pass = None
    self.validation_moved = self.ran_outside = False
    self.training_moved = self.plan.is_by_hand
    self.activity, is_first = 'warm-up', self.runs == 0
    rows = self.program.feed.start(
        self.session, step=self.step, plan=self.plan,
        peeks=is_first and has_parts(self.program) and not self.plan.is_by_hand,
        other=self._validation.feed if is_first and self._validation else None)
    if not is_first:  # What has moved starts one after another, see `build_inputs`.
      self.start_validation()
    if not self.plan.is_by_hand:
      self._check(rows)
    self.runs += 1
    self.activity = 'the first step'

  def _check(self, rows):
    with uncompiled():
      check_program(self.program, self.session, rows)
    self._is_checked = True

  @contextlib.contextmanager
  def fed(self, batch: Any) -> Iterator[None]:
    """Opens a context in which a step takes a global batch that is given by hand."""
    program, step = self.program, self.step
    if not program.plan.is_by_hand:
      raise UsageError('The program takes its batches from train=, and session.train(batch) gives '
                       'one by hand: build it with train=towers.from_stream(like=example).')
    count, feeds = deal_batch(program.feed, batch)
    if not self._is_checked:
      self._check([[feeds[0].get(part, part) for part in template.flatten()]
                   for template in program.feed.templates])
    # The step is the last one of an epoch, which may be smaller.
    self.plan = program.plan._replace(
        num_examples=count, last_batch='keep',
        since=ResumePoint(step, self.plan.examples_before(step)))
    fed = itertools.cycle(feeds)  # Again where the step is taken again.
    try:
      with self.calls.running_by(lambda run, fetches: run(fetches, next(fed))):
        yield
    finally:
      self.count_from(ResumePoint(self.step, self.plan.examples_before(self.step)))

  def start_validation(self) -> None:
    """Starts the iterators of the validation split, and fills its staging areas."""
    if self._validation is not None:
      self._validation.feed.start(self.session)
      self.validation_moved = False
      self.runs += 1

  def move_back(self) -> None:
    """Starts the training input again where the next step's examples begin, if it has moved."""
    if self.plan.is_by_hand:
      raise UsageError('The program takes its batches by hand: write session.train(batch), arrays '
                       'in the structure of an example; or give towers.from_stream a function that '
                       'makes examples.')
    if self.training_moved:
      self.program.feed.start(self.session, step=self.step, plan=self.plan)
      self.training_moved = False

  def follow(self) -> None:
    """Goes on from where `global_step` is, which other runs than steps may have moved."""
    self.ran_outside = False
    step, seen = (int(value) for value in self.session.run(self._counters))
    was, self.step = self.step, step
    self.training_moved |= step != was
    planned = self.plan.examples_before(step)
    if seen == planned or self.program.train_examples.marks_bad and seen < planned:
      return
    self.training_moved = True
    plan = self.program.plan
    self.count_from(ResumePoint(step, seen, *divmod(seen, plan.examples_per_epoch)))
    if seen == plan.examples_before(step):
      return  # As in a run of which nothing was set.
    write_line(f'WARNING: global_step was {was} and is now {step}, and examples_seen is {seen}: '
               'the examples go on behind these, whatever the step. If they are to be those of '
               f'step {step + 1}, write towers.placement.counters.get_examples_seen()'
               f'.load({planned}, session.tf_session); session.restore(folder) restores both.')

  def broadcast(self) -> None:
    """Copies the chief's variables to all workers, which all call it; does nothing if alone."""
    if self.program.broadcast is not None:
      self.session.run(self.program.broadcast.all_op)

  def take_step(self, validation_pass: Optional[ValidationPass] = None) -> StepResult:
    """Updates the weights once, as `Session.take_step` does, from where the input stands.

    The loss is NaN if all examples of the batch are damaged and left out. If it is finite and only
    its scale was too large, the step is skipped.
    """
    calls, self._pass = self.calls, validation_pass
    if 'accumulate' in calls.chosen:  # All micro-batches but the last one.
      for _ in range(self.plan.num_micro_batches(self.step) - 1):
        self.metrics.add_wait(calls.chosen['accumulate']()[0])
        self.runs += 1
    if validation_pass is None:
      results = calls.chosen['train']()
    else:
      numbers, count = calls.find_numbers(validation_pass.num_runs), calls.num_measured
      found = calls.chosen['measure_and_train'](*numbers)
      (sums, *rows), results = found[:count], found[count:]
      validation_pass.add(sums, rows)
    self.runs += 1
    loss, is_done, wait, *more = results
    metrics = num_examples = None
    if more:
      others = dict(zip(calls.others, more))
      metrics, num_examples = others.get('metrics'), others.get('num_examples')
      if 'votes' in others:
        self._votes.count(others['votes'], self.step)
    if num_examples == 0 and not self._has_said_empty:
      self._has_said_empty = True
      write_line(f'WARNING: all examples of step {self.step + 1} are damaged and left out: its '
                 'loss is NaN, a mean of nothing, and no gradient has changed a weight (further '
                 'such steps are not named)')
    self.activity = 'training'
    loss = self.metrics.add(self.plan, self.step, loss, is_done, wait, metrics, num_examples)
    if is_done:
      self.step += 1
      return StepResult(loss)
    self._num_refused = num_examples
    if np.isfinite(loss) and self._lower_loss_scale():
      self.skip()
      return StepResult(loss)
    return self._try_again()

  def check_pass(self) -> None:
    """Refuses by a UsageError to validate in the middle of another pass."""
    if self._pass is not None and not self._pass.is_complete:
      raise UsageError('The validation tower is in the middle of a pass over the validation split, '
                       'which another would disturb: ask in on_validation, or use '
                       'validation_tower=False.')

  def begin_pass(self) -> ValidationPass:
    """Begins a pass over the validation split with the current weights."""
    validation, broadcast = self._validation, self.program.broadcast
    if validation is None:
      raise UsageError('The program has nothing to validate on: give towers.Program the argument '
                       'validation.')
    self.check_pass()
    if self.validation_moved:
      self.start_validation()
    self.validation_moved = True  # Until all of it is measured.
    self.check_workers()
    if broadcast is not None and broadcast.moved_op is not None:
      self.session.run(broadcast.moved_op)
    if validation.snapshot_op is not None:
      self.session.run(validation.snapshot_op)
    inputs, split = validation.feed.inputs, self.program.validation_examples
    towers = validation.towers
    rows = WholeRows([tower.wholes for tower in towers], shards=inputs.shards,
                     order=inputs.plan.order(buckets=split and split.buckets))
    return ValidationPass(towers[0], rows, num_steps=inputs.plan.steps_per_epoch, step=self.step)

  def _lower_loss_scale(self) -> bool:
    """Halves the loss scale after it made gradients too large; returns whether it could."""
    scale = self.program.gradients.loss_scale
    if scale is None or scale.variable is None:
      return False
    value = self.session.run(scale.variable)
    if value <= 1:
      return False
    if self.program.workers.rank == 0:
      write_line(f'WARNING: step {self.step + 1} has gradients too large for 16 bits at '
                 f'loss_scale={value:g}, and changes no weight; the scale is now {value / 2:g}')
    scale.variable.load(value / 2, self.session)
    scale.good_steps.load(0, self.session)
    return True

  def _try_again(self) -> StepResult:
    """Takes the step that was not finite again, on the same examples, to find the towers at fault.

    The same weights give the same values, so that the step fails again, unless a device or a kernel
    has failed only once: then the step is done now. Either way the input has passed its examples.
    """
    if self._diagnosis is None:
      with self.session.graph.as_default():
        self._diagnosis = build_diagnosis(self.program.gradients)
    gradients, diagnosis = self.program.gradients, self._diagnosis
    self.program.feed.start(self.session, step=self.step, plan=self.plan)
    parts, found = [diagnosis.losses, diagnosis.finite, diagnosis.inputs], []
    last = self.plan.num_micro_batches(self.step) - 1
    for micro_batch in range(last + 1):
      op = self.program.train_op if micro_batch == last else gradients.add_op
      values, loss, is_done = self.calls.run([parts, gradients.loss, op])
      self.runs += 1
      found.append(values)

    if is_done:
      self.step += 1
    self.training_moved = not is_done  # Unless it is skipped.
    self.calls.update = None
    losses, finite, inputs = map(np.stack, zip(*found))
    result = StepResult(loss)
    result.not_finite = Retried(
        bool(is_done), diagnosis._replace(losses=losses, finite=finite, inputs=inputs),
        self.has_other_workers, self.program.given.wire)
    return result

  def skip(self) -> None:
    """Counts the step as done without an update; the input has passed its examples already."""
    planned, found = self.plan.size_at(self.step), self._num_refused
    self.step, self.training_moved = self.step + 1, False
    seen = self.count_examples() + (planned if found is None else int(found))
    for counter, value in zip(self._counters, (self.step, seen)):
      counter.load(value, self.session)

  def finish_pass(self, validation_pass: ValidationPass, goes_on: Callable[[], bool]) -> None:
    """Measures the rest of a pass without training, as `Session.finish_validation` does."""
    measure, validation = self.calls.measure, self._validation
    assert measure is not None and validation is not None, 'there is a pass'
    with self.averaged():
      while not validation_pass.is_complete and (goes_on() or self.has_other_workers):
        sums, *rows = measure(*self.calls.find_numbers(validation_pass.num_runs))
        validation_pass.add(sums, rows)
        self.runs += 1
    if validation_pass.is_complete and validation.sum_workers:
      validation_pass.sums = validation.sum_workers(
          self.session, validation_pass.sums, validation_pass.rows)
      self.runs += 1
    self.validation_moved = not validation_pass.is_complete

  def averaged(self) -> ContextManager[None]:
    """Opens a context in which validation by the switch measures the averages of the weights."""
    averages = self.program.averages
    if averages is None or self._validation is not None and self._validation.has_tower:
      return contextlib.nullcontext()
    return averages.in_place(self.session)

  def check_replicas(self) -> None:
    """Raises a RunError with the first variable that differs between towers, if any does."""
    replicas = self.program.replicas
    if replicas is None:
      return
    same = self.session.run(replicas.same)
    if not same.all():
      first = int(np.argmin(same))
      raise RunError(f'After step {self.step} tower {replicas.towers[first]} has another '
                     f'{replicas.names[first]} than tower 0 ({int(np.sum(~same))} of {len(same)} '
                     'replicas differ), so that its results are wrong, and nothing is saved. One '
                     'device computes other results than the rest: start again from the '
                     'checkpoint before, and use variables=first if it happens again.')

  def check_workers(self) -> None:
    """Raises a RunError with the first variable that differs, but for rounding, between workers."""
    broadcast = self.program.broadcast
    if broadcast is None:
      return
    own, chiefs = self.session.run(broadcast.sizes)
    differs = np.abs(own - chiefs) > _ROUNDING_OF_WORKERS * chiefs
    if differs.any():
      first = int(np.argmax(differs))
      raise RunError(f'After step {self.step} this worker has another {broadcast.weights[first]} '
                     f'than the chief ({int(differs.sum())} of {differs.size} weights differ): '
                     'what a callback or a program assigns, such as a learning rate, all workers '
                     'must assign. Start again from the last checkpoint.')

  def take_snapshot(self) -> Snapshot:
    """Returns the variables and where the data stands, as `Session.snapshot` does."""
    self.check_replicas()
    if self.program.workers.rank != 0:
      return Snapshot(self.plan.point_at(self.step), {})
    values = self.session.run({variable.op.name: variable for variable in tf.global_variables()})
    step, seen = (int(values[counter.op.name]) for counter in self._counters)
    return Snapshot(self.plan.point_at(step)._replace(examples=seen), values)

  def find_point(self, reader: Any) -> ResumePoint:
    """Returns where the data stands, of a checkpoint whose values the variables have."""
    step, seen = (int(value) for value in self.session.run(self._counters))
    return read_point(reader, self.program.plan, step, seen)[0]

  def count_examples(self) -> int:
    """Returns the examples of all steps so far."""
    return int(self.session.run(self._counters[1]))
