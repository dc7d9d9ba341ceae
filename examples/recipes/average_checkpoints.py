"""The mean of the last checkpoints' weights, which is often better than each of them.

  python -m examples.recipes.average_checkpoints

While a run goes on, average_weights=0.999 keeps moving averages instead.
"""
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import towers

random = np.random.RandomState(0)
x = random.randn(1000, 5).astype(np.float32)
y = np.float32(x.sum(1) + random.randn(1000))


def model(batch, is_training):
  return tf.square(tf.layers.dense(batch[0], 1)[:, 0] - batch[1])


program = towers.Program(
    model, train=towers.from_arrays(x[:500], y[:500]), batch_size=10, num_towers=2,
    validation=towers.from_arrays(x[500:], y[500:]),
    optimizer=tf.train.GradientDescentOptimizer(0.1))
with tempfile.TemporaryDirectory() as folder, program.session() as session:
  weights, losses, kept = tf.trainable_variables(), [], []
  for _ in range(10):
    for _ in range(20):
      session.train()
    kept.append(session.save(folder))
    losses.append(session.validate()['loss'])
  values = []
  for path in kept[-5:]:
    session.restore(path)
    values.append(session.run(weights))
  for weight, of_checkpoints in zip(weights, zip(*values)):
    weight.load(np.mean(of_checkpoints, 0), session.tf_session)
  print(f"validation loss {np.mean(losses[-5:]):.3f}, "
        f"of the mean {session.validate()['loss']:.3f}")
