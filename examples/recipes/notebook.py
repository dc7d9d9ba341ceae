"""Looking at a weight in a notebook: a session that stays open from cell to cell.

  python -m examples.recipes.notebook
"""
import numpy as np
import tensorflow.compat.v1 as tf

import towers

# %% A cell.
x = np.random.RandomState(0).randn(100, 3).astype(np.float32)
with tf.Graph().as_default():  # So that the cell runs any number of times.
  program = towers.Program(
      lambda batch, is_training: tf.square(tf.layers.dense(batch[0], 1)[:, 0] - batch[1]),
      train=towers.from_arrays(x, x.sum(1)), batch_size=20, num_towers=2,
      optimizer=tf.train.GradientDescentOptimizer(0.1))
session = program.session().open()

# %% Another one, in any thread.
for _ in range(50):
  session.train()
print('kernel', session.run('dense/kernel').ravel().round(2).tolist())

# %% The last one.
session.close()
