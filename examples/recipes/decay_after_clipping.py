"""Decay after clipping: the gradient is clipped, and the decay that is added to it is not.

  python -m examples.recipes.decay_after_clipping

A penalty in the loss would be clipped with it.
"""
import numpy as np
import tensorflow.compat.v1 as tf

import towers

x = np.full([64, 2], 100, np.float32)


def model(batch, is_training):
  weights = tf.get_variable('weights', [2, 1], initializer=tf.ones_initializer())
  return tf.matmul(batch[0], weights)[:, 0]


program = towers.Program(model, train=towers.from_arrays((x,)), batch_size=16, num_towers=2,
                         clip_norm=1.0, weight_decay=0.5,
                         optimizer=tf.train.GradientDescentOptimizer(0.1))
with program.session() as session:
  session.train()
  # 1 - 0.1 * (0.7071, the clipped gradient, + 0.5 * 1, the decay)
  print(f"weight {session.run('weights')[0, 0]:.4f}")
