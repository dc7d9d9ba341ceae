"""The same with towers.

  python -m towers launch --workers=2 -- python -m examples.migrating.workers_after
"""
import tempfile

import tensorflow.compat.v1 as tf

import towers
from towers import data

sample = data.load('sample')


def model(batch, is_training):
  images, labels = batch
  x = tf.reshape(tf.cast(images, tf.float32) / 255, [-1, 28 * 28])
  weights = tf.get_variable('weights', [28 * 28, 10], initializer=tf.zeros_initializer())
  logits = tf.matmul(x, weights)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  return losses, {'accuracy': tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)}

program = towers.Program(
    model, train=sample.train, validation=sample.validation, batch_size=64, num_towers=1,
    optimizer=tf.train.GradientDescentOptimizer(0.05), shuffle=False)
with tempfile.TemporaryDirectory() as folder:
  result = towers.train(program, steps=60, checkpoint_dir=folder, checkpoint_every='60steps',
                        quiet=True)
if program.workers.rank == 0:
  print(f"validation loss after 60 steps: {result['validation_loss']:.4f}")
