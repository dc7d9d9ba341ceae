"""The same program, with towers.  python -m examples.migrating.tower_loop_after"""
import tensorflow.compat.v1 as tf

import towers
from towers import data

NUM_GPUS, BATCH_SIZE, NUM_STEPS = 2, 32, 125


def model(batch, is_training):
  images, labels = batch
  x = tf.reshape(tf.cast(images, tf.float32) / 255, [-1, 28 * 28])
  for layer, size in enumerate([64, 10]):
    weights = tf.get_variable(f'weights_{layer}', [x.shape[1], size])
    x = tf.matmul(x, weights) + tf.get_variable(f'biases_{layer}', [size],
                                                initializer=tf.zeros_initializer())
    x = x if layer else tf.nn.relu(x)
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, 1e-4 * tf.nn.l2_loss(weights))
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)

images, labels = data.load('sample').train.arrays
program = towers.Program(
    model, train=towers.from_arrays(images, labels),  # Fed once, of any size, shared by all towers.
    optimizer=tf.train.GradientDescentOptimizer(0.1), batch_size=NUM_GPUS * BATCH_SIZE,
    input_mode='next', num_towers=NUM_GPUS)
with program.session() as session:
  for _ in range(NUM_STEPS):
    value = session.train()  # The mean over the global batch.
  print(f'loss after {NUM_STEPS} steps: {value:.4f}')
