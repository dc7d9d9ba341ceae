"""Class balance: as many examples of a rare class in every batch as of the others.

  python -m examples.recipes.class_balance
"""
import numpy as np
import tensorflow.compat.v1 as tf

import towers

random = np.random.RandomState(0)
labels = np.int32(random.rand(2000) < 0.03)
points = np.float32(random.randn(2000, 2) + 2 * labels[:, None])


def model(batch, is_training):
  x, label = batch
  logits = tf.layers.dense(x, 2)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
  is_found = tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), label), tf.float32)
  return losses, {'recall': towers.Weighted(is_found, tf.cast(label, tf.float32))}


def train(examples):
  with tf.Graph().as_default():
    program = towers.Program(model, train=examples, batch_size=50, num_towers=2,
                             optimizer=tf.train.AdamOptimizer(0.05))
    with program.session() as session:
      while session.step < 200:
        session.train()
      return session.evaluate((points, labels))['recall']


examples = towers.from_arrays(points, labels)
print(f'rare ones found: {train(examples):.2f}, '
      f'balanced {train(towers.mixed(examples, by=labels)):.2f}')
