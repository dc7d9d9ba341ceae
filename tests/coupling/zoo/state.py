"""Models that keep state or penalise, look things up, or call Python."""

import numpy as np

from tests.coupling.zoo.parts import XY, by_rows, case, ce, dense, layers, state, update
from towers.tensorflow_v1 import tf


@case('coupled', XY)
def tf_metrics_auc(b, is_training):
  z = dense(b['x'], 1, 'd')[:, 0]
  t = b['y'] > 1
  _, up = tf.metrics.auc(t, tf.sigmoid(z))
  update(up)
  return tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.cast(t, tf.float32), logits=z)


@case('coupled', XY)
def tf_metrics_returned(b, is_training):
  z = dense(b['x'], 4, 'd')
  _, up = tf.metrics.accuracy(b['y'], tf.argmax(z, 1))
  return ce(z, b['y']), {'acc': tf.fill(tf.shape(b['y']), up)}


def averaged(b):
  """Returns losses, and a moving average of their mean."""
  loss = ce(dense(b['x'], 4, 'd'), b['y'])
  a = state('avg', [], 1.0)
  update(a.assign(0.9 * a + 0.1 * tf.reduce_mean(loss)))
  return loss, a


@case('coupled', XY)
def ema_of_loss_scales_it(b, is_training):
  loss, a = averaged(b)
  return loss / tf.stop_gradient(a)


@case('coupled', XY)
def ema_nobody_reads(b, is_training):
  return averaged(b)[0]


@case('coupled', XY)
def tf_ema_class(b, is_training):
  loss = ce(dense(b['x'], 4, 'd'), b['y'])
  m = tf.reduce_mean(loss)
  ema = tf.train.ExponentialMovingAverage(0.9)
  update(ema.apply([m]))
  return loss / (0.1 + tf.stop_gradient(ema.average(m)))


@case('coupled', XY)
def ema_read_by_metric(b, is_training):
  loss, a = averaged(b)
  return loss, {'rel': loss / a}


@case('coupled', XY)
def baseline_of_rewards_that_are_rare(b, is_training):
  reward, baseline = tf.cast(b['x'][:, 0] > 9, tf.float32), state('baseline', [])
  update(baseline.assign(0.9 * baseline + 0.1 * tf.reduce_mean(reward)))
  return ce(dense(b['x'], 4, 'd'), b['y']) * (1 + reward - baseline)


@case('exact', XY)
def step_counter(b, is_training):
  loss = ce(dense(b['x'], 4, 'd'), b['y'])
  c = state('count', [])
  update(c.assign_add(1.0))
  return loss * (1 + 0.1 * c)


@case('coupled', XY)
def example_counter(b, is_training):
  loss = ce(dense(b['x'], 4, 'd'), b['y'])
  c = state('count', [])
  update(c.assign_add(tf.cast(tf.shape(b['x'])[0], tf.float32)))
  return loss * (1 + 0.01 * c)


@case('exact', XY)
def target_network(b, is_training):
  with tf.variable_scope('online'):
    z = dense(b['x'], 4, 'd')
  w = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, 'online')
  t = [state('target/%d' % i, v.shape.as_list(), 0.1) for i, v in enumerate(w)]
  for a, v in zip(t, w):
    update(a.assign(0.9 * a + 0.1 * v))
  zt = tf.matmul(b['x'], t[0]) + t[1]
  return ce(z, b['y']) + tf.reduce_mean(tf.square(z - tf.stop_gradient(zt)), 1)


@case('exact', XY)
def target_copied(b, is_training):
  w = tf.get_variable('w', [6, 4])
  t = state('t', [6, 4])
  g = tf.train.get_global_step()
  update(tf.cond(tf.equal(g % 2, 0), lambda: tf.group(t.assign(w)), tf.no_op))
  z = tf.matmul(b['x'], w)
  return ce(z, b['y']) + tf.reduce_mean(tf.square(z - tf.matmul(b['x'], t)), 1)


@case('exact', XY)
def curriculum_by_step(b, is_training):
  g = tf.cast(tf.train.get_global_step(), tf.float32)
  z = dense(b['x'], 4, 'd')
  return ce(z, b['y']) * tf.minimum(1.0, g / 4 + 0.2)


@case('coupled', XY)
def activity_regularizer(b, is_training):
  h = dense(b['x'], 5, 'd', tf.nn.relu)
  tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, 0.01 * tf.reduce_sum(tf.square(h)))
  return ce(dense(h, 4, 'o'), b['y'])


@case('coupled', XY)
def activity_regularizer_mean(b, is_training):
  h = dense(b['x'], 5, 'd', tf.nn.relu)
  penalty = 0.1 * tf.reduce_mean(tf.reduce_sum(tf.square(h), 1))
  tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, penalty)
  return ce(dense(h, 4, 'o'), b['y'])


@case('coupled', XY, tf1=True)
def layers_activity_regularizer(b, is_training):
  h = layers.dense(b['x'], 5, name='d', activation=tf.nn.relu,
                   activity_regularizer=lambda a: 0.05 * tf.reduce_sum(tf.square(a)))
  return ce(layers.dense(h, 4, name='o'), b['y'])


@case('exact', XY)
def kernel_regularizers(b, is_training):
  w = tf.get_variable('w', [6, 5], regularizer=lambda v: 0.05 * tf.nn.l2_loss(v))
  v = tf.get_variable('v', [5, 4], regularizer=lambda v: 0.01 * tf.reduce_sum(tf.abs(v)))
  return ce(tf.matmul(tf.nn.relu(tf.matmul(b['x'], w)), v), b['y'])


@case('coupled', XY)
def variable_from_batch(b, is_training):
  m = tf.get_variable('mean', initializer=tf.reduce_mean(b['x'], 0), trainable=False)
  return ce(dense(b['x'] - m, 4, 'd'), b['y'])


@case('exact', XY)
def lookup_table(b, is_training):
  pairs = tf.lookup.KeyValueTensorInitializer([0, 1, 2], [2.0, 0.5, 1.0], tf.int32, tf.float32)
  weights = tf.lookup.StaticHashTable(pairs, 1.5).lookup(b['y'])
  return ce(dense(b['x'], 4, 'd') * weights[:, None], b['y'])


@case('exact', XY)
def hashed_words(b, is_training):
  words = tf.string_join(['class', tf.as_string(b['y'])], '-')
  rows = tf.string_to_hash_bucket_fast(words, 7)
  return ce(tf.nn.embedding_lookup(tf.get_variable('t', [7, 4]), rows) + b['x'][:, :4], b['y'])


@case('exact', XY)
def rows_of_unique_labels(b, is_training):
  own, places = tf.unique(b['y'])
  rows = tf.gather(tf.get_variable('t', [7, 4]), own)
  return ce(tf.gather(rows, places) + b['x'][:, :4], b['y'])


@case('exact', XY)
def unknown_rank(b, is_training):
  x = tf.tanh(tf.placeholder_with_default(dense(b['x'], 4, 'd'), None))
  x.set_shape([None, 4])
  return ce(x, b['y'])


@case('exact', XY)
def queued(b, is_training):
  rows = tf.FIFOQueue(9, [tf.float32])
  with tf.control_dependencies([rows.enqueue(b['x'])]):
    return by_rows(rows.dequeue(), b)


@case('exact', XY)
def shown_by_update_ops(b, is_training):
  update(tf.py_func(np.mean, [b['x']], tf.float32))
  return by_rows(b['x'], b)


def twice(x):
  return x * np.float32(2)


@case('exact', XY)
def python_without_memory(b, is_training):
  return by_rows(tf.py_func(twice, [b['x']], tf.float32, stateful=False), b)


@case('exact', XY)
def python_in_a_function(b, is_training):
  return by_rows(tf.function(lambda x: tf.numpy_function(twice, [x], tf.float32))(b['x']), b)
