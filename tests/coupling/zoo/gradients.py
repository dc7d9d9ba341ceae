"""Models that take gradients, or share weights."""

import numpy as np

import towers
from tests.coupling.zoo.parts import IM, SEQ, XY, by_rows, case, ce, conv, dense, update
from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import batch_norm


@tf.custom_gradient
def _reverse(x):
  return tf.identity(x), lambda g: -0.3 * g


@case('exact', XY)
def gradient_reversal(b, is_training):
  h = dense(b['x'], 5, 'd', tf.tanh)
  return ce(dense(h, 4, 'o'), b['y']) + ce(dense(_reverse(h), 4, 'p'), (b['y'] + 1) % 4)


@tf.custom_gradient
def _unit(x):
  return tf.identity(x), lambda g: g / (tf.norm(g) + 1e-9)


@case('coupled', XY)
def gradient_normalised_inside(b, is_training):
  return ce(_unit(dense(b['x'], 4, 'd')), b['y'])


@case('coupled', XY)
def gradient_of_a_mean_that_stands_still(b, is_training):
  h = dense(b['x'], 4, 'd')
  mean = tf.reduce_mean(h, 0, keepdims=True)
  return ce(h + tf.stop_gradient(mean) - mean, b['y'])


@case('coupled', XY)
def gradient_scaled_by_the_norm(b, is_training):
  h = dense(b['x'], 4, 'd')
  scaled = h / (tf.norm(h) + 1e-6)
  return ce(scaled + tf.stop_gradient(h - scaled), b['y'])


tf.RegisterGradient('ZooUnit')(lambda op, g: g / (tf.norm(g) + 1e-6))


@case('coupled', XY)
def gradient_overridden(b, is_training):
  with tf.get_default_graph().gradient_override_map({'Identity': 'ZooUnit'}):
    return ce(tf.identity(dense(b['x'], 4, 'd')), b['y'])


@case('coupled', XY)
def gradient_normalised_beside_all_sum(b, is_training):
  losses = ce(_unit(dense(b['x'], 4, 'd')), b['y'])
  return losses * towers.all_sum(tf.cast(tf.shape(losses)[0], tf.float32)) / 14


@case('coupled', XY)
def gradient_normalised_after_a_kernel(b, is_training):
  images = tf.reshape(dense(b['x'], 4, 'd'), [-1, 1, 2, 2])
  return ce(_unit(tf.reshape(batch_norm(images, is_training, name='norm'), [-1, 4])), b['y'])


def critic(x):
  return dense(dense(x, 6, 'c1', tf.tanh), 1, 'c2')[:, 0]


@case('exact', XY)
def gradient_penalty_sum(b, is_training):
  with tf.variable_scope('critic', reuse=tf.AUTO_REUSE):
    mid = 0.5 * b['x'] + 0.5 * tf.sin(b['x'])
    g = tf.gradients(critic(mid), mid)[0]
    return critic(b['x']) - critic(tf.sin(b['x'])) + 10 * tf.square(tf.norm(g + 1e-8, axis=1) - 1)


@case('coupled', XY)
def gradient_penalty_of_mean(b, is_training):
  with tf.variable_scope('critic', reuse=tf.AUTO_REUSE):
    g = tf.gradients(tf.reduce_mean(critic(b['x'])), b['x'])[0]
    return critic(b['x']) + 10 * tf.square(tf.norm(g + 1e-8, axis=1) - 1)


@case('exact', XY)
def second_derivative(b, is_training):
  x = b['x']
  u = critic(x)
  g = tf.gradients(u, x)[0]
  h = tf.gradients(g[:, 0], x)[0][:, 0]
  return tf.square(h + u - tf.sin(x[:, 0]))


@case('exact', XY)
def fgsm(b, is_training):
  with tf.variable_scope('net', reuse=tf.AUTO_REUSE):
    loss = ce(dense(b['x'], 4, 'd'), b['y'])
    g = tf.gradients(tf.reduce_mean(loss), b['x'])[0]
    return loss + ce(dense(b['x'] + 0.1 * tf.sign(tf.stop_gradient(g)), 4, 'd'), b['y'])


@case('coupled', XY)
def maml_inner_step(b, is_training):
  w = tf.get_variable('w', [6, 4])
  loss = ce(tf.matmul(b['x'], w), b['y'])
  fast = w - 0.3 * tf.gradients(tf.reduce_mean(loss), w)[0]
  return ce(tf.matmul(b['x'], fast), b['y'])


@case('coupled', XY)
def gradnorm_weights(b, is_training):
  w = tf.get_variable('w', [6, 4])
  z = tf.matmul(b['x'], w)
  l1, l2 = tf.reduce_mean(ce(z, b['y'])), tf.reduce_mean(tf.reduce_sum(z * z, 1))
  n1, n2 = [tf.stop_gradient(tf.norm(tf.gradients(loss, w)[0])) for loss in (l1, l2)]
  return l1 / (n1 + 1e-3) + l2 / (n2 + 1e-3)


@case('exact', SEQ, opt=lambda: tf.train.AdamOptimizer(0.01))
def sparse_adam(b, is_training):
  h = tf.reduce_mean(tf.gather(tf.get_variable('t', [12, 6]), b['s']), 1)
  return ce(dense(h, 4, 'o'), b['y'])


@case('exact', SEQ)
def tied_weights(b, is_training):
  t = tf.get_variable('t', [12, 6])
  h = tf.tanh(tf.reduce_mean(tf.gather(t, b['s']), 1))
  return ce(tf.matmul(h, t, transpose_b=True), b['t'][:, 0])


@case('exact', SEQ)
def partitioned_table(b, is_training):
  t = tf.get_variable('t', [12, 6], partitioner=tf.fixed_size_partitioner(3))
  return ce(dense(tf.reduce_sum(tf.nn.embedding_lookup(t, b['s']), 1), 4, 'o'), b['y'])


@case('exact', SEQ)
def embedding_max_norm(b, is_training):
  h = tf.nn.embedding_lookup(tf.get_variable('t', [12, 6]), b['s'], max_norm=0.5)
  return ce(dense(tf.reduce_sum(h, 1), 4, 'o'), b['y'])


@case('exact', XY)
def uncertainty_weights(b, is_training):
  z = dense(b['x'], 4, 'd')
  s = tf.get_variable('s', [2], initializer=tf.zeros_initializer())
  return tf.exp(-s[0]) * ce(z, b['y']) + tf.exp(-s[1]) * tf.reduce_sum(z * z, 1) + tf.reduce_sum(s)


@case('exact', XY)
def capsule_routing(b, is_training):
  u = tf.reshape(dense(b['x'], 24, 'd'), [-1, 3, 4, 2])
  c = tf.zeros_like(u[:, :, :, :1])
  for _ in range(2):
    v = tf.reduce_sum(tf.nn.softmax(c, 2) * u, 1, keepdims=True)
    c += tf.reduce_sum(u * v, 3, keepdims=True)
  return ce(tf.norm(v[:, 0] + 1e-4, axis=2), b['y'])


@case('exact', IM)
def roi_crop(b, is_training):
  x = conv(b['im'], 4, 'c')
  n = tf.shape(x)[0]
  box = tf.tile([[0.0, 0.0, 0.7, 0.7]], [n, 1])
  c = tf.image.crop_and_resize(x, box, tf.range(n), [3, 3])
  return ce(dense(tf.reshape(c, [n, 36]), 4, 'o'), b['y'])


@case('exact', XY)
def py_func_per_example(b, is_training):
  return by_rows(tf.py_func(lambda a: np.tanh(a).astype('f4'), [b['x']], tf.float32), b)


@case('coupled', XY)
def py_func_over_batch(b, is_training):
  return by_rows(tf.py_func(lambda a: (a - a.mean(0)).astype('f4'), [b['x']], tf.float32), b)


@case('exact', XY)
def loss_scaled_by_hand(b, is_training):
  return 128.0 * ce(dense(b['x'], 4, 'd'), b['y'])


@case('exact', XY)
def sum_over_size(b, is_training):
  return tf.reduce_sum(ce(dense(b['x'], 4, 'd'), b['y'])) / tf.cast(tf.size(b['y']), tf.float32)


@case('exact', XY)
def two_views_apart(b, is_training):
  n = tf.shape(b['x'])[0]
  z = dense(tf.concat([b['x'], b['x'] * 0.8], 0), 4, 'd')
  a, c = z[:n], z[n:]
  return ce(a, b['y']) - tf.reduce_sum(tf.nn.l2_normalize(a, 1) * tf.nn.l2_normalize(c, 1), 1)


@case('exact', XY)
def mean_teacher_ema(b, is_training):
  w = tf.get_variable('w', [6, 4])
  ema = tf.train.ExponentialMovingAverage(0.9)
  update(ema.apply([w]))
  z = tf.matmul(b['x'], w)
  return ce(z, b['y']) + tf.reduce_sum(tf.square(z - tf.matmul(b['x'], ema.average(w))), 1)
