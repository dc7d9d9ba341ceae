"""Reduce on plateau: a callback halves the rate where two validations were no better.

  python -m examples.recipes.plateau

The rate is a variable, so that checkpoints have it, and a run that resumes goes on with it.
"""
import numpy as np
import tensorflow.compat.v1 as tf

import towers

random = np.random.RandomState(0)
x = random.randn(1000, 5).astype(np.float32)
y = np.float32(x.sum(1) + random.randn(1000))


def model(batch, is_training):
  return tf.square(tf.layers.dense(batch[0], 1)[:, 0] - batch[1])


rate = tf.get_variable('rate', initializer=0.2, trainable=False)
halve = rate.assign(rate / 2)


class Plateau(towers.Callback):
  """Halves the rate."""
  best, waited = float('inf'), 0

  def on_validation(self, run):
    loss = run.validation['loss']
    self.best, self.waited = min(self.best, loss), 0 if loss < self.best else self.waited + 1
    if self.waited == 2:
      print('rate %g' % run.session.run(halve))
      self.waited = 0


program = towers.Program(
    model, train=towers.from_arrays(x[:500], y[:500]), batch_size=10, num_towers=2,
    validation=towers.from_arrays(x[500:], y[500:]),
    optimizer=tf.train.GradientDescentOptimizer(rate))
towers.train(program, epochs=15, callbacks=[Plateau()], quiet=True)
