"""Weight decay of a program: a share of each matrix of weights, in its gradient.

That of an optimizer with one of its own, as of `AdamW`, is no gradient.
"""

from towers.reduce.gradients import ReducedGradients
from towers.tensorflow_v1 import tf


def decay_all(reduced: ReducedGradients, weight_decay: float) -> ReducedGradients:
  """Returns `reduced` with the decay in the gradients of weights."""
  if not weight_decay:
    return reduced
  return reduced.map_gradients(
      lambda gradient, variable: gradient if variable.shape.ndims < 2 else
      tf.convert_to_tensor(gradient) + weight_decay * variable.read_value())
