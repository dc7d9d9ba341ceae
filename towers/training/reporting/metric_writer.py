"""MetricWriter: where measured steps go: TensorBoard's curves, a report, or your own."""

from typing import Any, Dict, NamedTuple, Optional, Sequence


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


class MetricWriter:
  """A base class whose methods do nothing."""

  def sample(self, sample: Sample) -> None:
    """Takes a measured step."""

  def of_model(self, step: int, metrics: Dict[str, float], summaries: Sequence[bytes]) -> None:
    """Takes what the model itself measures, with the sample of the step.

    Args:
      step: of the sample.
      metrics: means over the training steps since the sample before, by name.
      summaries: serialized `tf.Summary`s of the step.
    """

  def validation(self, step: int, metrics: Dict[str, float]) -> None:
    """Takes the means over the validation split, for the weights after `step` updates."""

  def rewind(self, step: int) -> None:
    """Forgets everything after `step`, which the run will repeat."""

  def warning(self, text: str) -> None:
    """Takes a warning to the user; from any thread."""

  def finish(self, result: Dict[str, Any]) -> None:
    """Takes the result of a complete run."""

  def close(self) -> None:
    """Closes the writer, however the run ended."""
