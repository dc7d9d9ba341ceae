"""Estimator with MirroredStrategy, for TensorFlow up to 2.15.

  python -m examples.migrating.estimator_before
"""
import tempfile

import tensorflow.compat.v1 as tf

from towers import data


def model_fn(features, labels, mode):
  x = tf.reshape(tf.cast(features, tf.float32) / 255, [-1, 28 * 28])
  for layer, size in enumerate([64, 10]):
    weights = tf.get_variable(f'weights_{layer}', [x.shape[1], size])
    x = tf.matmul(x, weights) + tf.get_variable(f'biases_{layer}', [size],
                                                initializer=tf.zeros_initializer())
    x = x if layer else tf.nn.relu(x)
  loss = tf.losses.sparse_softmax_cross_entropy(labels, x)
  accuracy = tf.metrics.accuracy(labels, tf.argmax(x, 1))
  if mode == tf.estimator.ModeKeys.EVAL:
    return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={'accuracy': accuracy})
  train_op = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss,
                                                            tf.train.get_or_create_global_step())
  return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

def input_fn(examples, batch_size, epochs):
  dataset = tf.data.Dataset.from_tensor_slices(examples.arrays)
  return dataset.shuffle(4000).repeat(epochs).batch(batch_size)

sample = data.load('sample')
strategy = tf.distribute.MirroredStrategy(['/cpu:0', '/cpu:1'])
with tempfile.TemporaryDirectory() as folder:
  config = tf.estimator.RunConfig(model_dir=folder, train_distribute=strategy,
                                  save_checkpoints_steps=63,
                                  session_config=tf.ConfigProto(device_count={'CPU': 2}))
  estimator = tf.estimator.Estimator(model_fn, config=config)
  tf.estimator.train_and_evaluate(
      estimator, tf.estimator.TrainSpec(lambda: input_fn(sample.train, 32, None),
                                        max_steps=126),  # 32 for each tower
      tf.estimator.EvalSpec(lambda: input_fn(sample.validation, 64, 1), steps=None,
                            throttle_secs=0))
  print("accuracy after 126 steps: "
        f"{estimator.evaluate(lambda: input_fn(sample.validation, 64, 1))['accuracy']:.3f}")
