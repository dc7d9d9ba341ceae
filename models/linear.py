"""Linear: softmax regression, the smallest model that learns.

It serves tests, and shows what a step costs by itself.
"""

from .layers import Layers, dense


def build_logits(images, is_training, num_classes, *, data_format='NHWC'):
  """Builds the logits of softmax regression, see `models`: about 84 % on Fashion-MNIST."""
  del data_format
  layers = Layers(is_training)
  return dense(layers.flatten(layers.normalize(images)), num_classes, name='logits')
