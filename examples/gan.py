"""Two networks that train against each other, each with an optimizer.  python -m examples.gan

The generator learns to draw points on a ring from noise; the discriminator tells them from real
ones. One step updates both.
"""
import numpy as np
import tensorflow.compat.v1 as tf

import towers

random = np.random.RandomState(0)
angles = random.uniform(0, 2 * np.pi, 4000)
radii = random.normal(2, 0.05, 4000)
points = np.float32(np.stack([radii * np.cos(angles), radii * np.sin(angles)], 1))


def network(x, size, name):
  with tf.variable_scope(name):
    for layer in range(2):
      x = tf.nn.leaky_relu(dense(x, 64, f'hidden_{layer}'))
    return dense(x, size, 'out')

def dense(x, size, name):
  scale = tf.variance_scaling_initializer(2.0)
  weights = tf.get_variable(f'{name}/weights', [x.shape[1], size], initializer=scale)
  return tf.matmul(x, weights) + tf.get_variable(
      f'{name}/biases', [size], initializer=tf.zeros_initializer())

def constant(getter, *args, **kwargs):
  """Reads a variable that the loss shall not change."""
  variable = getter(*args, **kwargs)
  # Moving averages are assigned to.
  return variable if kwargs.get('trainable') is False else tf.stop_gradient(variable)

def model(batch, is_training):
  [real] = batch
  fake = network(tf.random_normal([tf.shape(real)[0], 2]), 2, 'generator')
  real_scores = network(real, 1, 'discriminator')[:, 0]
  with tf.variable_scope(tf.get_variable_scope(), reuse=True):
    fake_scores = network(tf.stop_gradient(fake), 1, 'discriminator')[:, 0]
  with tf.variable_scope(tf.get_variable_scope(), reuse=True, custom_getter=constant):
    generator = tf.nn.softplus(-network(fake, 1, 'discriminator')[:, 0])
  discriminator = tf.nn.softplus(-real_scores) + tf.nn.softplus(fake_scores)
  losses = {'generator': generator, 'discriminator': discriminator}
  return losses, {'radius': tf.norm(fake, axis=1)}

program = towers.Program(
    model, train=towers.from_arrays(points[:3800]), batch_size=100, num_towers=2,
    validation=towers.from_arrays(points[3800:], name='validation'),
    optimizer={'generator/': tf.train.AdamOptimizer(0.001, beta1=0.5),
               'discriminator/': tf.train.AdamOptimizer(0.002, beta1=0.5)})
with program.session() as session:
  before = session.validate()['radius']
  while session.step < 1000:
    session.train()
  print(f"mean radius of drawn points: {before:.2f}, after 1000 steps "
        f"{session.validate()['radius']:.2f}; of real ones 2.00")
