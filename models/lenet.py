"""LeNet-5 with ReLU, max pooling, softmax and dropout (LeCun et al. 1998, "Gradient-Based Learning
Applied to Document Recognition"; there: tanh, trained subsampling and Gaussian connections).

  conv 5x5x6 -> pool -> conv 5x5x16 (VALID) -> pool -> dense 120 -> dense 84 -> dropout -> logits
"""

from towers.tensorflow_v1 import tf

from .layers import Layers, dense


def build_logits(images, is_training, num_classes, *, data_format='NHWC'):
  """Builds the logits, see `models`, of images of at least 9 pixels each way.

  On 28x28x1 they take 61,706 weights, as in the paper, where SAME pads to 32x32.
  """
  layers = Layers(is_training, data_format)
  x = layers.normalize(images)
  x = layers.max_pool(layers.conv(x, 6, 5, name='conv1'))
  x = layers.max_pool(layers.conv(x, 16, 5, name='conv2', padding='VALID'))
  x = dense(layers.flatten(x), 120, name='dense1', activation=tf.nn.relu)
  x = dense(x, 84, name='dense2', activation=tf.nn.relu)
  x = layers.dropout(x, 0.2)
  return dense(x, num_classes, name='logits')
