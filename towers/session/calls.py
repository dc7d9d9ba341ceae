"""Calls: the runs of a training step, whose fetches are resolved once.

A plain `Session.run` would resolve them again in every step.
"""

import functools
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from towers.tensorflow_v1 import Call
from towers.tower.drawing.draws import shift_of
from towers.training_graph import TrainingGraph
from towers.whole import flatten_rows


class Update(NamedTuple):
  """What a measured step returns besides its loss."""
  gradient_norm: float  # The global norm of its gradients.
  learning_rate: float  # The rate that it applied.
  summaries: Sequence[bytes] = ()  # What the model has made by `tf.summary` in the first tower.


class Calls:
  """Makes the runs of a program's training steps.

  Attributes:
    fetches: of each run, by its name.
    num_fetches: of a run that updates.
    num_measured: of a run that measures a validation batch.
    count_at: where a step's run has the number of its examples, if all of them may be damaged; None
      elsewhere.
    plain: the runs by name: 'train', with accumulation 'accumulate' for each micro-batch before,
      with a validation tower 'measure_and_train'.
    chosen: the same of the next steps, which may be measured or run in another way.
    measure: takes a validation batch without training; None without validation.
    update: of the last measured step, or None.
  """

  def __init__(self, session: Any, program: TrainingGraph):
    self._session, self._program = session, program
    self.update: Optional[Update] = None
    self._numbers: List[int] = []  # Of what the next run measures, see `Validation.numbers`.
    gradients, validation = program.gradients, program.validation
    train = [gradients.loss, program.train_op, program.input_wait]
    if gradients.begins_with_loss:
      train[0] = gradients.metrics
    elif gradients.metrics is not None:
      train.append(gradients.metrics)
    self.count_at: Optional[int] = None
    if program.train_examples.marks_bad:
      self.count_at = len(train)
      train.append(gradients.num_examples)
    if gradients.votes is not None:
      train.append(gradients.votes.counts)
    self.num_fetches = len(train)
    self.fetches: Dict[str, List[Any]] = dict(train=train)
    if gradients.add_op is not None:
      self.fetches['accumulate'] = [program.add_wait, gradients.add_op]
    self.measure: Optional[Callable[[], Any]] = None
    if validation is not None:
      measured = [validation.sums, *flatten_rows(validation.wholes)]
      self.num_measured = len(measured)
      if validation.has_tower:
        self.measure = Call(session, measured)
        self.fetches['measure_and_train'] = measured + train
      else:
        switched = session.make_callable(measured, feed_list=[
            validation.is_validating, *(number for _, number in validation.numbers)])
        self.measure = lambda: switched(True, *self._numbers)
    self.plain: Dict[str, Any] = {
        name: Call(session, fetches) for name, fetches in self.fetches.items()}
    self.chosen = self.plain
    self._measured: Dict[str, Callable[[], Any]] = {}
    self._is_measured = False
    self._run_instead: Optional[Callable[..., Any]] = None

  def begin_run(self, num_runs: int) -> None:
    """Says after how many runs of its pass the next one measures, where its draws depend on it."""
    validation = self._program.validation
    if validation is not None and validation.numbers:
      batch, micro_batch = divmod(num_runs, self._program.plan.accumulate)
      values = dict(micro_batch=micro_batch, shift=shift_of(batch))
      self._numbers = [values[name] for name, _ in validation.numbers]
      for name, variable in validation.variables.items():
        variable.load(values[name], self._session)

  def measure_update(self, is_measured: bool) -> None:
    """Sets whether the next steps also compute `update`; the program must have a gradient norm."""
    self._is_measured = is_measured
    self._choose()

  def run_by(self, run: Optional[Callable[..., Any]]) -> None:
    """Runs the next steps by `run(session.run, fetches)` in place of this; None undoes it."""
    self._run_instead = run
    self._choose()

  def run(self, fetches: Any) -> Any:
    """Runs other fetches of a step as the step is run."""
    run = self._run_instead
    return self._session.run(fetches) if run is None else run(self._session.run, fetches)

  def _choose(self):
    run = self._run_instead
    if run is not None:
      self.chosen = self._make(lambda fetches: functools.partial(run, self._session.run, fetches))
    elif self._is_measured:
      # Kept, since the session takes some time to prepare another set of fetches.
      self._measured = self._measured or self._make(lambda fetches: Call(self._session, fetches))
      self.chosen = self._measured
    else:
      self.chosen = self.plain

  def _make(self, make):
    return {name: self._with_update(make, fetches) if self._is_measured and name != 'accumulate'
            else make(fetches) for name, fetches in self.fetches.items()}

  def _with_update(self, make, fetches):
    program, rate = self._program, self._program.learning_rate
    is_constant = isinstance(rate, float)
    rates = [] if is_constant else [rate]
    call = make([*fetches, program.gradient_norm, *rates, *program.summaries])

    def run():
      results = call()
      norm, *found = results[len(fetches):]
      self.update = Update(float(norm), rate if is_constant else float(found[0]),
                           found[len(rates):])
      return results

    return run
