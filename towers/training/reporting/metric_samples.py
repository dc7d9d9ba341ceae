"""MetricSamples: measures every n-th step of a run, for its curves.

  step 6 ─► step 7 … step 11 ─► step 12                     `summary_every`: 6 steps
  measured                      measured ─► loss, learning_rate, gradient_norm, … of step 12
                                         ─► summaries, report

Whether a step is measured depends on its number alone, so a resumed run measures the same ones.
Only these steps compute the gradient norm, and nothing is fetched between two steps.
"""

import math
from typing import Any, Callable, Dict, Optional, Sequence

from towers.session.calls import Update
from towers.session.session import Session
from towers.settings.timetable import Interval
from towers.training.callbacks import Callback
from towers.training.reporting.progress import Pace
from towers.whole import find_numbers


class MetricWriter(Callback):
  """Where measured steps go, such as TensorBoard's curves; a base class."""

  def sample(self, step: int, values: Dict[str, Optional[float]], metrics: Dict[str, float],
             summaries: Sequence[bytes]) -> None:
    """Takes a measured step, by name.

    Args:
      step: weight updates so far, this one included.
      values: its loss before the update, learning_rate, of several groups one for each, and
        gradient_norm before clipping; since the sample before, examples_per_second and input_wait,
        the share of that time in which towers waited for input, 0 to 1: both None if no step was
        timed.
      metrics: means of the model's since the sample before.
      summaries: serialized `tf.Summary`s of the model.
    """

  def validated(self, *, step: int, metrics: Dict[str, float]) -> None:
    """Takes the means over the validation split, unless an earlier run has written them."""


class MetricSamples(Callback):
  """Measures every n-th step, and gives what is new to the metric writers."""

  def __init__(self, session: Session, *, every: Interval, metric_writers: Sequence[MetricWriter],
               has_validated: Callable[[int], bool]):
    """Takes the session of a program with a gradient norm; earlier runs have measured those done.

    `has_validated` says whether an earlier run has written the validation of a step.
    """
    self._session, self._every = session, every
    self._metric_writers, self._has_validated = metric_writers, has_validated
    self._mark: Optional[Pace] = None  # Of the last sample.
    self._go_on(session.step)

  def on_step(self, run: Any) -> None:
    """Samples the step if it is due."""
    is_due, is_next_due = self._every.is_due(run.step), self._every.is_due(run.step + 1)
    if is_due or self._mark is None:  # Not after every step, see `Progress.on_step`.
      pace = Pace(run.step, run.train_seconds, self._session.training_metrics.input_wait_seconds)
      self._mark = self._mark or pace
      if is_due:
        self._sample(pace, run.loss)
    if is_due or is_next_due:
      self._session.calls.measure_update(is_next_due)

  def on_validation(self, run: Any) -> None:
    """Writes the means over the validation split, unless an earlier run has."""
    if not self._has_validated(run.validation_step):
      for metric_writer in self._metric_writers:
        metric_writer.validated(step=run.validation_step, metrics=find_numbers(run.validation))

  def on_rewind(self, run: Any) -> None:
    """Continues from an earlier step."""
    self._go_on(run.step)

  def _go_on(self, step):
    self._mark = None
    self._metrics_mark = self._session.training_metrics.mark()
    self._session.calls.measure_update(self._every.is_due(step + 1))

  def _sample(self, pace, loss):
    session = self._session
    update = session.calls.update or Update(math.nan, {})
    values = dict(
        loss=loss, **update.learning_rates, gradient_norm=update.gradient_norm,
        examples_per_second=pace.speed_since(self._mark, session.plan),
        input_wait=pace.wait_since(self._mark))
    metrics = session.training_metrics.since(self._metrics_mark)
    metrics.pop('loss', None)  # The sample has that of its own step.
    self._mark, self._metrics_mark = pace, session.training_metrics.mark()
    for metric_writer in self._metric_writers:
      metric_writer.sample(pace.step, values, metrics, update.summaries)
