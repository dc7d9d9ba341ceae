"""VGG-16 and VGG-19 (Simonyan & Zisserman 2015, "Very Deep Convolutional Networks",
arXiv:1409.1556, columns D and E).

  2 conv 64 -> pool -> 2 conv 128 -> pool -> 3 conv 256 -> pool
    -> 3 conv 512 -> pool -> 3 conv 512 -> pool
    -> dense 4096 -> dropout -> dense 4096 -> dropout -> logits           VGG-19: 4 instead of 3

Convolutions are 3x3. Initial values by Glorot & Bengio 2010, with which the paper found that a net
needs no training of a smaller one before. Its hyper-parameters: batches of 256, momentum 0.9,
weight decay 0.0005, dropout 0.5, rate 0.01, divided by 10 three times in 74 epochs.
"""

from towers.tensorflow_v1 import tf

from .layers import Layers, dense

_CHANNELS = (64, 128, 256, 512, 512)
# Convolutions of each stage, by the number of layers with weights.
_NUM_CONVS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def build_logits(images, is_training, num_classes, *, depth=16, data_format='NHWC'):
  """Builds the logits, see `models`, of images of any size; `depth` is 16 or 19.

  On 224x224x3 with 1,000 classes they take 138,357,544 weights (depth of 16) or 143,667,240 (19).
  """
  layers, initializer = Layers(is_training, data_format), tf.glorot_uniform_initializer()
  x = layers.normalize(images)
  for stage, (channels, num_convs) in enumerate(zip(_CHANNELS, _NUM_CONVS[depth])):
    for index in range(num_convs):
      x = layers.conv(x, channels, 3, name=f'conv{stage + 1}_{index + 1}', initializer=initializer)
    x = layers.max_pool(x)
  x = layers.flatten(x)
  for name in ('dense1', 'dense2'):
    x = dense(x, 4096, name=name, activation=tf.nn.relu, initializer=initializer)
    x = layers.dropout(x, 0.5)
  return dense(x, num_classes, name='logits')
