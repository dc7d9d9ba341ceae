"""The same with towers.  python -m examples.migrating.estimator_after"""
import tempfile

import tensorflow.compat.v1 as tf

import towers
from towers import data

NUM_GPUS, BATCH_SIZE, STEPS, EVERY = 2, 64, 126, 63


def model(batch, is_training):
  images, labels = batch
  x = tf.reshape(tf.cast(images, tf.float32) / 255, [-1, 28 * 28])
  for layer, size in enumerate([64, 10]):
    weights = tf.get_variable(f'weights_{layer}', [x.shape[1], size])
    x = tf.matmul(x, weights) + tf.get_variable(f'biases_{layer}', [size],
                                                initializer=tf.zeros_initializer())
    x = x if layer else tf.nn.relu(x)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)
  return losses, {'accuracy': tf.equal(tf.argmax(x, 1, output_type=tf.int32), labels)}

sample = data.load('sample')
program = towers.Program(
    model, train=sample.train, validation=sample.validation, batch_size=BATCH_SIZE,
    optimizer=tf.train.MomentumOptimizer(0.05, 0.9), num_towers=NUM_GPUS)
with tempfile.TemporaryDirectory() as folder, program.session() as session:
  while session.step < STEPS:
    session.train()
    if session.step % EVERY == 0:
      session.save(folder)
      means = session.validate()
  print(f"accuracy after {STEPS} steps: {means['accuracy']:.3f}")
