"""Names of TensorFlow's types, for signatures.

  def build_loss(logits: Tensor, variables: List[Variable]) -> Tensor: …

Neither target carries type hints, so a type checker takes each of these for `Any`; a reader does
not.
"""

from typing import TYPE_CHECKING, Union

from towers.tensorflow_v1.load import tf

BaseSession = tf.Session.__base__
if TYPE_CHECKING:
  SessionInterface = object  # As `Any`, it would hide what a session of ours lacks.
else:
  SessionInterface = BaseSession.__base__
Dataset = tf.data.Dataset
DType = tf.DType
Graph = tf.Graph
Operation = tf.Operation
Optimizer = tf.train.Optimizer
Session = tf.Session
Tensor = tf.Tensor
Variable = tf.Variable

Gradient = Union[tf.Tensor, tf.IndexedSlices]
"""Of one variable: dense, or sparse with the rows that a step touched."""

RUN_ERRORS = (tf.errors.OpError, UnicodeDecodeError)
"""What a session's run raises. The second is the first where an op has quoted bytes that are not
UTF-8, as of a number in a CSV file; its `object` is the message. 1.14 ends the process there."""


def is_run_error(error: Exception) -> bool:
  """Returns whether a session's run has raised one of RUN_ERRORS, and not Python's own code."""
  return not isinstance(error, UnicodeDecodeError) or b'[[{{node ' in error.object
