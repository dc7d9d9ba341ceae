"""Layers: the few pieces the models here are made of, on `tf.get_variable` and `tf.nn` alone.

Every weight comes from `tf.get_variable`, so that whoever builds the second tower shares the first one's weights by
opening the same variable scope with reuse, and decides from outside where a variable lies and what it starts from.
Layers that keep their weights in objects (Keras) would quietly make new ones instead.

  x = normalize(images)
  x = max_pool(conv(x, 32, 5, name='conv1'))     # conv1/weights, conv1/biases
  x = dropout(dense(flatten(x), 128, name='dense1', activation=tf.nn.relu), 0.5, is_training)
  logits = dense(x, num_classes, name='logits')
"""

from tensorflow_v1 import tf


def he_normal():
  """The initialiser for weights before a ReLU: variance 2 / fan_in (He et al. 2015, arXiv:1502.01852)."""
  return tf.variance_scaling_initializer(scale=2.0, mode='fan_in', distribution='truncated_normal')


def glorot_uniform():
  """The initialiser for weights with no ReLU behind them: variance 2 / (fan_in + fan_out) (Glorot & Bengio 2010)."""
  return tf.glorot_uniform_initializer()


def normalize(images):
  """Turns images of either dtype into float32: uint8 becomes [0, 1], float32 stays as the reader made it.

  It stands in the model, hence on the tower's device, since uint8 crosses to the device in a quarter of the bytes.

  Args:
    images: `[batch, height, width, channels]`, uint8 or float32.
  Returns:
    float32 of the same shape.
  Raises:
    TypeError: any other dtype, whose range nobody can know.
  """
  if images.dtype == tf.float32:
    return images
  if images.dtype == tf.uint8:
    return tf.cast(images, tf.float32) * (1 / 255)
  raise TypeError('images are {}; models take uint8 (0 ... 255) or float32'.format(images.dtype.name))


def conv(inputs, filters, kernel_size, *, name, activation=tf.nn.relu, padding='SAME', stride=1, has_biases=True):
  """A 2-D convolution.

  Args:
    inputs: float `[batch, height, width, channels]`; `channels` is known.
    filters: how many channels come out.
    kernel_size: height and width of the kernel.
    name: the variable scope: makes `name/weights [kernel, kernel, channels, filters]` and `name/biases [filters]`.
    activation: a function of a tensor, or None.
    padding: 'SAME' or 'VALID'.
    stride: of the kernel, both ways.
    has_biases: leave them out before batch normalisation, which has offsets of its own.
  Returns:
    `[batch, height', width', filters]`.
  """
  channels = inputs.shape.as_list()[-1]
  with tf.variable_scope(name):
    weights = tf.get_variable('weights', [kernel_size, kernel_size, channels, filters],
                              initializer=glorot_uniform() if activation is None and has_biases else he_normal())
    outputs = tf.nn.conv2d(inputs, weights, strides=[1, stride, stride, 1], padding=padding)
    if has_biases:
      outputs = tf.nn.bias_add(outputs, tf.get_variable('biases', [filters], initializer=tf.zeros_initializer()))
    return outputs if activation is None else activation(outputs)


def dense(inputs, units, *, name, activation=None):
  """A matrix product with biases.

  Args:
    inputs: float `[batch, features]`; `features` is known.
    units: how many features come out.
    name: the variable scope: makes `name/weights [features, units]` and `name/biases [units]`.
    activation: a function of a tensor, or None.
  Returns:
    `[batch, units]`.
  """
  features = inputs.shape.as_list()[-1]
  with tf.variable_scope(name):
    weights = tf.get_variable('weights', [features, units],
                              initializer=he_normal() if activation is tf.nn.relu else glorot_uniform())
    biases = tf.get_variable('biases', [units], initializer=tf.zeros_initializer())
    outputs = tf.nn.bias_add(tf.matmul(inputs, weights), biases)
    return outputs if activation is None else activation(outputs)


def max_pool(inputs, size=2):
  """The largest value of each `size` x `size` square: `[batch, ceil(height / size), ceil(width / size), channels]`."""
  return tf.nn.max_pool(inputs, ksize=[1, size, size, 1], strides=[1, size, size, 1], padding='SAME')


def flatten(inputs):
  """`[batch, ...]` to `[batch, features]`: the batch may be of any size, the rest is known."""
  features = 1
  for size in inputs.shape.as_list()[1:]:
    features *= size
  return tf.reshape(inputs, [-1, features])


def dropout(inputs, rate, is_training):
  """Zeroes a share of the features while training and scales up the rest (Srivastava et al. 2014).

  No seed is set here: an op seed would give every tower the same mask. The graph's seed alone gives each op its own.

  Args:
    inputs: float tensor.
    rate: the share that is dropped, in [0, 1).
    is_training: a Python bool, or a scalar bool tensor where one graph both trains and validates.
  Returns:
    A tensor of the same shape; `inputs`, to the bit, when not training.
  """
  if isinstance(is_training, bool):
    return tf.nn.dropout(inputs, rate=rate) if is_training else inputs
  return tf.nn.dropout(inputs, rate=tf.cast(is_training, inputs.dtype) * rate)
