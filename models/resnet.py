"""ResNets: ResNet-20/32/56/110 for CIFAR, and ResNet-50/101/152 v1.5 for ImageNet.

  CIFAR      conv 3x3x16 -> n blocks of 16 -> n of 32 / 2 -> n of 64 / 2 -> mean -> logits
  ImageNet   conv 7x7x64 / 2 -> pool -> bottlenecks of 64 -> 128 / 2 -> 256 / 2 -> 512 / 2 -> ...

  block                               bottleneck
    x ─ conv 3x3 ─ conv 3x3 ─┐          x ─ conv 1x1 ─ conv 3x3 ─ conv 1x1, 4 times the channels ─┐
    └──── shortcut ──────────+─         └──── shortcut ───────────────────────────────────────────+─

He et al. 2016, "Deep Residual Learning for Image Recognition", arXiv:1512.03385, sections 4.1 and
4.2; batch normalisation follows every convolution, a ReLU every one but the last of a block, and
their sum. For CIFAR, where a block halves the image and doubles the channels, the shortcut has no
weights: it takes every second pixel and pads channels with zeros (option A there). For ImageNet it
is a 1x1 convolution (option B), and the stride stands in the 3x3 convolution, which is the v1.5
that the field measures (github.com/facebookarchive/fb.resnet.torch).

Initial values of He et al. 2015. Hyper-parameters of the paper: momentum 0.9, weight decay 0.0001,
rate 0.1. CIFAR: batches of 128, 64,000 steps, divided by 10 after 32,000 and 48,000; ResNet-110
starts with 0.01 for 400 steps. ImageNet: batches of 256, divided by 10 when the error stands still,
by custom after 30, 60 and 80 of 90 epochs.
"""

from towers.tensorflow_v1 import tf

from .layers import Layers, dense

# By the number of layers with weights: blocks of each stage.
_CIFAR_BLOCKS = {20: (3, 3, 3), 32: (5, 5, 5), 56: (9, 9, 9), 110: (18, 18, 18)}
_IMAGENET_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def build_logits(images, is_training, num_classes, *, depth=20, data_format='NHWC'):
  """Builds the logits, see `models`, of images of any size.

  With 10 classes they take 269,722 weights (depth of 20) to 1,727,962 (110), with 1,000 classes
  25,557,032 (50), 44,549,160 (101) and 60,192,808 (152).
  """
  layers = Layers(is_training, data_format)
  x = 2 * layers.normalize(images) - 1
  if depth in _CIFAR_BLOCKS:
    x = tf.nn.relu(_conv(layers, x, 16, 3, 'conv'))
    stages, block = zip((16, 32, 64), _CIFAR_BLOCKS[depth]), _block
  else:
    x = layers.max_pool(tf.nn.relu(_conv(layers, x, 64, 7, 'conv', 2)), 3, 2)
    stages, block = zip((64, 128, 256, 512), _IMAGENET_BLOCKS[depth]), _bottleneck
  for stage, (channels, num_blocks) in enumerate(stages):
    for index in range(num_blocks):
      with tf.variable_scope(f'stage{stage + 1}_block{index + 1}'):
        x = block(layers, x, channels, stride=2 if stage and not index else 1)
  return dense(layers.mean(x), num_classes, name='logits')


# Sums are `add_n`: the gradient of `+` would take seven ops to undo a broadcast.


def _block(layers, x, channels, stride):
  y = tf.nn.relu(_conv(layers, x, channels, 3, 'conv1', stride))
  y = _conv(layers, y, channels, 3, 'conv2')
  if stride > 1:
    padding = (channels - layers.count_channels(x)) // 2
    x = layers.pad(layers.average_pool(x, 1, stride), channels=(padding, padding))
  return tf.nn.relu(tf.add_n([y, x]))


def _bottleneck(layers, x, channels, stride):
  y = tf.nn.relu(_conv(layers, x, channels, 1, 'conv1'))
  y = tf.nn.relu(_conv(layers, y, channels, 3, 'conv2', stride))
  y = _conv(layers, y, 4 * channels, 1, 'conv3')
  if layers.count_channels(x) != 4 * channels:
    x = _conv(layers, x, 4 * channels, 1, 'shortcut', stride)
  return tf.nn.relu(tf.add_n([y, x]))


def _conv(layers, x, channels, size, name, stride=1):
  """A convolution and batch normalisation."""
  x = layers.conv(x, channels, size, name=name, stride=stride, activation=None, has_biases=False)
  return layers.batch_norm(x, name=name + '_norm')
