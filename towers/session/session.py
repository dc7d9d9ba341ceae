"""Session: a program in a `tf.Session`, from its first variable to its last step.

  with program.session() as session:       variables started, or the chief's; input started
    while session.step < 10_000:
      loss = session.train()               takes a batch on every tower, updates, puts the next one
    print(session.validate())              the whole validation split, every metric as a mean

A training run and an evaluator are loops over its public methods. They open it by `opened`, and
decide themselves where it goes on from, by `resume`, `resume_snapshot` or `restore_to_measure`;
only a run that trains then calls `start`.
"""

import contextlib
import functools
import numbers
import sys
import time
from typing import Any, Callable, Dict, List, Optional

import numpy as np

from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.process.run_error import OutOfMemory, RunError
from towers.session.batches_taken import find_taken, list_fetched, name_variables, put_back
from towers.session.calls import Calls
from towers.session.engine import StepResult
from towers.session.failure import has_changed_nothing
from towers.session.forward_cache import ForwardCache
from towers.session.open_session import OpenSession
from towers.session.rows import open_rows
from towers.session.training_metrics import TrainingMetrics
from towers.session.validation_pass import ValidationPass
from towers.settings.arguments import describe
from towers.tensorflow_v1 import RUN_ERRORS, tf
from towers.training_graph import TrainingGraph

_SECONDS_TO_GIVE_WAY = 2e-4


class Session(OpenSession):
  """A program in an open `tf.Session`, ready to train.

  Whatever is called, in whatever order, the staging areas stay as full as they were: nothing
  blocks, and no tower falls behind another.

  Attributes:
    program: the program that it runs.
    is_of_run: whether a run takes all steps, so that `train` is refused.
  """

  def __init__(self, program: TrainingGraph, **settings: Any):
    super().__init__(program, **settings)
    self.is_of_run = False
    self._mark = np.zeros([])  # Of the training metrics, when they were last asked for.
    self._find_taken = functools.lru_cache(maxsize=None)(functools.partial(find_taken, program))
    self._forward_cache = ForwardCache(program)

  def train(self, batch: Any = None) -> float:
    """Updates the weights once; returns the mean loss over the global batch before the update.

    Args:
      batch: arrays in the structure of an example, `[n, ...]` with n up to the batch size, or with
        last_batch='drop' just that, for a program of `towers.from_stream(like=example)`; with
        several workers all give the same. None for the next batch of the program's own examples.

    Raises:
      RunError: the loss or a gradient is NaN or infinite, also when the step is taken again. No
        variable has changed; the step counts as done, so that one may go on.
    """
    if self.is_of_run:  # Neither its loop nor a callback would see the step.
      raise UsageError('run.session.train() is a step beside those of the run, which takes all '
                       'steps itself: give towers.train more by steps= or epochs=, or write a loop '
                       'of your own, with program.session() as session.')
    if batch is not None:
      with self._called() as engine, engine.fed(batch):
        return self._accept(engine.take_step())
    result = self.take_step()
    return float(result) if result.not_finite is None else self._accept(result)

  def _accept(self, result):
    """Returns the loss of a step; skips one that no second try has made finite, and raises."""
    not_finite = result.not_finite
    if not_finite is not None and not not_finite.is_done:
      self.skip()
      raise RunError(f'Step {self.step} is not finite: {not_finite}. It has changed no variable. '
                     f'{not_finite.advice}; or catch this error to go on with the next step.')
    return float(result)

  def take_step(self, validation_pass: Optional[ValidationPass] = None) -> StepResult:
    """Does what `train` does, and says where the step was not finite; then only `skip` counts it.

    Meanwhile the validation tower measures a batch of the pass that is given, if any.
    """
    if self._waiting:  # This thread would take the lock again before any other wakes.
      time.sleep(_SECONDS_TO_GIVE_WAY)
    # No context but the lock's: the less Python does between two runs, the fewer threads sleep.
    with self._calling:
      engine, watchdog = self._opened, self.watchdog
      if engine is None or engine.training_moved or engine.ran_outside or not engine.has_begun:
        with self._called() as engine:
          engine.move_back()
      watched, watchdog.engine = watchdog.engine, engine
      try:
        return engine.take_step(validation_pass)
      except RUN_ERRORS as error:
        raise self._explain(error) from None
      finally:
        watchdog.engine = watched

  def skip(self) -> None:
    """Counts a step that was not finite as done: the next one takes the examples behind it."""
    with self._called() as engine:
      engine.skip()

  def validate(self, examples: Any = None) -> Dict[str, float]:
    """Returns the mean of 'loss' and of each metric over the whole validation split.

    Raises:
      UsageError: the program has no validation examples; or other `examples` are given, which
        `evaluate` measures.
    """
    if examples is not None:
      raise UsageError('session.validate measures the validation split of the program alone: write '
                       'session.evaluate(examples).')
    validation_pass = self.begin_validation()
    self.finish_validation(validation_pass)
    return validation_pass.means()

  def begin_validation(self) -> ValidationPass:
    """Begins a pass over the validation split, with the weights that the session has now.

    A validation tower measures it beside the steps that are given it, see `take_step`.
    """
    with self._called('validation') as engine:
      return engine.begin_pass()

  def finish_validation(self, validation_pass: ValidationPass,
                        goes_on: Callable[[], bool] = lambda: True) -> None:
    """Measures the rest of a pass without training, as long as `goes_on()`.

    Several workers always measure the whole pass, since they end it together.
    """
    with self._called('validation') as engine:
      engine.finish_pass(validation_pass, goes_on)

  def metrics(self) -> Dict[str, float]:
    """Returns the means of 'loss' and of each metric over the steps since the last call.

    Over the examples of these steps, each with the weights before its update; {} without a step.
    """
    metrics, mark = self._engine.metrics, self._mark
    self._mark = metrics.mark()
    return metrics.since(mark)

  def evaluate(self, examples: Any, *, batch_size: Optional[int] = None) -> Dict[str, float]:
    """Returns the mean of 'loss' and of each metric over other examples, such as a third split.

    A metric whose weights are all 0 there has none. It is the same number on any towers. The
    weights are their averages if the program has any; the training goes on as if nothing had been
    asked. Each of several workers computes all by itself.

    Args:
      examples: `towers.Examples` in the structure of the training split; or what
        `towers.from_arrays` takes, one structure of arrays; or an iterator of batches of these.
      batch_size: rows at a time, of what does not come in batches; None for the program's.

    Raises:
      UsageError: the examples do not fit the model.
    """
    with self._forwarded('evaluate', self.program.model, examples, batch_size) as (model, rows):
      return model.measure(rows)

  def predict(self, examples: Any, function: Optional[Callable[..., Any]] = None, *,
              batch_size: Optional[int] = None) -> Any:
    """Returns what a function computes of each example, in order, each once, on any towers.

      session.predict(images, lambda images: {'class': tf.argmax(net(images), 1)})

    Args:
      examples: as for `evaluate`; parts that the function does not take may be missing.
      function: of parts of a batch, `[n, ...]` each, to a tensor or a dict of tensors, `[n, ...]`,
        as `predict` of `towers.export`; it makes the model's variables by the same names.
      batch_size: rows at a time, of what does not come in batches; None for the program's.

    Returns:
      An array with a row for each example, a list if rows differ in size; or a dict of these. The
      weights are their averages if the program has any. What the function draws is drawn anew in
      each call, the same on any towers.

    Raises:
      UsageError: the function does not fit the examples, or has variables of its own.
    """
    if not callable(function):
      raise UsageError(f'session.predict got {describe(function)} as its function, which computes '
                       'what is predicted: write session.predict(images, lambda images: '
                       'tf.argmax(net(images), 1)), or session.predict(images, model.predict) of a '
                       'towers.KerasModel.')
    parts = tf.nest.flatten(examples)
    if parts and all(isinstance(part, np.ndarray) and part.shape[:1] == (0,) for part in parts):
      examples = iter([examples])  # A batch without rows has outputs without rows.
    with self._forwarded('predict', function, examples, batch_size) as (model, rows):
      found = model.predict(rows, self._forward_cache.numbers)
    return found['output'] if list(found) == ['output'] else found

  def run(self, fetches: Any, feed_dict: Optional[Dict[Any, Any]] = None, options: Any = None,
          run_metadata: Any = None) -> Any:
    """Returns the values of `fetches`, any structure of tensors, ops and names in the graph.

    The name of a variable stands for its value, as 'dense/kernel', and a number for itself.

    Where they need a batch, every tower takes its next one, and puts another, as any run of a
    `tf.Session` does: fetch in one call what belongs together. They only look at it: the next
    `train` takes the batch that it would have taken, at the cost of starting the input again. Where
    `feed_dict` feeds the program's `is_validating` True, the batch is of the validation split, and
    the weights are their averages if the program has any.

    Raises:
      UsageError: the fetches are none of the program, or update the weights of one that accumulates
        micro-batches.
      RunError: they update the weights, and the step is not finite, see `train`.
    """
    validation = self.program.validation
    with self._called() as engine:
      leaves = name_variables(tf.nest.flatten(fetches))
      # A number, as a learning rate may be, is its own value.
      fetched = [leaf for leaf in leaves if not isinstance(leaf, numbers.Number)]
      taken = self._find_taken(list_fetched(self.program.graph, fetched))
      switch = None if validation is None else validation.is_validating
      is_validating = switch is not None and bool((feed_dict or {}).get(switch, False))
      if taken.by_validation:
        engine.check_pass()
      puts = put_back(self.program, taken, is_validating=is_validating)
      only_looks = taken.by_towers and not is_validating and not taken.updates
      if taken.updates or only_looks and engine.plan.is_by_hand:
        engine.move_back()
      engine.training_moved |= only_looks
      engine.validation_moved |= is_validating or taken.by_validation
      found: List[Any] = []

      def run(session_run, step):
        values, _, results = session_run([fetched, puts, step], feed_dict, options=options,
                                         run_metadata=run_metadata)
        found[:] = values
        return results

      if taken.updates:
        with engine.calls.running_by(run):
          self._accept(engine.take_step())
      else:
        with engine.averaged() if is_validating else contextlib.nullcontext():
          run(engine.session.run, [])
      if taken.starts_anew and (engine.step or self.program.warm_start is not None):
        write_line('WARNING: this run has given all weights their first values again, and undone '
                   'what init_from, restore and steps made of them: leave '
                   'tf.global_variables_initializer() out, since a session starts its variables',
                   sys.stderr)
      if taken.moves_step:
        engine.follow()
    values = iter(found)
    return tf.nest.pack_sequence_as(fetches, [
        leaf if isinstance(leaf, numbers.Number) else next(values) for leaf in leaves])

  @property
  def examples_seen(self) -> int:
    """Examples of all steps so far."""
    with self._called() as engine:
      return engine.count_examples()

  @property
  def training_metrics(self) -> TrainingMetrics:
    """The sums of all training steps, for means since any mark."""
    return self._engine.metrics

  @property
  def calls(self) -> Calls:
    """The runs of the next steps, which may be measured, or run in another way."""
    return self._engine.calls

  def learning_rate(self) -> float:
    """Returns the rate of the next update; NaN where the optimizer hides it."""
    return next(iter(self.learning_rates().values()), float('nan'))

  def learning_rates(self) -> Dict[str, float]:
    """Returns the same of each group of variables, by the name of its curve."""
    rates = self.program.learning_rates
    found = self._engine.session.run(
        {name: rate for name, rate in rates.items() if not isinstance(rate, float)})
    return {name: float(found.get(name, rate)) for name, rate in rates.items()}

  @property
  def agree(self) -> Callable[[str, bool], bool]:
    """Casts this worker's vote, as for 'save'; returns whether any has, see `VoteCounter`."""
    return self._engine.agree

  def check_replicas(self) -> None:
    """Makes sure that all towers and workers have the same weights; all workers call it.

    Raises:
      RunError: names a weight that differs, and the tower.
    """
    with self._called() as engine:
      engine.check_replicas()
      engine.check_workers()

  def has_changed_nothing(self, shortage: OutOfMemory) -> bool:
    """Whether all that a checkpoint holds is as it was before the run that was out of memory."""
    return has_changed_nothing(shortage, self._engine)

  @contextlib.contextmanager
  def _forwarded(self, name, compute, examples, batch_size):
    """Opens the context of a call with a model or function beside the session, and its rows."""
    batch_size = batch_size or self.program.plan.micro_batch_size
    with self._called(name) as engine, self.watchdog.paused(), \
        open_rows(examples, batch_size) as rows:
      yield self._forward_cache.find(compute, rows, engine, is_model=name == 'evaluate'), rows

  def _close(self, kind, *_):
    self._mark = np.zeros([])
    self._forward_cache.close()
    super()._close(kind)
