"""A stream: examples without a number or an end, from a simulator, a queue or a socket.

  python -m examples.recipes.stream
"""
import numpy as np
import tensorflow.compat.v1 as tf

import towers

WEIGHTS = np.float32([2, -1, 0.5])


def simulate():
  random = np.random.RandomState(0)
  while True:
    x = random.randn(3).astype(np.float32)
    yield x, x.dot(WEIGHTS)


def model(batch, is_training):
  x, y = batch
  return tf.square(tf.squeeze(tf.matmul(x, tf.get_variable('weights', [3, 1])), 1) - y)


program = towers.Program(model, train=towers.from_stream(simulate), batch_size=32, num_towers=2,
                         staging_depth=0, optimizer=tf.train.GradientDescentOptimizer(0.1))
with program.session() as session:
  while session.step < 100:  # Or towers.train(program, steps=100, checkpoint_dir='run').
    session.train()
  print('weights', session.run('weights').ravel().round(2).tolist())
