"""Two workers with Estimator and MultiWorkerMirroredStrategy, for TensorFlow 1.14.

  python -m towers launch --workers=2 -- python -m examples.migrating.workers_before
"""
import json
import os
import tempfile

import tensorflow.compat.v1 as tf

from towers import data

given = json.loads(os.environ['TF_CONFIG'])
rank, [chief, *others] = given['task']['index'], given['cluster']['worker']
# Estimator calls its first worker the chief, and counts the others anew.
os.environ['TF_CONFIG'] = json.dumps({
    'cluster': {'chief': [chief], 'worker': others},
    'task': {'type': 'worker', 'index': rank - 1} if rank else {'type': 'chief', 'index': 0}})
sample = data.load('sample')


def model_fn(features, labels, mode):
  x = tf.reshape(tf.cast(features, tf.float32) / 255, [-1, 28 * 28])
  weights = tf.get_variable('weights', [28 * 28, 10], initializer=tf.zeros_initializer())
  logits = tf.matmul(x, weights)
  loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
  if mode == tf.estimator.ModeKeys.EVAL:
    accuracy = tf.metrics.accuracy(labels, tf.argmax(logits, 1))
    return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={'accuracy': accuracy})
  optimizer = tf.train.GradientDescentOptimizer(0.05)
  train_op = optimizer.minimize(loss, tf.train.get_or_create_global_step())
  return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

def train_input():
  dataset = tf.data.Dataset.from_tensor_slices(sample.train.arrays)
  return dataset.shard(2, rank).repeat().batch(32)  # 32 for each worker

def validation_input():
  assert sample.validation is not None
  return tf.data.Dataset.from_tensor_slices(sample.validation.arrays).batch(100)

with tempfile.TemporaryDirectory() as folder:
  config = tf.estimator.RunConfig(
      model_dir=folder, save_checkpoints_steps=60,
      train_distribute=tf.distribute.experimental.MultiWorkerMirroredStrategy())
  estimator = tf.estimator.Estimator(model_fn, config=config)
  tf.estimator.train_and_evaluate(estimator, tf.estimator.TrainSpec(train_input, max_steps=60),
                                  tf.estimator.EvalSpec(validation_input, steps=None))
  if rank == 0:
    means = tf.estimator.Estimator(model_fn, folder).evaluate(validation_input)
    print(f"validation loss after 60 steps: {means['loss']:.4f}")
