"""The net of TensorFlow's tutorial "Basic classification: Classify images of clothing".

  images / 255 -> flatten -> dense 128, ReLU -> dense 10

Initial values are those of Keras' Dense: Glorot & Bengio 2010 for weights, zeros for biases.
"""

from typing import Any, Dict, Tuple

from models.layers import Layers, dense, glorot_uniform
from tensorflow_v1 import tf


def model(batch: Any, is_training: Any) -> Tuple[Any, Dict[str, Any]]:
  """Returns the cross-entropy of every example, and which were classified correctly.

  Args:
    batch: images `[batch, height, width, channels]` uint8, and labels `[batch]` int32.
    is_training: not used, since nothing here differs.
  """
  images, labels = batch
  layers = Layers(is_training)
  x = layers.flatten(layers.normalize(images))
  x = dense(x, 128, name='dense', activation=tf.nn.relu, initializer=glorot_uniform())
  logits = dense(x, 10, name='logits')
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  return losses, {'accuracy': tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)}
