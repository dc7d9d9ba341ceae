"""Precision: towers that compute in half precision, with weights, sums and updates in float32.

  batch ─► half ─► model ─► loss ─► float32 ─► × scale ─► gradients ─► average ─► ÷ scale ─► apply
                     ▲                                        │
  float32 weight ─► half                         float32, by the same cast backwards

Inside of a model `tf.get_variable` returns the value of a float32 variable in half precision.
Gradients too small for float16 would be zero, so the loss is scaled up for the backward pass, by a
power of two, which changes no other bit. If that makes gradients too large, no tower updates
anything and the scale is halved; after many good steps it is doubled (Micikevicius et al. 2018,
arXiv:1710.03740).
"""

import logging
from typing import Any, Callable, NamedTuple, Optional, Sequence

from towers.base.usage_error import check_choice
from towers.placement.host import HOST, is_gpu
from towers.tensorflow_v1 import DType, Operation, Tensor, tf
from towers.tensorflow_v1.devices import get_compute_capabilities

PRECISIONS = ('float32', 'mixed')
LARGEST_HALF_SCALE = 2.0 ** 15  # float16 has no larger power of two.
_FIRST_SCALE = 2.0 ** 15
_LARGEST_SCALE = 2.0 ** 24
_GOOD_STEPS = 2000  # After so many in a row the scale is doubled.
_BFLOAT16_SINCE = (8, 0)  # Ampere.


class LossScale(NamedTuple):
  """The factor of the loss in the backward pass, a scalar float32 tensor on the host, and 1 by it.

  Unless fixed, `variable` holds the value, and `good_steps` counts updates since it changed.
  """
  value: Tensor
  inverse: Tensor
  variable: Any = None
  good_steps: Any = None


class Precision(NamedTuple):
  """How towers compute: the dtype of a model's inputs, weights and values is a half precision."""
  dtype: DType
  loss_scale: LossScale


def build_precision(kind: str, *, devices: Sequence[str],
                    loss_scale: Optional[float] = None) -> Optional[Precision]:
  """Returns the half precision of towers, or None for float32.

  Args:
    kind: 'float32' or 'mixed': bfloat16 if all devices are GPUs that have it, else float16.
    devices: of the towers.
    loss_scale: fixed; None for one that adapts, or for 1 with bfloat16, whose range is float32's.

  Raises:
    UsageError: an unknown kind.
  """
  check_choice('precision', kind, PRECISIONS)
  if kind == 'float32':
    return None
  capabilities = get_compute_capabilities() if all(map(is_gpu, devices)) else ()
  is_new = capabilities and min(capabilities) >= _BFLOAT16_SINCE
  dtype = tf.bfloat16 if is_new else tf.float16
  if loss_scale is None and dtype == tf.bfloat16:
    loss_scale = 1.0
  with tf.device(HOST), tf.name_scope('loss_scale/'):
    if loss_scale is not None:
      fixed = [tf.constant(value, tf.float32) for value in (loss_scale, 1 / loss_scale)]
      return Precision(dtype, LossScale(*fixed))
    first = [(tf.constant(_FIRST_SCALE), 'value'), (tf.zeros([], tf.int64), 'good_steps')]
    variable, good_steps = [
        tf.Variable(value, name=name, trainable=False, use_resource=True) for value, name in first]
    # Read once, so that all factors and divisors of a step are the same.
    value = variable.read_value()
    return Precision(dtype, LossScale(value, 1 / value, variable, good_steps))


def cast_inputs(tensors: Any, dtype: DType) -> Any:
  """Returns a batch's structure with all float32 tensors cast."""
  return tf.nest.map_structure(
      lambda tensor: tf.cast(tensor, dtype) if tensor.dtype == tf.float32 else tensor, tensors)


def warn_of_float32(scope: str, dtype: DType) -> None:
  """Warns of a tower none of whose ops computes in half precision."""
  if not any(tensor.dtype == dtype for op in tf.get_default_graph().get_operations()
             if op.name.startswith(scope) and op.type != 'Cast' for tensor in op.outputs):
    logging.getLogger('towers').warning(
        'precision=mixed rounds inputs and no more: the model computes nothing in %s. Make its '
        'weights by tf.get_variable, for those of tf.Variable and of Keras stay float32, or leave '
        'precision=mixed out.', dtype.name)


def float32_getter(scope: str) -> Callable[..., Any]:
  """Returns a custom getter that makes float32 variables and returns them cast to the wanted dtype.

  The casts are in `scope`, the tower's. An untrained variable, such as a moving average, is
  returned itself, for the model to update.
  """
  def getter(getter, name, *args, **settings):
    dtype = tf.as_dtype(settings.get('dtype') or tf.float32)
    if dtype not in (tf.float16, tf.bfloat16):
      return getter(name, *args, **settings)
    variable = getter(name, *args, **dict(settings, dtype=tf.float32))
    if settings.get('trainable') is False:
      return variable
    with tf.name_scope(f'{scope}{name}/'):
      return tf.cast(variable, dtype)

  return getter


def build_growth(loss_scale: LossScale) -> Operation:
  """Builds the op that counts a good step, or doubles the scale; to run after the update."""
  if loss_scale.variable is None:
    return tf.no_op()
  with tf.device(HOST), tf.name_scope('loss_scale/'):
    good_steps = loss_scale.good_steps.read_value() + 1
    grows = good_steps >= _GOOD_STEPS
    larger = tf.minimum(2 * loss_scale.value, _LARGEST_SCALE)
    return tf.group(
        loss_scale.variable.assign(tf.where(grows, larger, loss_scale.value), read_value=False),
        loss_scale.good_steps.assign(tf.where(grows, tf.zeros_like(good_steps), good_steps),
                                     read_value=False))
