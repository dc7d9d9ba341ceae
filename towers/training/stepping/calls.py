"""Calls: the runs of a training step, whose fetches are resolved once.

A plain `Session.run` would resolve them again in every step.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from tensorflow_v1 import Call
from towers.training_graph import TrainingGraph
from towers.whole import flatten_rows

# From the fetches of a run to the function that runs them.
Make = Callable[[List[Any]], Callable[[], Any]]


class Update(NamedTuple):
  """What a measured step returns besides its loss.

  Attributes:
    gradient_norm: the global norm of its gradients.
    learning_rate: the rate that it applied.
    summaries: what the model has made by `tf.summary` in the first tower.
  """
  gradient_norm: float
  learning_rate: float
  summaries: Sequence[bytes] = ()


class Calls:
  """Makes the runs of a program's training steps.

  Attributes:
    fetches: of each run, by its name.
    num_fetches: of a run that updates.
    num_measured: of a run that measures a validation batch.
    plain: the runs by name: 'train', with accumulation 'accumulate' for each micro-batch before,
      with a validation tower 'measure_and_train'.
    measure: takes a validation batch without training; None without validation.
    update: of the last measured step, or None.
  """

  def __init__(self, session: Any, program: TrainingGraph):
    """Prepares them; nothing runs yet."""
    self._session, self._program = session, program
    self.update: Optional[Update] = None
    gradients, validation = program.gradients, program.validation
    train = [gradients.loss, program.train_op, program.input_wait]
    if gradients.begins_with_loss:
      train[0] = gradients.metrics
    elif gradients.metrics is not None:
      train.append(gradients.metrics)
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
      if validation.is_validating is None:
        self.measure = Call(session, measured)
        self.fetches['measure_and_train'] = measured + train
      else:
        switched = session.make_callable(measured, feed_list=[validation.is_validating])
        self.measure = lambda: switched(True)
    self.plain: Dict[str, Any] = {
        name: Call(session, fetches) for name, fetches in self.fetches.items()}
    self._measured: Dict[str, Callable[[], Any]] = {}

  def choose(self, is_measured: bool,
             run: Optional[Callable[[List[Any]], Any]]) -> Dict[str, Callable[[], Any]]:
    """Returns the runs of the next steps, by name; see `Steps.measure` and `Steps.run_by`."""
    if run is not None:
      return self._make(lambda fetches: lambda: run(fetches), is_measured)
    if not is_measured:
      return self.plain
    # Kept, since the session takes some time to prepare another set of fetches.
    self._measured = self._measured or self._make(
        lambda fetches: Call(self._session, fetches), True)
    return self._measured

  def _make(self, make: Make, is_measured: bool) -> Dict[str, Callable[[], Any]]:
    return {name: self._with_update(make, fetches) if is_measured and name != 'accumulate' else
            make(fetches) for name, fetches in self.fetches.items()}

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
