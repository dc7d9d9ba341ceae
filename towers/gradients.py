"""Gradients: the towers' shares summed on each variable's device, which makes them the mean over the global batch.

Every tower divided by the number of examples in the global batch already (see `tower`), so there is nothing left to
divide here, and nothing to weight.
"""

from typing import Any, List, NamedTuple, Sequence

from tensorflow_v1 import tf
from towers.inputs import HOST
from towers.tower import Tower


class Averaged(NamedTuple):
  """What the towers found together.

  Attributes:
    towers: that it came from.
    loss: the mean loss over the global batch, a scalar.
    gradients: (gradient, variable) of all variables that the loss depends on.
    without_gradient: the trainable variables that it does not depend on, in any tower.
  """
  towers: Sequence[Tower]
  loss: Any
  gradients: List[Any]
  without_gradient: List[Any]


def average_gradients(towers: Sequence[Tower]) -> Averaged:
  """Sums the towers' losses and gradients; sparse gradients stay sparse."""
  with tf.name_scope('average'):
    gradients, without_gradient = [], []
    for variable, shares in zip(tf.trainable_variables(), zip(*[tower.gradients for tower in towers])):
      # A tower whose loss does not depend on a variable has a gradient of zero.
      found = [share for share in shares if share is not None]
      if not found:
        without_gradient.append(variable)
        continue
      with tf.device(variable.device):
        gradients.append((_sum_shares(found), variable))
    with tf.device(HOST):
      loss = add_all([tower.loss for tower in towers])
  return Averaged(towers, loss, gradients, without_gradient)


def add_all(tensors: Sequence[Any]) -> Any:
  """Returns the sum of tensors, without an op for one alone."""
  return tensors[0] if len(tensors) == 1 else tf.add_n(list(tensors))


def _sum_shares(shares):
  if len(shares) == 1:
    return shares[0]
  if all(isinstance(share, tf.IndexedSlices) for share in shares):
    # The optimizer adds up rows with the same index; adding tensors here would make the gradient dense.
    return tf.IndexedSlices(tf.concat([share.values for share in shares], 0),
                            tf.concat([share.indices for share in shares], 0), shares[0].dense_shape)
  return tf.add_n([tf.convert_to_tensor(share) for share in shares])
