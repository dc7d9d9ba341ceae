"""Models: plain functions from images to logits, which know nothing of devices, towers or staging.

  import models
  model = models.build_classifier('convnet', num_classes=10)      # what `towers.build_towers` takes

TensorFlow is imported with the model, not with this package, so that a wrong name is told at once.
"""

import importlib
from typing import Any, Callable, Dict, Tuple

from usage_error import UsageError

__all__ = ['MODELS', 'build_classifier']

# Each is a module here with `build_logits(images, is_training, num_classes)`.
MODELS = ('linear', 'lenet', 'convnet', 'resnet20')


def build_classifier(name: str, *, num_classes: int) -> Callable[[Any, Any], Tuple[Any, Dict[str, Any]]]:
  """Returns a model function over batches of (images, labels).

  Args:
    name: one of `MODELS`.
    num_classes: labels are 0 … num_classes - 1.

  Returns:
    `model((images, labels), is_training)`: the cross-entropy of every example, `[batch]`, and the metrics 'accuracy'
    and, with more than 5 classes, 'top_5', both `[batch]` bool. Images are `[batch, height, width, channels]` uint8 or
    float32, labels `[batch]` int32.

  Raises:
    UsageError: an unknown name.
  """
  if name not in MODELS:
    raise UsageError("There is no model '{}'; choose one of {}.".format(name, ', '.join(MODELS)))
  build_logits = importlib.import_module('models.' + name).build_logits

  def model(batch, is_training):
    from tensorflow_v1 import tf
    images, labels = batch
    logits = build_logits(images, is_training, num_classes)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    metrics = {'accuracy': tf.equal(tf.argmax(logits, 1, output_type=labels.dtype), labels)}
    if num_classes > 5:
      metrics['top_5'] = tf.nn.in_top_k(logits, labels, 5)
    return losses, metrics

  return model
