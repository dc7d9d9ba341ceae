"""Models that normalise."""

from tests.coupling.zoo.parts import IM, XY, case, ce, contrib, conv, dense, layers, state, update
from towers.tensorflow_v1 import tf


def _sn(w, late):
  u = tf.get_variable('u', [1, int(w.shape[0])], initializer=tf.random_normal_initializer(),
                      trainable=False)
  v = tf.nn.l2_normalize(tf.matmul(u, w))
  u2 = tf.nn.l2_normalize(tf.matmul(v, w, transpose_b=True))
  v, u2 = tf.stop_gradient(v), tf.stop_gradient(u2)
  sigma = tf.matmul(tf.matmul(u2, w), v, transpose_b=True)
  if late:
    update(u.assign(u2))
    return w / sigma
  with tf.control_dependencies([u.assign(u2)]):
    return w / tf.identity(sigma)


@case('exact', XY)
def spectral_norm_update_ops(b, is_training):
  w = tf.get_variable('w', [6, 4], initializer=tf.random_normal_initializer())
  return ce(tf.matmul(b['x'], _sn(w, True)), b['y'])


@case('exact', XY)
def spectral_norm_in_place(b, is_training):
  w = tf.get_variable('w', [6, 4], initializer=tf.random_normal_initializer())
  return ce(tf.matmul(b['x'], _sn(w, False)), b['y'])


@case('coupled', XY)
def batch_renorm(b, is_training):
  x = dense(b['x'], 5, 'd')
  mm, mv = state('mm', [5]), state('mv', [5], 1.0)
  mean, var = tf.nn.moments(x, [0])
  std, ms = tf.sqrt(var + 1e-3), tf.sqrt(mv + 1e-3)
  r = tf.stop_gradient(tf.clip_by_value(std / ms, 1 / 3.0, 3))
  d = tf.stop_gradient(tf.clip_by_value((mean - mm) / ms, -5, 5))
  update(mm.assign(0.9 * mm + 0.1 * mean))
  update(mv.assign(0.9 * mv + 0.1 * var))
  return ce(dense((x - mean) / std * r + d, 4, 'o'), b['y'])


@case('exact', IM)
def group_norm(b, is_training):
  x = conv(b['im'], 8, 'c')
  n = tf.shape(x)[0]
  g = tf.reshape(x, [n, 6, 6, 2, 4])
  mean, var = tf.nn.moments(g, [1, 2, 4], keep_dims=True)
  x = tf.reshape((g - mean) * tf.rsqrt(var + 1e-5), [n, 6, 6, 8])
  x *= tf.get_variable('g', [8], initializer=tf.ones_initializer())
  return ce(dense(tf.reduce_mean(tf.nn.relu(x), [1, 2]), 4, 'o'), b['y'])


@case('exact', IM)
def instance_norm(b, is_training):
  x = conv(b['im'], 4, 'c')
  mean, var = tf.nn.moments(x, [1, 2], keep_dims=True)
  x = tf.nn.batch_normalization(x, mean, var, None, tf.get_variable('g', [4]), 1e-5)
  return ce(dense(tf.reduce_max(x, [1, 2]), 4, 'o'), b['y'])


@case('exact', XY)
def layer_norm(b, is_training):
  x = dense(b['x'], 8, 'd')
  mean, var = tf.nn.moments(x, [-1], keep_dims=True)
  return ce(dense((x - mean) * tf.rsqrt(var + 1e-6), 4, 'o'), b['y'])


@case('exact', XY)
def weight_norm(b, is_training):
  v = tf.get_variable('v', [6, 4])
  g = tf.get_variable('g', [4], initializer=tf.ones_initializer())
  return ce(tf.matmul(b['x'], tf.nn.l2_normalize(v, 0) * g), b['y'])


@case('coupled', XY)
def weight_norm_data_init(b, is_training):
  v = tf.get_variable('v', [6, 4])
  done = state('done', [])
  ks = state('ks', [4], 1.0)
  kb = state('kb', [4])
  t = tf.matmul(b['x'], tf.nn.l2_normalize(v, 0))
  m, var = tf.nn.moments(t, [0])
  s = tf.rsqrt(var + 1e-8)
  first = done < 0.5
  scale, bias = tf.where(first, s, ks.read_value()), tf.where(first, -m * s, kb.read_value())
  update(ks.assign(scale))
  update(kb.assign(bias))
  update(done.assign(1.0))
  return ce(t * scale + bias, b['y'])


@case('coupled', XY)
def actnorm_cond(b, is_training):
  x = dense(b['x'], 5, 'd')
  mu, done = state('mu', [5]), state('done', [])
  m = tf.cond(done < 0.5, lambda: tf.reduce_mean(x, 0), lambda: tf.identity(mu.read_value()))
  update(mu.assign(m))
  update(done.assign(1.0))
  return ce(dense(tf.tanh(x - m), 4, 'o'), b['y'])


@case('coupled', XY)
def whitening_cholesky(b, is_training):
  x = dense(b['x'], 4, 'd')
  x = x - tf.reduce_mean(x, 0)
  cov = tf.matmul(x, x, transpose_a=True) / tf.cast(tf.shape(x)[0], tf.float32)
  return ce(dense(tf.matmul(x, tf.linalg.inv(tf.linalg.cholesky(cov + tf.eye(4)))), 4, 'o'), b['y'])


@case('coupled', XY)
def softmax_over_batch(b, is_training):
  z = dense(b['x'], 4, 'd')
  return ce(dense(tf.nn.softmax(z, axis=0), 4, 'o'), b['y'])


@case('coupled', XY)
def standardize_by_std(b, is_training):
  x = dense(b['x'], 5, 'd')
  return ce(dense((x - tf.reduce_mean(x, 0)) / (tf.math.reduce_std(x, 0) + 1e-3), 4, 'o'), b['y'])


@case('coupled', XY, tf1=True)
def layers_renorm(b, is_training):
  x = layers.batch_normalization(layers.dense(b['x'], 5, name='d'), renorm=True,
                                 training=is_training, name='bn', momentum=0.9)
  return ce(layers.dense(x, 4, name='o'), b['y'])


@case('exact', IM, tf1=True)
def contrib_norms(b, is_training):
  x = contrib.layers.group_norm(conv(b['im'], 8, 'c'), groups=2, scope='gn')
  x = contrib.layers.instance_norm(x, scope='in')
  x = contrib.layers.layer_norm(x, scope='ln')
  return ce(dense(tf.reduce_max(x, [1, 2]), 4, 'o'), b['y'])


@case('coupled', XY)
def ghost_norm_of_pairs(b, is_training):
  x = dense(b['x'], 4, 'd')
  n = tf.shape(x)[0] // 2 * 2
  pairs = tf.reshape(x[:n], [-1, 2, 4])
  pairs -= tf.reduce_mean(pairs, 1, keepdims=True)
  return ce(tf.concat([tf.reshape(pairs, [-1, 4]), x[n:]], 0), b['y'])


@case('exact', XY)
def layer_norm_by_a_kernel(b, is_training):
  x = dense(b['x'], 4, 'd')
  n = tf.shape(x)[0]
  channels = tf.reshape(tf.transpose(x), [1, 4, 1, n])  # Of each example, as Keras has it.
  x, _, _ = tf.nn.fused_batch_norm(channels, tf.ones([n]), tf.zeros([n]))
  return ce(tf.reshape(tf.transpose(x, [3, 1, 0, 2]), [-1, 4]), b['y'])
