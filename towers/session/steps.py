"""Steps: what one call of the session does.

Three callables cover a run. Each takes batches out of the staging areas and puts the next ones in:

  train                  loss, update, put train
  train + validate       the same, and the sums of the validation tower, put validation
                         (validation on its own tower)
  validate               sums with is_validating fed, put validation
                         (validation by the switch)
"""

import contextlib
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, ContextManager, Optional, Tuple

import numpy as np

from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import Snapshot
from towers.coupling.law import has_parts, judge
from towers.input.plan import ResumePoint
from towers.placement.collectives import meet_towers
from towers.placement.counters import get_examples_seen, get_global_step
from towers.process.run_error import RunError
from towers.session.calls import Calls
from towers.session.not_finite import NotFinite, Retried
from towers.session.training_metrics import TrainingMetrics
from towers.session.validation_pass import ValidationPass
from towers.tensorflow_v1 import Call, tf, uncompiled
from towers.training_graph import TrainingGraph
from towers.update.guard import Diagnosis, build_diagnosis
from towers.update.learning_rate import get_rate_factor
from towers.whole import WholeRows
from towers.workers.votes import Votes

# With more towers, preparing the step takes longer than starting variables, so these start on one
# thread and leave the other cores to it.
_FEW_TOWERS = 4


class Steps:
  """A program in a session, step by step.

  Attributes:
    session: the open `tf.Session`, a `SharedSession`.
    program: the program that runs in it.
    step: how many steps are done, and so the index of the next one.
    plan: of the training split, from where the session has resumed.
    runs: how often the session has run: all that the watchdog reads to see progress.
    activity: what the program is doing, in words.
    has_other_workers: whether other workers take every step as well.
    agree: see `Votes.agree`.
    calls: the runs of the session that a step consists of.
    metrics: of the training steps, and how long they waited for input.
    training_moved, validation_moved: whether a run of other fetches has taken batches that steps
      or validation are still to have.
    was_told: whether somebody else has run the session, and may have moved `global_step`.
    pass_began: where a validation tower measures weights of steps ago, all variables of then, for a
      run that ends meanwhile to measure them again; else None.
  """

  def __init__(self, session: Any, program: TrainingGraph):
    self.step = 0
    self.plan = program.plan
    self.runs = 0
    self.activity = 'set-up'
    self.metrics = TrainingMetrics(program)
    self.training_moved = self.validation_moved = self.was_told = False
    self.pass_began: Optional[Snapshot] = None
    self._beside: Optional[ValidationPass] = None
    self.session = session
    self.program = program
    self._validation = program.validation
    self.has_other_workers = program.gradients.votes is not None
    self._votes = Votes(session, program.gradients.votes)
    self.agree = self._votes.agree
    self._counters = (get_global_step(), get_examples_seen())
    self._diagnosis: Optional[Diagnosis] = None
    self._has_said_empty = False

    self.calls = Calls(session, program)

  @property
  def version(self) -> Any:
    """What has another value whenever a run may have changed a variable."""
    return self.runs, self.session.num_runs

  @property
  def can_validate(self) -> bool:
    """Whether there is a validation split to measure."""
    return self._validation is not None

  @property
  def has_validation_tower(self) -> bool:
    """Whether one tower validates while the others train."""
    return self._validation is not None and self._validation.is_validating is None

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
    with ThreadPoolExecutor(1) as thread:
      started = thread.submit(variables)
      calls = self.calls.plain
      for name in calls:
        if name != 'measure_and_train':  # The first validation prepares it.
          calls[name] = calls[name].prepare()
      started.result()

  def resume(self, point: ResumePoint) -> None:
    """Counts on from where all variables, the counters too, have been restored."""
    self.step = point.step
    self.metrics.plan = self.plan = self.program.plan.resumed_at(point)

  def start(self, step: int) -> None:
    """Starts all iterators, the training split at `step`, and fills the staging areas."""
    self.step, self._beside = step, None
    self.training_moved = self.validation_moved = self.was_told = False
    self.activity, is_first = 'warm-up', self.runs == 0
    rows = self.program.feed.start(
        self.session, step=step, plan=self.plan,
        peeks=is_first and has_parts(self.program),
        other=self._validation.feed if is_first and self._validation else None)
    if not is_first:  # What has moved starts one after another, see `build_inputs`.
      self.start_validation()
    with uncompiled():
      judge(self.program, self.session, rows)
    self.runs += 1
    self.activity = 'the first step'

  def start_validation(self) -> None:
    """Starts the iterators of the validation split, and fills its staging areas."""
    if self._validation is not None:
      self._validation.feed.start(self.session)
      self.validation_moved = False
      self.runs += 1

  def move_back(self) -> None:
    """Starts the training input again where the next step's examples begin, if it has moved."""
    if self.was_told:
      self.follow()
    if self.training_moved:
      self.program.feed.start(self.session, step=self.step, plan=self.plan)
      self.training_moved = False

  def follow(self, *, has_updated: bool = False) -> None:
    """Goes on from where `global_step` is, which other runs than steps may have moved.

    Where such a run `has_updated` the weights once, and put a batch for the one that it has taken,
    the input has gone along; else it starts again.
    """
    self.was_told = False
    step, seen = (int(value) for value in self.session.run(self._counters))
    was, self.step = self.step, step
    self.training_moved |= step != was + has_updated
    planned = self.plan.examples_before(step)
    if seen == planned or self.program.train_examples.marks_bad and seen < planned:
      return
    self.training_moved = True
    plan = self.program.plan
    self.resume(ResumePoint(step, seen, *divmod(seen, plan.examples_per_epoch)))
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

  def train(self, beside: Optional[ValidationPass] = None) -> float:
    """Updates the weights once; returns the mean loss over the global batch before the update.

    If the loss is finite and only its scale was too large, the step is skipped.

    Args:
      beside: a pass of which the validation tower measures the next batch meanwhile, or None.

    Raises:
      NotFinite: the loss or a gradient is not finite, and nothing was updated.
    """
    calls = self.calls
    if 'accumulate' in calls.chosen:  # All micro-batches but the last one.
      for _ in range(self.plan.num_micro_batches(self.step) - 1):
        self.metrics.add_wait(calls.chosen['accumulate']()[0])
        self.runs += 1
    if beside is None:
      results = calls.chosen['train']()
    else:
      calls.begin_run(beside.num_runs)
      found, count = calls.chosen['measure_and_train'](), calls.num_measured
      (sums, *rows), results = found[:count], found[count:]
      beside.add(sums, rows)
    self.runs += 1
    if self.has_other_workers:
      self._votes.count(results[calls.num_fetches - 1], self.step)
    if calls.count_at is not None and not results[calls.count_at]:
      self._say_empty()
    self.activity = 'training'
    loss, is_done = self.metrics.add(self.step, results), results[1]
    if is_done or is_done is None:  # An op without a guard gives None.
      self.step += 1
    elif np.isfinite(loss) and self._lower_loss_scale():
      self.skip()
    else:  # The guard has blocked the update.
      raise NotFinite
    return loss

  def _say_empty(self):
    """Says once that a step has no example left, whose loss is no mean of anything."""
    if not self._has_said_empty:
      write_line(f'WARNING: all examples of step {self.step + 1} are damaged and left out: its '
                 'loss of 0.0 says nothing, and no gradient has changed a weight (further such '
                 'steps are not named)')
    self._has_said_empty = True

  def take(self, beside: Optional[ValidationPass] = None) -> Tuple[float, Optional[Retried]]:
    """Updates the weights once as `train` does; tries again where that is not finite.

    Returns:
      The loss, and None or what the second try has found: then it is done too, or has changed no
      variable and does not count.
    """
    if self.training_moved or self.was_told:
      self.move_back()
    self._beside = beside
    try:
      return self.train(beside), None
    except NotFinite:
      retried = self.retry()
      return retried.loss, retried

  def check_beside(self) -> None:
    """Refuses by a UsageError to validate in the middle of another pass."""
    if self._beside is not None and not self._beside.is_complete:
      raise UsageError('The validation tower is in the middle of a pass over the validation split, '
                       'which another would disturb: ask in on_validation, or use '
                       'validation=switch.')

  def begin_pass(self, step: int) -> ValidationPass:
    """Begins a pass over the validation split with the current weights, after `step` updates."""
    validation, broadcast = self._validation, self.program.broadcast
    assert validation is not None, 'the program has no validation'
    if self.validation_moved:
      self.start_validation()
    if broadcast is not None and broadcast.moved_op is not None:
      self.session.run(broadcast.moved_op)
    if validation.snapshot_op is not None:
      self.session.run(validation.snapshot_op)
    inputs, split = validation.feed.inputs, self.program.validation_examples
    rows = WholeRows(validation.wholes, shards=inputs.shards,
                     order=inputs.plan.order(buckets=split and split.buckets))
    return ValidationPass(names=validation.names, weighted=validation.weighted,
                          losses=validation.losses, rows=rows,
                          num_steps=inputs.plan.steps_per_epoch, step=step)

  def _lower_loss_scale(self) -> bool:
    """Halves the loss scale after it made gradients too large; returns whether it could."""
    scale = self.program.gradients.loss_scale
    if scale is None or scale.variable is None:
      return False
    value = self.session.run(scale.variable)
    if value <= 1:
      return False
    scale.variable.load(value / 2, self.session)
    scale.good_steps.load(0, self.session)
    return True

  def retry(self) -> Retried:
    """Takes the step that was not finite again, on the same examples, to find the towers at fault.

    The same weights give the same values, so that the step fails again, unless a device or a kernel
    has failed only once: then the step is done now. Either way the input has passed its examples.
    """
    if self._diagnosis is None:
      with self.session.graph.as_default():
        self._diagnosis = build_diagnosis(self.program.gradients)
    gradients, diagnosis = self.program.gradients, self._diagnosis
    self.program.feed.start(self.session, step=self.step, plan=self.plan)
    losses, finite = [], []

    last = self.plan.num_micro_batches(self.step) - 1
    for micro_batch in range(last + 1):
      op = self.program.train_op if micro_batch == last else gradients.add_op
      tower_losses, are_finite, loss, is_done = self.session.run(
          [diagnosis.losses, diagnosis.finite, gradients.loss, op])
      self.runs += 1
      losses.append(tower_losses)
      finite.append(are_finite)

    self.step += bool(is_done)
    self.calls.update = None
    return Retried(float(loss), bool(is_done), np.stack(losses), np.stack(finite), diagnosis.names,
                   self.has_other_workers, self.program.settings['wire'], diagnosis.loss_names)

  def skip(self) -> None:
    """Counts the step as done without an update; the input has passed its examples already."""
    self.step += 1
    for counter, value in zip(self._counters, (self.step, self.plan.examples_before(self.step))):
      counter.load(value, self.session)

  def validate(self, validation_pass: ValidationPass,
               goes_on: Callable[[], bool] = lambda: True) -> None:
    """Measures the rest of the pass without training, as long as `goes_on()`.

    Several workers always measure the whole pass, since they end it together.
    """
    measure = self.calls.measure
    assert measure is not None, 'the program has no validation'
    with self.averaged():
      while not validation_pass.is_complete and (goes_on() or self.has_other_workers):
        self.calls.begin_run(validation_pass.num_runs)
        sums, *rows = measure()
        validation_pass.add(sums, rows)
        self.runs += 1
    sum_workers = self._validation and self._validation.sum_workers
    if validation_pass.is_complete and sum_workers:
      validation_pass.sum_up(functools.partial(sum_workers, self.session))
      self.runs += 1

  def averaged(self) -> ContextManager[None]:
    """Opens a context in which validation by the switch measures the averages of the weights."""
    averages = self.program.averages
    if averages is None or self.has_validation_tower:
      return contextlib.nullcontext()
    return averages.in_place(self.session)

  def check_replicas(self) -> None:
    """Makes sure that all towers have the same weights.

    Raises:
      RunError: names the first variable that differs, and the tower.
    """
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

  def scale_learning_rate(self, factor: float) -> None:
    """Multiplies the schedule's rate by `factor`, if the program is built for on_nan=rollback."""
    if not isinstance(self.program.learning_rate, float):
      with self.session.graph.as_default():
        get_rate_factor().load(factor, self.session)

  def learning_rate(self) -> float:
    """Returns the rate of the next update."""
    rate = self.program.learning_rate
    return rate if isinstance(rate, float) else float(self.session.run(rate))
