"""ResNet-20 for small images (He et al. 2016, "Deep Residual Learning for Image Recognition", section 4.2).

  conv 3x3x16 -> 3 blocks of 16 -> 3 blocks of 32, stride 2 -> 3 blocks of 64, stride 2 -> mean -> logits

A block is two 3x3 convolutions with batch normalisation around a shortcut without weights: where a block halves the
image and doubles the channels, the shortcut takes every second pixel and pads channels with zeros (option A there).
"""

from models.batch_norm import batch_norm
from models.layers import conv, dense, normalize
from tensorflow_v1 import tf

NUM_BLOCKS = 3


def build_logits(images, is_training, num_classes):
  """Builds the logits: 269,722 weights on 32x32x3 and 10 classes.

  Args:
    images: `[batch, height, width, channels]`, uint8 or float32; at least 4 pixels high and wide.
    is_training: a Python bool or a scalar bool tensor: moments of the batch, or moving averages.
    num_classes: how many classes there are.
  Returns:
    float32 `[batch, num_classes]`.
  """
  x = 2 * normalize(images) - 1
  x = tf.nn.relu(_conv_and_norm(x, 16, 1, is_training, name='conv'))
  for stage, channels in enumerate((16, 32, 64)):
    for block in range(NUM_BLOCKS):
      with tf.variable_scope('stage%d_block%d' % (stage + 1, block + 1)):
        stride = 2 if stage and not block else 1
        y = tf.nn.relu(_conv_and_norm(x, channels, stride, is_training, name='conv1'))
        y = _conv_and_norm(y, channels, 1, is_training, name='conv2')
        x = tf.nn.relu(y + _shortcut(x, channels, stride))
  return dense(tf.reduce_mean(x, [1, 2]), num_classes, name='logits')


def _conv_and_norm(x, channels, stride, is_training, name):
  x = conv(x, channels, 3, name=name, stride=stride, activation=None, has_biases=False)
  return batch_norm(x, is_training, name=name + '_norm')


def _shortcut(x, channels, stride):
  if stride == 1:
    return x
  padding = (channels - x.shape.as_list()[-1]) // 2
  return tf.pad(x[:, ::stride, ::stride], [[0, 0], [0, 0], [0, 0], [padding, padding]])
