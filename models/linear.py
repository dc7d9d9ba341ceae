"""Linear: softmax regression, the smallest model that learns.

It serves tests, and shows what a step costs by itself.
"""

from .layers import Layers, dense


def build_logits(images, is_training, num_classes, *, data_format='NHWC'):
  """Builds the logits of softmax regression: about 84 % on Fashion-MNIST.

  Args:
    images: `[batch, height, width, channels]`, uint8 or float32.
    is_training: not used, since nothing here differs.
    num_classes: how many classes there are.
    data_format: not used, since there is no image inside.
  Returns:
    float32 `[batch, num_classes]`.
  """
  del data_format
  layers = Layers(is_training)
  return dense(layers.flatten(layers.normalize(images)), num_classes, name='logits')
