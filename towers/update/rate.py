"""The learning rate of a program: given, or the optimizer's own."""

from typing import Callable, Union

from tensorflow_v1 import tf
from towers.base.usage_error import UsageError
from towers.input.plan import Plan
from towers.placement.host import HOST
from towers.update.groups import Optimizers, Rate, by_pattern, is_function


def choose_rate(optimizer: Optimizers,
                learning_rate: Union[float, Callable[[Plan], Rate], None], plan: Plan) -> Rate:
  """Returns the learning rate, NaN where only the optimizer knows it; of several, the first's.

  A `learning_rate`, or a function from the training split's plan to it, is for optimizers that are
  functions of the rate.

  Raises:
    UsageError: no optimizer, or a rate that is given twice or not at all.
  """
  optimizers = [one.optimizer for one in by_pattern(optimizer).values()]
  if not optimizers:
    raise UsageError('optimizer is an empty dict: give an optimizer for each pattern.')
  has_function = any(map(is_function, optimizers))
  if learning_rate is None and has_function:
    raise UsageError('optimizer is a function of the learning rate, and learning_rate is not '
                     'given: give learning_rate=0.1, or an optimizer that has its rate.')
  if learning_rate is not None and not has_function:
    raise UsageError(f'learning_rate={learning_rate} has no effect on an optimizer that has its '
                     'own rate: give optimizer as a function of the rate, as `lambda rate: '
                     'tf.train.MomentumOptimizer(rate, 0.9)`, or leave learning_rate out.')
  if learning_rate is not None:
    with tf.device(HOST):
      return _as_rate(learning_rate(plan) if callable(learning_rate) else learning_rate)
  # TensorFlow's optimizers keep the rate under one of these names.
  first = optimizers[0]
  rate = getattr(first, '_learning_rate', getattr(first, '_lr', None))
  return _as_rate(float('nan') if rate is None or callable(rate) else rate)


def _as_rate(rate):
  """Returns a tensor or variable as it is, and any number as a float."""
  return rate if hasattr(rate, 'dtype') and hasattr(rate, 'op') else float(rate)
