"""MetricSamples: measures every n-th step of a run, for its curves.

  step 6 ─► step 7 … step 11 ─► step 12                     `summary_every`: 6 steps
  measured                      measured ─► Sample(step=12, loss, learning_rate, gradient_norm, …)
                                         ─► summaries, report

Whether a step is measured depends on its number alone, so a resumed run measures the same steps as
an uninterrupted one. Only these steps compute the gradient norm, and nothing is fetched between
two steps.
"""

from typing import Callable, Dict, NamedTuple, Optional, Sequence

from towers.input.plan import Plan
from towers.training.reporting.progress import Callback, Pace
from towers.training.settings.timetable import Interval
from towers.training.stepping.steps import Steps
from towers.whole import find_numbers


class Sample(NamedTuple):
  """A measured step.

  Attributes:
    step: weight updates so far, this one included.
    loss: the mean over its global batch, before the update.
    learning_rate: of its update.
    gradient_norm: the global norm of its averaged gradients, before they are clipped.
    examples_per_second: of training since the previous sample; None if no step was timed since.
    input_wait: the share of that time in which the towers waited for input, 0 to 1; None likewise.
  """
  step: int
  loss: float
  learning_rate: float
  gradient_norm: float
  examples_per_second: Optional[float] = None
  input_wait: Optional[float] = None


class MetricWriter(Callback):
  """Where measured steps go, such as TensorBoard's curves; a base class."""

  def sample(self, sample: Sample, metrics: Dict[str, float], summaries: Sequence[bytes]) -> None:
    """Takes a measured step; `metrics` are means of the model's since the sample before, by name.

    `summaries` are serialized `tf.Summary`s of the model.
    """

  def validated(self, *, step: int, metrics: Dict[str, float]) -> None:
    """Takes the means over the validation split, unless an earlier run has written them."""


class MetricSamples(Callback):
  """Measures every n-th step, and gives what is new to the metric writers."""

  def __init__(self, steps: Steps, *, plan: Plan, every: Interval, first_step: int,
               metric_writers: Sequence[MetricWriter],
               has_validated: Callable[[int], bool] = lambda step: False):
    """Takes the steps of a program with a gradient norm; earlier runs have measured `first_step`.

    `has_validated` says whether an earlier run has written the validation of a step.
    """
    self._steps = steps
    self._plan = plan
    self._every = every
    self._metric_writers = metric_writers
    self._has_validated = has_validated
    self._last_step = first_step
    self._mark: Optional[Pace] = None  # Of the last sample.
    self._metrics_mark = steps.metrics.mark()
    self.rewind(first_step)

  def step(self, *, step: int, loss: float, train_seconds: float) -> None:
    """Samples the step if it is due; `train_seconds` leaves out pauses and the first step."""
    if step <= self._last_step:  # It updated nothing.
      return
    self._last_step = step
    pace = Pace(step, train_seconds, self._steps.metrics.input_wait_seconds)
    self._mark = self._mark or pace
    if self._every.is_due(step):
      sample = self._build_sample(pace, loss)
      metrics = self._steps.metrics.since(self._metrics_mark)
      metrics.pop('loss', None)  # The sample has that of its own step.
      self._metrics_mark = self._steps.metrics.mark()
      update = self._steps.update
      for metric_writer in self._metric_writers:
        metric_writer.sample(sample, metrics, update.summaries if update else ())
      self._mark = pace
      self._steps.measure(self._every.is_due(step + 1))
    elif self._every.is_due(step + 1):
      self._steps.measure(True)

  def validation(self, *, step: int, metrics: Dict[str, float]) -> None:
    """Writes the means over the validation split, unless an earlier run has."""
    if not self._has_validated(step):
      for metric_writer in self._metric_writers:
        metric_writer.validated(step=step, metrics=find_numbers(metrics))

  def rewind(self, step: int) -> None:
    """Continues from an earlier step."""
    self._last_step = step
    self._mark = None
    self._metrics_mark = self._steps.metrics.mark()
    self._steps.measure(self._every.is_due(step + 1))

  def _build_sample(self, pace, loss):
    update, nan = self._steps.update, float('nan')
    return Sample(
        step=pace.step, loss=float(loss), learning_rate=update.learning_rate if update else nan,
        gradient_norm=update.gradient_norm if update else nan,
        examples_per_second=pace.speed_since(self._mark, self._plan),
        input_wait=pace.wait_since(self._mark))
