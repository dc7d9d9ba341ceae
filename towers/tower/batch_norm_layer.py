"""Batch normalisation whose statistics somebody outside may complete (Ioffe & Szegedy 2015,
arXiv:1502.03167).

The layer knows only its own batch. The moments that move its averages pass through `tf.identity`
ops that stand in a collection; whoever builds several copies of a model may feed these identities
with what all copies found together. Left alone, the layer is ordinary batch normalisation of one
batch, by one fused kernel:

  x ──► fused kernel ──► normalised
             └──► identities (BATCH_MOMENTS) ──► moving averages (UPDATE_OPS)

Under `joined_sums()` the copies may even normalise by each other's batches. No fused kernel can be
opened for that, so the layer is made of sums, which pass through identities as well, and so do
their gradients:

  x ──► sums ──► identity (BATCH_SUMS) ──► moments ──► normalise
                 └ its gradient: identity     └──► identities (BATCH_MOMENTS) ──► moving averages
                   (BATCH_SUM_GRADIENTS)                                          (UPDATE_OPS)
"""

import contextlib
from typing import Any, Iterator, List, Tuple

from tensorflow_v1 import tf

BATCH_SUMS = 'batch_norm_sums'
BATCH_SUM_GRADIENTS = 'batch_norm_sum_gradients'
BATCH_MOMENTS = 'batch_norm_moments'

# cuDNN takes no smaller one.
_MIN_EPSILON = 1.001e-5
_joined: List[bool] = [False]


@contextlib.contextmanager
def joined_sums() -> Iterator[None]:
  """Layers that are made within leave their sums in BATCH_SUMS, to be joined with those of other
  copies.
  """
  _joined.append(True)
  try:
    yield
  finally:
    _joined.pop()


@tf.RegisterGradient('BatchNormSums')
def _register_gradient(op, gradient):
  with tf.name_scope(op.name + '_gradient/'):
    gradient = tf.identity(gradient)
  tf.add_to_collection(BATCH_SUM_GRADIENTS, gradient)
  return gradient


def batch_norm(x: Any, is_training: Any, *, name: str, momentum: float = 0.9, epsilon: float = 1e-5,
               scale: bool = True, data_format: str = 'NHWC') -> Any:
  """Normalises every channel over the batch and all positions.

  Args:
    x: float `[batch, height, width, channels]`, with 'NCHW' `[batch, channels, height, width]`, or
      `[batch, channels]`; `channels` is known.
    is_training: a Python bool or a scalar bool tensor: the batch's own moments, or the moving
      averages.
    name: the variable scope: makes `name/offset`, `name/scale`, `name/moving_mean` and
      `name/moving_variance`, each `[channels]`.
    momentum: how much of a moving average stays in a step. The updates stand in UPDATE_OPS. The
      moving variance is that of the population, estimated from the batch (with n - 1), as the
      kernels do it.
    epsilon: added to the variance; at least 1.001e-5.
    scale: whether there is a scale; leave it out before a ReLU that a layer with weights follows.
    data_format: 'NHWC' or 'NCHW'; which one a device has kernels for, the device decides.
  Returns:
    A tensor of the same shape.
  """
  # Sums, moments and what is learned are of float32, whatever x is of.
  channels = x.shape.as_list()[1 if data_format == 'NCHW' else -1]
  epsilon = max(epsilon, _MIN_EPSILON)
  with tf.variable_scope(name):
    offset = tf.get_variable('offset', [channels], tf.float32, initializer=tf.zeros_initializer())
    factor = (tf.get_variable('scale', [channels], tf.float32, initializer=tf.ones_initializer())
              if scale else tf.ones([channels]))
    moving_mean = tf.get_variable('moving_mean', [channels], tf.float32,
                                  initializer=tf.zeros_initializer(), trainable=False)
    moving_variance = tf.get_variable('moving_variance', [channels], tf.float32,
                                      initializer=tf.ones_initializer(), trainable=False)
    averages = [tf.convert_to_tensor(moving_mean), tf.convert_to_tensor(moving_variance)]
    if x.shape.ndims == 4 and not _joined[-1]:
      kernel = _Kernel(x, factor, tf.convert_to_tensor(offset), epsilon, data_format)
      if is_training is False:
        return kernel.by_averages(averages)[0]
      if is_training is True:
        y, *moments = kernel.by_batch()
      else:
        # A branch, so that the kernels know which of the two they compute: measured moments cost
        # time.
        y, *moments = tf.cond(is_training, kernel.by_batch, lambda: kernel.by_averages(averages))
    else:
      y, *moments = _normalize_by_sums(tf.cast(x, tf.float32), is_training, factor, offset,
                                       averages, epsilon, data_format)
      y = tf.cast(y, x.dtype)
    if is_training is not False:
      _move_averages([moving_mean, moving_variance], averages, moments, momentum)
    return y


def _move_averages(variables, averages, moments, momentum):
  """Adds the updates of the moving averages to UPDATE_OPS."""
  for variable, old, moment, name in zip(variables, averages, moments, ('batch_mean',
      'batch_variance')):
    moment = tf.identity(moment, name=name)
    tf.add_to_collection(BATCH_MOMENTS, moment)
    with tf.device(variable.device):
      update = variable.assign_sub((1 - momentum) * (old - moment), read_value=False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)


class _Kernel:
  """TensorFlow's fused kernel; both methods return what is normalised, mean and variance."""

  def __init__(self, x, factor, offset, epsilon, data_format):
    self._inputs = dict(x=x, scale=factor, offset=offset, epsilon=epsilon, data_format=data_format)

  def by_batch(self) -> Tuple[Any, Any, Any]:
    empty = tf.constant([], tf.float32)
    return tf.raw_ops.FusedBatchNormV3(mean=empty, variance=empty, is_training=True,
                                       **self._inputs)[:3]

  def by_averages(self, averages) -> Tuple[Any, Any, Any]:
    mean, variance = averages
    y = tf.raw_ops.FusedBatchNormV3(mean=mean, variance=variance, is_training=False,
                                    **self._inputs)[0]
    return y, mean, variance


def _normalize_by_sums(x, is_training, factor, offset, averages, epsilon, data_format):
  """Normalises by moments that come from sums over the batch; returns what is normalised, mean and
  variance.

  Sums of differences from the moving mean, which is near: sums of squares alone would cancel to
  nothing where a mean is large. One vector holds all sums, so that one exchange between copies is
  enough.
  """
  is_nchw = data_format == 'NCHW' and x.shape.ndims == 4

  def per_channel(vector):
    return tf.reshape(vector, [-1, 1, 1]) if is_nchw else vector

  def normalize(mean, variance):
    return tf.nn.batch_normalization(x, per_channel(mean), per_channel(variance),
                                     per_channel(offset), per_channel(factor), epsilon)

  if is_training is False:
    return [normalize(*averages), *averages]
  channels = averages[0].shape.as_list()[0]
  axes = [0, 2, 3] if is_nchw else list(range(x.shape.ndims - 1))
  differences = x - per_channel(averages[0])
  count = tf.cast(tf.size(x) // channels, x.dtype)
  sums = tf.concat(
      [tf.reduce_sum(differences, axes),
       tf.reduce_sum(tf.square(differences), axes), [count]], 0)
  with tf.get_default_graph().gradient_override_map({'Identity': 'BatchNormSums'}):
    sums = tf.identity(sums, name='sums')
  tf.add_to_collection(BATCH_SUMS, sums)
  count = sums[2 * channels]
  mean_difference = sums[:channels] / count
  mean = averages[0] + mean_difference
  variance = tf.maximum(sums[channels:2 * channels] / count - tf.square(mean_difference), 0.0)
  moments = [mean, variance * (count / tf.maximum(count - 1, 1))]
  if is_training is not True:
    mean = tf.where(is_training, mean, averages[0])
    variance = tf.where(is_training, variance, averages[1])
  return [normalize(mean, variance), *moments]
