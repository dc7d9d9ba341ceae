"""MetricWriters: who keeps what is measured of a run: the curves of TensorBoard, a report."""

from typing import Any, Dict, NamedTuple, Optional


class Sample(NamedTuple):
  """A measured step.

  Attributes:
    step: weight updates, its own included.
    loss: the mean over its global batch, before the update.
    learning_rate: of its update.
    gradient_norm: global, of its averaged gradients before they were clipped.
    examples_per_second: of training since the sample before; None where no step has been timed
      since.
    input_wait: the share of that time in which the towers waited for input, 0 to 1; None likewise.
  """
  step: int
  loss: float
  learning_rate: float
  gradient_norm: float
  examples_per_second: Optional[float] = None
  input_wait: Optional[float] = None


class MetricWriter:
  """Who keeps samples; what is not overridden does nothing."""

  def sample(self, sample: Sample) -> None:
    """Takes a measured step."""

  def validation(self, step: int, metrics: Dict[str, float]) -> None:
    """Takes the means of a pass over the validation split, for the weights after `step` updates."""

  def rewind(self, step: int) -> None:
    """Forgets what came after `step`, since it will happen again."""

  def warning(self, text: str) -> None:
    """Takes a line that warns the user; from any thread."""

  def finish(self, result: Dict[str, Any]) -> None:
    """Takes the result of a run that has come to its end."""

  def close(self) -> None:
    """Ends, whatever the run has come to."""
