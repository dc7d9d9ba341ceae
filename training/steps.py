"""Steps: what one call of the session does, and nothing else around it.

Three callables cover a run, each taking batches out of the staging areas and putting the next ones in:

  train                  loss, update, put train
  train + validate       the same, and the sums of the validation tower, put validation   (validation on its own tower)
  validate               sums with is_validating fed, put validation                       (validation by the switch)

`Session.make_callable` fixes fetches and feeds once; a plain `Session.run` would resolve them again in every step.
"""

from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np

from towers import Averaged, Feed, Validation


class Program(NamedTuple):
  """The graph, from its feeds to the update: what a loop runs, and what a reader may want to look at.

  Attributes:
    train: the feed of the training split.
    averaged: the towers, and their mean loss and gradients over the global batch.
    learning_rate: of the next step, a scalar tensor or a float.
    train_op: updates all weights once.
    validation: what a run on validation batches fetches, or None.
    input_wait: seconds that a run with `train_op` waited for input, a scalar tensor.
    add_wait: with accumulation, the same of a run with `averaged.add_op`.
  """
  train: Feed
  averaged: Averaged
  learning_rate: Any
  train_op: Any
  validation: Optional[Validation] = None
  input_wait: Any = None
  add_wait: Any = None


class ValidationPass:
  """One pass over the validation split, summed up batch by batch."""

  def __init__(self, *, names: List[str], num_steps: int, step: int):
    """Begins a pass of `num_steps` runs over the metrics `names`, for the weights after `step` updates."""
    self.step = step
    self._names = names
    self._steps_left = num_steps
    self._sums = np.zeros(len(names) + 1, np.float64)

  def add(self, sums: np.ndarray) -> None:
    """Adds a run's sums, `[len(names) + 1]` with the number of examples last."""
    self._sums += sums
    self._steps_left -= 1

  @property
  def is_complete(self) -> bool:
    """Whether every example of the split has been measured."""
    return self._steps_left == 0

  @property
  def num_examples(self) -> int:
    """The number of examples measured so far."""
    return int(self._sums[-1])

  def means(self) -> Dict[str, float]:
    """Returns each metric's mean over the examples measured so far."""
    return {name: float(total / self._sums[-1]) for name, total in zip(self._names, self._sums)}


class Steps:
  """A program in a session, step by step."""

  def __init__(self, session: Any, program: Program):
    """Prepares the callables; nothing runs yet."""
    self._session = session
    self._program = program
    self._validation = program.validation
    self.input_wait_seconds = 0.0  # That the training steps so far have waited for input.
    train = [program.averaged.loss, program.input_wait, program.train_op] + program.train.put_ops
    self._train = session.make_callable(train)
    if program.averaged.add_op is not None:
      self._accumulate = session.make_callable([program.add_wait, program.averaged.add_op] + program.train.put_ops)
    self._plan = program.train.inputs.plan
    self._step = 0
    if self._validation is not None:
      measure = [self._validation.sums] + self._validation.feed.put_ops
      if self.has_validation_tower:
        self._measure = session.make_callable(measure)
        self._measure_and_train = session.make_callable(measure[:1] + train + measure[1:])
      else:
        switched = session.make_callable(measure, feed_list=[self._validation.is_validating])
        self._measure = lambda: switched(True)

  @property
  def can_validate(self) -> bool:
    """Whether there is a validation split to measure."""
    return self._validation is not None

  @property
  def has_validation_tower(self) -> bool:
    """Whether a tower of its own can measure while the others train."""
    return self._validation is not None and self._validation.is_validating is None

  def start(self, step: int) -> None:
    """Starts all iterators, the training split at `step`, and fills the staging areas; updates no variable."""
    self._step = step
    self._program.train.start(self._session, step=step)
    if self._validation is not None:
      self._validation.feed.start(self._session)

  def train(self) -> float:
    """Updates the weights once; returns the mean loss over the global batch before the update."""
    self._begin_step()
    loss, waited = self._train()[:2]
    self.input_wait_seconds += waited
    return loss

  def begin_pass(self, step: int) -> ValidationPass:
    """Begins a pass over the validation split for the weights as they are, after `step` updates."""
    assert self._validation is not None, 'the program has no validation'
    if self._validation.snapshot_op is not None:
      self._session.run(self._validation.snapshot_op)
    return ValidationPass(names=self._validation.names, num_steps=self._validation.feed.inputs.plan.steps_per_epoch,
                          step=step)

  def train_and_validate(self, validation_pass: ValidationPass) -> float:
    """Like `train`, while the validation tower measures the next batch of the pass in the same run."""
    self._begin_step()
    sums, loss, waited = self._measure_and_train()[:3]
    self.input_wait_seconds += waited
    validation_pass.add(sums)
    return loss

  def _begin_step(self):
    """Runs all but the last run of a step whose gradients are accumulated."""
    for _ in range(self._plan.num_runs(self._step) - 1):
      self.input_wait_seconds += self._accumulate()[0]
    self._step += 1

  def validate(self, validation_pass: ValidationPass) -> None:
    """Measures all batches that are left of the pass, without training."""
    while not validation_pass.is_complete:
      validation_pass.add(self._measure()[0])

  def learning_rate(self) -> float:
    """Returns the rate of the next update."""
    rate = self._program.learning_rate
    return rate if isinstance(rate, float) else float(self._session.run(rate))
