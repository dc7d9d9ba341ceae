"""Models that divide by, or choose by, what the batch holds."""

import towers
from tests.coupling.zoo.parts import XY, arrays, case, ce, dense
from towers.tensorflow_v1 import tf


def marked(b):
  """Returns how likely each of five marks is, and its loss."""
  z = dense(b['x'], 5, 'd')
  return tf.sigmoid(z), tf.nn.sigmoid_cross_entropy_with_logits(labels=b['m'], logits=z)


@case('coupled', arrays('x', 'm'))
def focal_by_positives(b, is_training):
  p, f = marked(b)
  f *= (1 - b['m'] * p - (1 - b['m']) * (1 - p)) ** 2
  return tf.reduce_sum(f) / tf.maximum(1.0, tf.reduce_sum(b['m']))


@case('exact', arrays('x', 'm'))
def focal_weighted_right(b, is_training):
  _, f = marked(b)
  return towers.Weighted(f, b['m'] + 0.25)


@case('coupled', arrays('x', 'm'))
def ssd_hard_negatives(b, is_training):
  _, f = marked(b)
  neg = tf.reshape(f * (1 - b['m']), [-1])
  npos = tf.reduce_sum(b['m'])
  top, _ = tf.nn.top_k(neg, tf.minimum(tf.cast(npos, tf.int32) + 1, tf.size(neg)))
  return (tf.reduce_sum(f * b['m']) + tf.reduce_sum(top)) / (npos + 1e-6)


@case('exact', arrays('x', 'm'))
def ssd_per_example(b, is_training):
  _, f = marked(b)
  neg = f * (1 - b['m'])
  keep = tf.cast(tf.argsort(tf.argsort(-neg, axis=1), axis=1) < 2, tf.float32)
  return tf.reduce_sum(f * b['m'] + neg * keep, 1)


@case('coupled', XY)
def ohem_top_half(b, is_training):
  loss = ce(dense(b['x'], 4, 'd'), b['y'])
  k = tf.maximum(tf.shape(loss)[0] // 2, 1)
  return tf.reduce_mean(tf.nn.top_k(loss, k)[0])


@case('coupled', XY)
def quantile_weights(b, is_training):
  loss = ce(dense(b['x'], 4, 'd'), b['y'])
  q = tf.sort(loss)[tf.shape(loss)[0] // 2]
  return towers.Weighted(loss, tf.cast(loss >= q, tf.float32))


@case('coupled', XY)
def trimmed_by_mean(b, is_training):
  loss = ce(dense(b['x'], 4, 'd'), b['y'])
  return tf.where(loss > 2 * tf.reduce_mean(loss), tf.zeros_like(loss), loss)


@case('coupled', XY)
def class_weights_of_batch(b, is_training):
  c = tf.reduce_sum(tf.one_hot(b['y'], 4), 0)
  return ce(dense(b['x'], 4, 'd'), b['y']) * tf.gather(1 / tf.maximum(c, 1), b['y'])


@case('coupled', XY)
def advantage_normalised(b, is_training):
  r = b['x'][:, 0]
  a = (r - tf.reduce_mean(r)) / (tf.math.reduce_std(r) + 1e-6)
  return ce(dense(b['x'], 4, 'd'), b['y']) * a


@case('coupled', XY)
def marginal_entropy(b, is_training):
  p = tf.nn.softmax(dense(b['x'], 4, 'd'))
  m = tf.reduce_mean(p, 0)
  return ce(tf.math.log(p + 1e-6), b['y']) + tf.reduce_sum(m * tf.math.log(m + 1e-6))


@case('coupled', XY)
def soft_histogram_loss(b, is_training):
  s = tf.tanh(dense(b['x'], 1, 'd'))
  bins = tf.linspace(-1.0, 1.0, 7)[None]
  k = tf.nn.relu(1 - tf.abs(s - bins) * 3)
  pos = tf.cast(b['y'] > 1, tf.float32)[:, None]
  hp, hn = tf.reduce_mean(k * pos, 0), tf.reduce_mean(k * (1 - pos), 0)
  return tf.reduce_sum(hn * tf.cumsum(hp))


@case('coupled', XY)
def cond_on_batch_accuracy(b, is_training):
  z = dense(b['x'], 4, 'd')
  loss = ce(z, b['y'])
  acc = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(z, 1, output_type=tf.int32), b['y']), tf.float32))
  return tf.cond(acc > 0.25, lambda: loss * 2, lambda: loss * 0.5)


@case('coupled', XY)
def root_mean_square_error(b, is_training):
  gap = dense(b['x'], 1, 'd')[:, 0] - tf.cast(b['y'], tf.float32)
  return tf.sqrt(tf.reduce_mean(tf.square(gap)))


@case('coupled', arrays('x', 'm'))
def dice_over_batch(b, is_training):
  p = tf.sigmoid(dense(b['x'], 5, 'd'))
  return 1 - (2 * tf.reduce_sum(p * b['m']) + 1) / (tf.reduce_sum(p) + tf.reduce_sum(b['m']) + 1)


@case('exact', arrays('x', 'm'))
def dice_per_example(b, is_training):
  p = tf.sigmoid(dense(b['x'], 5, 'd'))
  return 1 - (2 * tf.reduce_sum(p * b['m'], 1) + 1) / (tf.reduce_sum(p + b['m'], 1) + 1)


@case('coupled', arrays('s', 't', 'l', 'y'))
def tf_losses_weights(b, is_training):
  z = dense(tf.one_hot(b['s'][:, 0], 12), 4, 'd')
  return tf.losses.sparse_softmax_cross_entropy(b['y'], z, tf.cast(b['y'] > 0, tf.float32))


@case('exact', XY)
def tf_losses_plain(b, is_training):
  y, z = tf.one_hot(b['y'], 4), dense(b['x'], 4, 'd')
  return tf.losses.softmax_cross_entropy(y, z, label_smoothing=0.1) + tf.losses.huber_loss(y, z)


@case('coupled', XY)
def weight_that_grows_from_zero(b, is_training):
  grown = tf.tanh(tf.cast(tf.train.get_or_create_global_step(), tf.float32))
  z = dense(b['x'], 4, 'd')
  return ce(z, b['y']) + grown * tf.square(tf.reduce_mean(z))


@case('coupled', XY)
def entropy_behind_weights_of_zero(b, is_training):
  z = tf.matmul(b['x'], tf.get_variable('w', [6, 4], initializer=tf.zeros_initializer()))
  mean = tf.reduce_mean(tf.nn.softmax(z), 0)
  return ce(z, b['y']) + 0.1 * tf.reduce_sum(mean * tf.log(mean))


@case('exact', XY)
def saturated_entropy_behind_weights_of_zero(b, is_training):
  z = tf.matmul(b['x'], tf.get_variable('w', [6, 1], initializer=tf.zeros_initializer()))[:, 0]
  p = tf.sigmoid(8 * z)  # Rounding decides what is left of 1 - p.
  y = tf.cast(b['y'] > 1, tf.float32)
  return -y * tf.log(p + 1e-7) - (1 - y) * tf.log(1 - p + 1e-7)


@case('coupled', XY)
def hinge_that_no_mean_of_several_reaches(b, is_training):
  shares = tf.reduce_mean(tf.one_hot(b['y'], 4), 0)
  return ce(dense(b['x'], 4, 'd'), b['y']) + tf.reduce_sum(tf.nn.relu(shares - 0.9))
