"""Batch normalisation whose statistics somebody outside may complete (Ioffe & Szegedy 2015, arXiv:1502.03167).

The layer knows only its own batch. What it sums over that batch, and the moments that move its averages, pass through
`tf.identity` ops that stand in collections; whoever builds several copies of a model may feed those identities with
what all copies found together. Left alone, the layer is ordinary batch normalisation of one batch.

  x ──► sums ──► identity (BATCH_SUMS) ──► moments ──► normalise
                 └ its gradient: identity     └──► identity (BATCH_MOMENTS) ──► moving averages
                   (BATCH_SUM_GRADIENTS)                                        (UPDATE_OPS)
"""

from typing import Any

from tensorflow_v1 import tf

BATCH_SUMS = 'batch_norm_sums'
BATCH_SUM_GRADIENTS = 'batch_norm_sum_gradients'
BATCH_MOMENTS = 'batch_norm_moments'


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
    x: float `[batch, ..., channels]`, or with 'NCHW' `[batch, channels, height, width]`; `channels` is known.
    is_training: a Python bool or a scalar bool tensor: the batch's own moments, or the moving averages.
    name: the variable scope: makes `name/offset`, `name/scale`, `name/moving_mean` and `name/moving_variance`, each
      `[channels]`.
    momentum: how much of a moving average stays in a step. The updates stand in UPDATE_OPS.
    epsilon: added to the variance.
    scale: whether there is a scale; leave it out before a ReLU that a layer with weights follows.
    data_format: 'NHWC' or 'NCHW'.
  Returns:
    A tensor of the same shape.
  """
  channels = x.shape.as_list()[1 if data_format == 'NCHW' else -1]

  def normalize(mean, variance):
    vectors = [mean, variance, offset, factor]
    if data_format == 'NCHW':
      vectors = [vector if vector is None else tf.reshape(vector, [-1, 1, 1]) for vector in vectors]
    return tf.nn.batch_normalization(x, *vectors, variance_epsilon=epsilon)

  with tf.variable_scope(name):
    offset = tf.get_variable('offset', [channels], initializer=tf.zeros_initializer())
    factor = tf.get_variable('scale', [channels], initializer=tf.ones_initializer()) if scale else None
    moving_mean = tf.get_variable('moving_mean', [channels], initializer=tf.zeros_initializer(), trainable=False)
    moving_variance = tf.get_variable('moving_variance', [channels], initializer=tf.ones_initializer(),
                                      trainable=False)
    old_mean, old_variance = moving_mean.read_value(), moving_variance.read_value()
    if is_training is False:
      return normalize(old_mean, old_variance)

    mean, variance = _batch_moments(x, shift=old_mean, channels=channels, data_format=data_format)
    moments = tf.identity(tf.stack([mean, variance]), name='moments')
    tf.add_to_collection(BATCH_MOMENTS, moments)
    for moving, old, new in ((moving_mean, old_mean, moments[0]), (moving_variance, old_variance, moments[1])):
      with tf.device(moving.device):
        update = moving.assign_sub((1 - momentum) * (old - new), read_value=False)
      tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    if is_training is not True:
      mean = tf.where(is_training, mean, old_mean)
      variance = tf.where(is_training, variance, old_variance)
    return normalize(mean, variance)


def _batch_moments(x, shift, channels, data_format):
  """Returns mean and (biased) variance of each channel.

  Sums of differences from the moving mean, which is near: sums of squares alone would cancel to nothing where a mean is
  large. One vector holds all sums, so that one exchange between copies is enough.
  """
  axes = [0, 2, 3] if data_format == 'NCHW' else list(range(x.shape.ndims - 1))
  differences = x - tf.stop_gradient(tf.reshape(shift, [-1, 1, 1]) if data_format == 'NCHW' else shift)
  count = tf.cast(tf.size(x) // channels, x.dtype)
  sums = tf.concat([tf.reduce_sum(differences, axes), tf.reduce_sum(tf.square(differences), axes), [count]], 0)
  with tf.get_default_graph().gradient_override_map({'Identity': 'BatchNormSums'}):
    sums = tf.identity(sums, name='sums')
  tf.add_to_collection(BATCH_SUMS, sums)
  count = sums[2 * channels]
  mean_difference = sums[:channels] / count
  variance = tf.maximum(sums[channels:2 * channels] / count - tf.square(mean_difference), 0.0)
  return shift + mean_difference, variance
