"""Precision: towers that compute in half precision, on weights, sums and updates in float32.

  batch ─► half ─► model ─► loss ─► float32 ─► × scale ─► gradients ─► average ─► ÷ scale ─► guard,
  clip, apply
                     ▲                                       │
  float32 weight ─► half                              float32, by the same cast backwards

What `tf.get_variable` gives inside of a model is the value of a float32 variable in half precision.
Gradients too small for float16 would be zero; so the loss is scaled up for the backward pass, by a
power of two, which changes no other bit. Where that makes gradients too large, nothing is updated
in any tower and the scale is halved; after many good steps it is doubled (Micikevicius et al. 2018,
arXiv:1710.03740).
"""

from typing import Any, Callable, NamedTuple, Optional, Sequence

from tensorflow_v1 import get_compute_capabilities, tf
from towers.base.usage_error import UsageError
from towers.placement.host import HOST

PRECISIONS = ('float32', 'mixed')
LARGEST_HALF_SCALE = 2.0 ** 15  # float16 has no larger power of two.
_FIRST_SCALE = 2.0 ** 15
_LARGEST_SCALE = 2.0 ** 24
_GOOD_STEPS = 2000  # After so many in a row the scale is doubled.
_BFLOAT16_SINCE = (8, 0)  # Ampere.


class LossScale(NamedTuple):
  """What the loss is multiplied by.

  Attributes:
    value: a scalar float32 tensor on the host, as it is in a run.
    inverse: 1 / value.
    variable: holds it, float32; None where it is fixed.
    good_steps: int64, counts updates since it was changed last; None where it is fixed.
  """
  value: Any
  inverse: Any
  variable: Any = None
  good_steps: Any = None


class Precision(NamedTuple):
  """How towers compute.

  Attributes:
    dtype: of a model's inputs, weights and values: float16 or bfloat16.
    loss_scale: of the backward pass.
  """
  dtype: Any
  loss_scale: LossScale


def build_precision(kind: str, *, devices: Sequence[str],
                    loss_scale: Optional[float] = None) -> Optional[Precision]:
  """Returns what makes towers compute in half precision, or None where they compute in float32.

  Args:
    kind: 'float32' or 'mixed': bfloat16 if all devices are GPUs that have it, else float16.
    devices: of the towers.
    loss_scale: fixed; None for one that adapts, or for 1 with bfloat16, whose range is that of
      float32.

  Raises:
    UsageError: an unknown kind.
  """
  if kind not in PRECISIONS:
    raise UsageError(f"precision is {kind!r}: choose one of {', '.join(PRECISIONS)}.")
  if kind == 'float32':
    return None
  dtype = choose_half(devices)
  if loss_scale is None and dtype == tf.bfloat16:
    loss_scale = 1.0
  with tf.device(HOST), tf.name_scope('loss_scale/'):
    if loss_scale is not None:
      return Precision(
          dtype,
          LossScale(tf.constant(loss_scale, tf.float32), tf.constant(1 / loss_scale, tf.float32)))
    variable, good_steps = [
        tf.Variable(value, name=name, trainable=False, use_resource=True)
        for value, name in ((tf.constant(_FIRST_SCALE), 'value'), (tf.zeros([], tf.int64),
            'good_steps'))]
    # Read once: what is divided by must be what was multiplied by.
    value = variable.read_value()
    return Precision(dtype, LossScale(value, 1 / value, variable, good_steps))


def choose_half(devices: Sequence[str]) -> Any:
  """Returns bfloat16 if all devices are GPUs that compute in it, else float16."""
  if all('GPU' in device for device in devices):
    capabilities = get_compute_capabilities()
    if capabilities and all(capability >= _BFLOAT16_SINCE for capability in capabilities):
      return tf.bfloat16
  return tf.float16


def cast_inputs(tensors: Any, dtype: Any) -> Any:
  """Returns a batch's structure with all float32 tensors cast."""
  return tf.nest.map_structure(
      lambda tensor: tf.cast(tensor, dtype) if tensor.dtype == tf.float32 else tensor, tensors)


def float32_getter(scope: str) -> Callable[..., Any]:
  """Returns a custom getter that gives a float32 variable's value in the dtype that was asked for.

  What is not trained, as a moving average, is of float32 to its user too, who updates it.

  Args:
    scope: the name scope of the tower, which the cast is a part of: its variable may stand outside.
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


def build_growth(loss_scale: LossScale) -> Any:
  """Builds what a step that was done adds to the state of the loss scale: an op, to be run after
  the update.
  """
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
