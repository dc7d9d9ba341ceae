"""Linear: softmax regression, the smallest model that learns; for tests, and to see what a step costs by itself."""

from models.layers import dense, flatten, normalize


def build_logits(images, is_training, num_classes):
  """Builds the logits of softmax regression: about 84 % on Fashion-MNIST.

  Args:
    images: `[batch, height, width, channels]`, uint8 or float32.
    is_training: not used, since nothing here differs.
    num_classes: how many classes there are.
  Returns:
    float32 `[batch, num_classes]`.
  """
  del is_training
  return dense(flatten(normalize(images)), num_classes, name='logits')
