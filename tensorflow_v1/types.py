"""Names of TensorFlow's types, for signatures.

  def build_loss(logits: Tensor, variables: List[Variable]) -> Tensor: …

Neither target carries type hints, so a type checker takes each of these for `Any`; a reader does
not.
"""

from typing import Union

from tensorflow_v1.load import tf

Dataset = tf.data.Dataset
DType = tf.DType
Graph = tf.Graph
Operation = tf.Operation
Optimizer = tf.train.Optimizer
Session = tf.Session
Tensor = tf.Tensor
Variable = tf.Variable

Gradient = Union[tf.Tensor, tf.IndexedSlices]
"""Of one variable: dense, or sparse with the rows that a step touched."""
