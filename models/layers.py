"""Layers: the few pieces the models here are made of, on `tf.get_variable` and `tf.nn` alone.

Every weight comes from `tf.get_variable`, so that the second tower shares the first one's weights
in the same variable scope with reuse, and code outside decides where a variable lies and what it
starts from. Layers that keep their weights in objects (Keras) would quietly make new ones instead.

All layers of a model take what they must agree on from one `Layers`:

  layers = Layers(is_training, data_format)
  x = layers.max_pool(layers.conv(images, 32, 5, name='conv1'))  # conv1/weights, conv1/biases
  x = layers.dropout(dense(layers.flatten(x), 128, name='dense1', activation=tf.nn.relu), 0.5)
  logits = dense(x, num_classes, name='logits')

Weights have the same names and shapes in both data formats, and `flatten` the same order, so that a
checkpoint of one goes on with the other. A layer makes as few ops as it can: they are made once per
tower, and a deep model has hundreds of layers.
"""

import math
from typing import Any, List, NamedTuple, Optional

from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import batch_norm

# Where height and width stand in `[batch, height, width, channels]` and in `[batch, channels,
# height, width]`.
_POSITION_AXES = {'NHWC': [1, 2], 'NCHW': [2, 3]}


def he_normal(mode='fan_in'):
  """The initialiser for weights before a ReLU: variance 2 / fan_in (arXiv:1502.01852), or fan_out.

  It draws what `tf.variance_scaling_initializer` draws, but in four ops, not six.
  """
  def draw(shape, dtype=tf.float32, partition_info=None):
    *sizes, num_in, num_out = map(int, partition_info.full_shape if partition_info else shape)
    fan = tf.TensorShape(sizes).num_elements() * (num_in if mode == 'fan_in' else num_out)
    seed, seed2 = tf.get_seed(None)
    drawn = tf.raw_ops.TruncatedNormal(shape=shape, dtype=dtype, seed=seed, seed2=seed2)
    # Cut off at twice its standard deviation, a normal distribution has less than that.
    return tf.raw_ops.Mul(x=drawn, y=math.sqrt(2 / fan) / 0.87962566103423978)
  return draw


def dense(inputs, units, *, name, activation=None, initializer=None, bias=0.0):
  """A matrix product with biases: `[batch, units]` of float `[batch, features]`.

  Args:
    inputs, units: see above; `features` is known.
    name: the variable scope: makes `name/weights [features, units]` and `name/biases [units]`.
    activation: a function of a tensor, or None.
    initializer: of the weights; default: `he_normal` before a ReLU, otherwise that of
      Glorot & Bengio 2010.
    bias: what biases start from.
  """
  if initializer is None:
    initializer = he_normal() if activation is tf.nn.relu else tf.glorot_uniform_initializer()
  with tf.variable_scope(name):
    weights = tf.get_variable('weights', [inputs.shape.as_list()[-1], units],
                              initializer=initializer)
    biases = tf.get_variable('biases', [units], initializer=tf.constant_initializer(bias))
    outputs = tf.nn.bias_add(tf.matmul(inputs, weights), biases)
    return outputs if activation is None else activation(outputs)


class Layers(NamedTuple):
  """The layers of a model, and what they agree on.

  Attributes:
    is_training: a Python bool, or a scalar bool tensor where one graph both trains and validates.
    data_format: 'NHWC', or 'NCHW', which is for GPUs: 1.14 convolves in it on no CPU. Images come
      as NHWC; all that a layer takes and gives in this format is `x` below.
  """
  is_training: Any
  data_format: str = 'NHWC'

  def normalize(self, images):
    """Returns images `[batch, height, width, channels]` as x, of the dtype of weights.

    uint8 becomes [0, 1]; others are of this dtype already, and stay as the reader made them. It
    stands in the model, hence on the tower's device, since uint8 crosses to the device in a quarter
    of the bytes.

    Raises:
      TypeError: any other dtype, whose range nobody can know.
    """
    dtype = tf.get_variable_scope().dtype
    if images.dtype not in (dtype, tf.uint8):
      raise TypeError(f'images are {images.dtype.name}; models take uint8 (0-255) or {dtype.name}')
    x = images if self.data_format == 'NHWC' else tf.transpose(images, [0, 3, 1, 2])
    return x if x.dtype == dtype else tf.cast(tf.cast(x, tf.float32) * (1 / 255), dtype)

  def conv(self, x, filters, size, *, name, stride=1, padding='SAME', activation=tf.nn.relu,
           has_biases=True, initializer=None, bias=0.0):
    """A 2-D convolution to `filters` channels, by a kernel of `size` height and width.

    Args:
      name: the variable scope: makes `name/weights [size, size, channels, filters]` and
        `name/biases [filters]`.
      x, filters, size, stride, padding: see above; the channels of x are known.
      activation, initializer, bias: as of `dense`.
      has_biases: leave them out before batch normalisation, which has offsets of its own.
    """
    if initializer is None:
      initializer = (tf.glorot_uniform_initializer() if activation is None and has_biases else
                     he_normal())
    with tf.variable_scope(name):
      weights = tf.get_variable('weights', [size, size, self.count_channels(x), filters],
                                initializer=initializer)
      x = self._convolve(x, weights, stride, padding)
      if has_biases:
        biases = tf.get_variable('biases', [filters], initializer=tf.constant_initializer(bias))
        x = tf.nn.bias_add(x, biases, data_format=self.data_format)
      return x if activation is None else activation(x)

  def separable_conv(self, x, filters, size, *, name, stride=1):
    """A convolution of every channel by itself, and one over channels at every position.

    Without biases. `size` and `stride` are of the first kernel. The scope `name` has `depthwise
    [size, size, channels, 1]` and `pointwise [1, 1, channels, filters]`.
    """
    channels = self.count_channels(x)
    # Into one output of the first kernel go `size * size` values, by fan_in `channels` times that.
    initializer = he_normal('fan_out')
    with tf.variable_scope(name):
      depthwise = tf.get_variable('depthwise', [size, size, channels, 1], initializer=initializer)
      x = tf.nn.depthwise_conv2d_native(x, depthwise, strides=self._at_positions(stride),
                                        padding='SAME', data_format=self.data_format)
      pointwise = tf.get_variable('pointwise', [1, 1, channels, filters], initializer=initializer)
      return self._convolve(x, pointwise, 1, 'SAME')

  def batch_norm(self, x, *, name, momentum=0.9, epsilon=1e-5):
    """Batch normalisation with scale and offset, see `towers.tower.batch_norm.layer`."""
    return batch_norm(x, self.is_training, name=name, momentum=momentum, epsilon=epsilon,
                      data_format=self.data_format)

  def max_pool(self, x, size=2, stride: Optional[int] = None, padding='SAME'):
    """The largest value of each square of `size` pixels, every `stride` pixels (default `size`)."""
    return tf.nn.max_pool(x, self._at_positions(size), self._at_positions(stride or size), padding,
                          self.data_format)

  def average_pool(self, x, size, stride):
    """The mean of each square of `size` pixels, every `stride` pixels, without the padding."""
    return tf.nn.avg_pool(x, ksize=self._at_positions(size), strides=self._at_positions(stride),
                          padding='SAME', data_format=self.data_format)

  def mean(self, x):
    """The mean over all positions, `[batch, channels]`."""
    axes, sizes = _POSITION_AXES[self.data_format], self.count_pixels(x)
    if None in sizes:
      return tf.reduce_mean(x, axes)
    # For another number of examples in each batch, a GPU asks its host for the shapes of a mean's
    # gradient, and not for those of a pool's.
    pooled = tf.nn.avg_pool(x, self._at_positions(*sizes), self._at_positions(1), 'VALID',
                            data_format=self.data_format)
    return tf.squeeze(pooled, axes)

  def pad(self, x, *, positions=(0, 0), channels=(0, 0)):
    """Adds zeros before and after height and width, and before and after channels."""
    paddings = [(0, 0), positions, positions]
    paddings.insert(self._channel_axis, channels)
    return tf.pad(x, paddings)

  def shift(self, x):
    """Moves the image up and left by a pixel: cuts off the first row and column, and adds zeros."""
    begin = [0, 1, 1]
    begin.insert(self._channel_axis, 0)
    return tf.slice(self.pad(x, positions=(0, 1)), begin, [-1] * 4)

  def concat(self, parts: List[Any]):
    """Joins channels."""
    return tf.concat(parts, self._channel_axis)

  def count_channels(self, x) -> int:
    """Returns the number of channels."""
    return x.shape.as_list()[self._channel_axis]

  def count_pixels(self, x) -> List[int]:
    """Returns [height, width]."""
    shape = x.shape.as_list()
    return [shape[axis] for axis in _POSITION_AXES[self.data_format]]

  def flatten(self, x):
    """Flattens x to `[batch, features]` in the order of NHWC; only the batch may be unknown."""
    if self.data_format == 'NCHW':
      x = tf.transpose(x, [0, 2, 3, 1])
    return tf.reshape(x, [-1, x.shape[1:].num_elements()])

  def dropout(self, x, rate):
    """Zeroes a share in [0, 1) of the features while training and scales up the rest (Srivastava et
    al. 2014); `x` stays as it is, to the bit, when not training.
    """
    if isinstance(self.is_training, bool):
      return tf.nn.dropout(x, rate=rate) if self.is_training else x
    return tf.nn.dropout(x, rate=tf.cast(self.is_training, x.dtype) * rate)

  def drop_path(self, x, rate):
    """As `dropout`, of examples, of what is added to other paths (Larsson et al. 2017,
    arXiv:1605.07648); `rate` may be a scalar tensor.
    """
    if self.is_training is False:
      return x
    keep = 1 - (rate if self.is_training is True else tf.cast(self.is_training, tf.float32) * rate)
    return x / tf.cast(keep, x.dtype) * tf.cast(
        tf.floor(tf.random.uniform([tf.shape(x)[0], 1, 1, 1]) + keep), x.dtype)

  @property
  def _channel_axis(self):
    return 3 if self.data_format == 'NHWC' else 1

  def _at_positions(self, height, width=None):
    """Returns kernel sizes or strides, `[4]`, for height and width, by default the same."""
    positions = [height, height if width is None else width]
    return [1, *positions, 1] if self.data_format == 'NHWC' else [1, 1, *positions]

  def _convolve(self, x, weights, stride, padding):
    return tf.nn.conv2d(x, weights, strides=self._at_positions(stride), padding=padding,
                        data_format=self.data_format)
