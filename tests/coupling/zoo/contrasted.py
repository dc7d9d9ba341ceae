"""Models that compare examples or keep some of them."""

from tests.coupling.zoo.parts import XY, arrays, case, ce, contrib, dense, state, update
from towers.tensorflow_v1 import tf


def emb(b, d=4):
  return tf.nn.l2_normalize(dense(b['x'], d, 'd'), 1)


@case('coupled', XY)
def moco_queue_scatter(b, is_training):
  q, k = emb(b), tf.stop_gradient(tf.nn.l2_normalize(b['x'][:, :4] * 1.0, 1))
  queue = tf.get_variable('queue', [18, 4], initializer=tf.random_normal_initializer(),
                          trainable=False)
  p = tf.get_variable('p', [], tf.int32, initializer=tf.zeros_initializer(), trainable=False)
  logits = tf.concat([tf.reduce_sum(q * k, 1, keepdims=True),
                      tf.matmul(q, queue.read_value(), transpose_b=True)], 1)
  n = tf.shape(k)[0]
  update(tf.scatter_update(queue, (p + tf.range(n)) % 18, k))
  update(p.assign((p + n) % 18))
  return ce(logits, tf.zeros_like(b['y']))


@case('coupled', XY)
def triplet_batch_hard(b, is_training):
  e = emb(b)
  s = tf.reduce_sum(e * e, 1, keepdims=True)
  d = tf.maximum(s - 2 * tf.matmul(e, e, transpose_b=True) + tf.transpose(s), 0.0)
  same = tf.cast(tf.equal(b['y'][:, None], b['y'][None, :]), tf.float32)
  pos, neg = tf.reduce_max(d * same, 1), tf.reduce_min(d + 10 * same, 1)
  return tf.nn.relu(pos - neg + 0.3)


@case('coupled', XY)
def triplet_broadcast(b, is_training):
  e = emb(b)
  d = tf.norm(e[:, None] - e[None] + 1e-6, axis=2)
  return tf.reduce_mean(tf.nn.relu(1.0 - d), 1)


@case('coupled', XY, tf1=True)
def contrib_triplet_semihard(b, is_training):
  return contrib.losses.metric_learning.triplet_semihard_loss(b['y'], emb(b))


@case('coupled', XY)
def nt_xent(b, is_training):
  n = tf.shape(b['x'])[0]
  z = tf.concat([emb(b), tf.nn.l2_normalize(b['x'][:, :4], 1)], 0)
  sim = tf.matmul(z, z, transpose_b=True) / 0.5 - 1e9 * tf.eye(2 * n)
  lab = tf.concat([tf.range(n) + n, tf.range(n)], 0)
  return tf.reduce_mean(ce(sim, lab))


@case('coupled', XY)
def info_nce_einsum(b, is_training):
  q = emb(b)
  k = tf.nn.l2_normalize(b['x'][:, :4], 1)
  return ce(tf.einsum('id,jd->ij', q, k) * 4, tf.range(tf.shape(q)[0]))


@case('coupled', XY)
def barlow_twins(b, is_training):
  z1, z2 = dense(b['x'], 4, 'd'), dense(b['x'] * 0.9 + 0.1, 4, 'e')
  c = tf.matmul(z1, z2, transpose_a=True) / tf.cast(tf.shape(z1)[0], tf.float32)
  return tf.reduce_sum(tf.square(c - tf.eye(4)))


@case('coupled', arrays('x', 'y', 'b'))
def mmd_two_domains(b, is_training):
  z = dense(b['x'], 4, 'd', tf.tanh)
  a = tf.boolean_mask(z, tf.equal(b['b'], 0))
  c = tf.boolean_mask(z, tf.equal(b['b'], 1))
  gap = tf.reduce_mean(a, 0) - tf.reduce_mean(c, 0)
  return tf.reduce_mean(ce(dense(z, 4, 'o'), b['y'])) + tf.reduce_sum(tf.square(gap))


@case('coupled', XY)
def center_loss(b, is_training):
  z = dense(b['x'], 4, 'd')
  c = state('centers', [4, 4])
  mine = tf.gather(c, b['y'])
  update(tf.scatter_sub(c, b['y'], 0.1 * (mine - tf.stop_gradient(z))))
  return ce(dense(z, 4, 'o'), b['y']) + 0.1 * tf.reduce_sum(tf.square(z - mine), 1)


@case('coupled', XY)
def vq_ema_codebook(b, is_training):
  z = dense(b['x'], 4, 'd')
  book = tf.get_variable('book', [5, 4], initializer=tf.random_normal_initializer(),
                         trainable=False)
  i = tf.argmin(tf.reduce_sum(tf.square(z[:, None] - book[None]), 2), 1)
  one = tf.one_hot(i, 5)
  n = tf.reduce_sum(one, 0)
  means = tf.matmul(one, tf.stop_gradient(z), transpose_a=True) / tf.maximum(n, 1)[:, None]
  update(book.assign(tf.where(n > 0, 0.9 * book + 0.1 * means, book.read_value())))
  zq = tf.gather(book, i)
  losses = ce(dense(z + tf.stop_gradient(zq - z), 4, 'o'), b['y'])
  return losses + 0.25 * tf.reduce_sum(tf.square(z - zq), 1)


@case('coupled', XY)
def sinkhorn(b, is_training):
  q = tf.exp(dense(b['x'], 4, 'd'))
  for _ in range(2):
    q = q / tf.reduce_sum(q, 0, keepdims=True)
    q = q / tf.reduce_sum(q, 1, keepdims=True)
  logs = tf.nn.log_softmax(dense(b['x'], 4, 'p'))
  return ce(dense(b['x'], 4, 'o'), b['y']) - tf.reduce_sum(tf.stop_gradient(q) * logs, 1)


@case('coupled', XY)
def self_attention_between_examples(b, is_training):
  x = dense(b['x'], 4, 'd')
  return ce(dense(tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x), 4, 'o'), b['y'])


@case('coupled', XY)
def mixup_reversed(b, is_training):
  z = dense(0.7 * b['x'] + 0.3 * tf.reverse(b['x'], [0]), 4, 'd')
  return 0.7 * ce(z, b['y']) + 0.3 * ce(z, tf.reverse(b['y'], [0]))


@case('coupled', XY)
def mixup_shuffled(b, is_training):
  p = tf.random.shuffle(tf.range(tf.shape(b['x'])[0]))
  z = dense(0.7 * b['x'] + 0.3 * tf.gather(b['x'], p), 4, 'd')
  return 0.7 * ce(z, b['y']) + 0.3 * ce(z, tf.gather(b['y'], p))
