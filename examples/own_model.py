"""Your own model and data on two towers: it separates two spirals.

  python -m examples.own_model
  python -m towers launch --workers=2 -- python -m examples.own_model       the same, two workers
"""
import numpy as np
import tensorflow.compat.v1 as tf

import towers

angles = np.random.RandomState(0).uniform(1, 10, 3000)
labels = np.arange(3000) % 2
points = np.stack(
    [angles * np.cos(angles + np.pi * labels), angles * np.sin(angles + np.pi * labels)], 1)
examples = towers.from_arrays(np.float32(points), labels)

def model(batch, is_training):
  x, labels = batch
  for layer, (size, next_size) in enumerate([(2, 64), (64, 64), (64, 2)]):
    weights = tf.get_variable(f'weights_{layer}', [size, next_size])
    x = tf.matmul(x if layer == 0 else tf.nn.relu(x), weights) + tf.get_variable(
        f'biases_{layer}', [next_size])
  # One loss per example.
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)

program = towers.Program(model, train=examples, optimizer=tf.train.AdamOptimizer(0.005),
                         batch_size=100, num_towers=2)
with program.session() as session:
  while session.step < 1200:
    loss = session.train()
  print(f'loss after {session.step} steps: {loss:.4f}')
