"""Calls: the runs of a training step, whose fetches are resolved once.

A plain `Session.run` would resolve them again in every step.
"""

import contextlib
import functools
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from towers.tensorflow_v1 import Call
from towers.tower.drawing.draws import shift_of
from towers.training_graph import TrainingGraph
from towers.validation import fetch_measured


class Update(NamedTuple):
  """What a measured step returns besides its loss."""
  gradient_norm: float  # The global norm of its gradients.
  learning_rates: Mapping[str, float]  # The rates that it applied, by the names of their curves.
  summaries: Sequence[bytes] = ()  # What the model has made by `tf.summary` in the first tower.


class Calls:
  """Makes the runs of a program's training steps.

  Attributes:
    fetches: of each run, by its name.
    others: the names of what a run that updates returns behind the loss, or the metrics that begin
      with it, whether it is done, and its wait: if there are any, other 'metrics', 'num_examples'
      of a step whose examples may all be damaged, and 'votes'.
    num_measured: of a run that measures a validation batch.
    chosen: the runs of the next steps by name: 'train', with accumulation 'accumulate' for each
      micro-batch before, with a validation tower 'measure_and_train'.
    measure: takes a validation batch without training; None without validation.
    update: of the last measured step, or None.
  """

  def __init__(self, session: Any, program: TrainingGraph):
    self._session, self._program = session, program
    self.update: Optional[Update] = None
    gradients, validation = program.gradients, program.validation
    loss, others = gradients.loss, {}
    if gradients.begins_with_loss:
      loss = gradients.metrics
    elif gradients.metrics is not None:
      others['metrics'] = gradients.metrics
    if program.train_examples.marks_bad:
      others['num_examples'] = gradients.num_examples
    if gradients.votes is not None:
      others['votes'] = gradients.votes.counts
    train = [loss, program.train_op, program.input_wait, *others.values()]
    self.others = list(others)
    self.fetches: Dict[str, List[Any]] = dict(train=train)
    if gradients.add_op is not None:
      self.fetches['accumulate'] = [program.add_wait, gradients.add_op]
    self.measure: Optional[Callable[..., Any]] = None
    self._numbers = validation.numbers if validation else ()
    if validation is not None:
      measured = fetch_measured(validation.sums, validation.towers)
      self.num_measured = len(measured)
      feeds = [number for _, number in self._numbers]
      if validation.has_tower:
        self.measure = Call(session, measured, feeds=feeds)
        self.fetches['measure_and_train'] = measured + train
      else:
        switched = Call(session, measured, feeds=[validation.is_validating, *feeds])
        self.measure = functools.partial(switched, np.array(True))
    self._is_measured = False
    self._run_instead: Optional[Callable[..., Any]] = None
    # Kept, since the session takes some time to prepare another set of fetches.
    self._prepare = functools.lru_cache(maxsize=None)(functools.partial(
        self._make, lambda fetches, feeds: Call(session, fetches, feeds=feeds)))
    self.chosen = self._prepare(False)

  def find_numbers(self, num_runs: int) -> List[np.ndarray]:
    """Returns what a run that measures takes, after so many of its pass, for its draws."""
    batch, micro_batch = divmod(num_runs, self._program.plan.accumulate)
    values = dict(micro_batch=micro_batch, shift=shift_of(batch))
    return [np.array(values[name]) for name, _ in self._numbers]

  def measure_update(self, is_measured: bool) -> None:
    """Sets whether the next steps also compute `update`; the program must have a gradient norm."""
    self._is_measured = is_measured
    self._choose()

  def run_by(self, run: Optional[Callable[..., Any]]) -> None:
    """Runs the next steps by `run(session.run, fetches)`; None for `session.run` alone again."""
    self._run_instead = run
    self._choose()

  @contextlib.contextmanager
  def running_by(self, run: Callable[..., Any]) -> Iterator[None]:
    """Opens a context whose steps are run by `run(session.run, fetches)`."""
    was = self._run_instead
    self.run_by(run)
    try:
      yield
    finally:
      self.run_by(was)

  def run(self, fetches: Any) -> Any:
    """Runs other fetches of a step as the step is run."""
    run = self._run_instead
    return self._session.run(fetches) if run is None else run(self._session.run, fetches)

  def _choose(self):
    run = self._run_instead
    self.chosen = self._prepare(self._is_measured) if run is None else self._make(
        lambda fetches, feeds: lambda *numbers: run(
            functools.partial(self._run_feeding, dict(zip(feeds, numbers))), fetches),
        self._is_measured)

  def _run_feeding(self, numbers, fetches, feed_dict=None, **options):
    return self._session.run(fetches, {**numbers, **(feed_dict or {})}, **options)

  def _make(self, make, is_measured) -> Dict[str, Any]:
    """Returns the runs by name, each made of its fetches, and of the tensors that it feeds."""
    made = {}
    for name, fetches in self.fetches.items():
      feeds = [number for _, number in self._numbers if name == 'measure_and_train']
      updates = is_measured and name != 'accumulate'
      made[name] = self._with_update(make, fetches, feeds) if updates else make(fetches, feeds)
    return made

  def _with_update(self, make, fetches, feeds):
    program, rates = self._program, self._program.learning_rates
    changing = {name: rate for name, rate in rates.items() if not isinstance(rate, float)}
    call = make([*fetches, program.gradient_norm, *changing.values(), *program.summaries], feeds)

    def run(*numbers):
      results = call(*numbers)
      norm, *found = results[len(fetches):]
      self.update = Update(float(norm), {**rates, **dict(zip(changing, map(float, found)))},
                           found[len(changing):])
      return results

    return run
