"""Models that compute on sequences, in loops, or draw."""

import towers
from tests.coupling.zoo.parts import SEQ, XY, by_rows, case, ce, contrib, dense, update
from towers.tensorflow_v1 import tf


@case('exact', SEQ)
def ctc(b, is_training):
  z = dense(tf.one_hot(b['s'], 12), 6, 'd')
  lab = tf.minimum(b['t'][:, :2], 4)
  lab = tf.stack([lab[:, 0], (lab[:, 0] + 1 + lab[:, 1] % 3) % 5], 1)
  n = tf.shape(lab)[0]
  idx = tf.where(lab > -1)
  sp = tf.SparseTensor(idx, tf.gather_nd(lab, idx), tf.cast([n, 2], tf.int64))
  return tf.nn.ctc_loss(sp, tf.transpose(z, [1, 0, 2]), tf.fill([n], 5))


@case('exact', SEQ)
def ctc_v2(b, is_training):
  z = dense(tf.one_hot(b['s'], 12), 6, 'd')
  lab = tf.stack([b['t'][:, 0] % 2, 2 + b['t'][:, 1] % 3], 1)
  n = tf.shape(lab)[0]
  f = tf.nn.ctc_loss_v2
  return f(lab, z, tf.fill([n], 2), tf.fill([n], 5), logits_time_major=False, blank_index=5)


def attend(q, k, mask):
  s = tf.matmul(q, k, transpose_b=True) - 1e9 * (1 - mask)[:, None, :]
  return tf.matmul(tf.nn.softmax(s), k)


def s2s(b):
  table = tf.get_variable('emb', [12, 6])
  src, tgt = tf.nn.embedding_lookup(table, b['s']), tf.nn.embedding_lookup(table, b['t'])
  mask = tf.sequence_mask(b['l'], 5, dtype=tf.float32)
  enc = dense(src, 6, 'enc', tf.tanh)
  h = tgt + attend(dense(tgt, 6, 'q'), enc, mask)
  z = tf.tensordot(dense(h, 6, 'f', tf.nn.relu), table, [[2], [1]])
  return z, ce(z, b['t']), mask


@case('exact', SEQ)
def seq2seq_tied_weighted(b, is_training):
  z, loss, mask = s2s(b)
  right = tf.equal(tf.argmax(z, 2, output_type=tf.int32), b['t'])
  return towers.Weighted(loss, mask), {'acc': towers.Weighted(right, mask)}


@case('coupled', SEQ)
def seq2seq_token_mean(b, is_training):
  _, loss, mask = s2s(b)
  return tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)


@case('exact', SEQ)
def lstm_last_state(b, is_training):
  x = tf.one_hot(b['s'], 12)
  cell = (contrib.rnn.LSTMCell if contrib else tf.nn.rnn_cell.LSTMCell)(5, name='cell')
  out, st = tf.nn.dynamic_rnn(cell, x, sequence_length=b['l'], dtype=tf.float32)
  return ce(dense(st.h, 4, 'o'), b['y'])


@case('exact', SEQ)
def bert_gather(b, is_training):
  h = dense(tf.one_hot(b['s'], 12), 6, 'd')
  n = tf.shape(h)[0]
  pos = tf.stack([b['l'] - 1, b['l'] // 2], 1)
  flat = tf.reshape(pos + tf.range(0, n)[:, None] * 5, [-1])
  g = tf.gather(tf.reshape(h, [n * 5, 6]), flat)
  loss = ce(dense(g, 12, 'o'), tf.reshape(tf.gather(tf.reshape(b['t'], [-1]), flat), [-1]))
  return tf.reduce_mean(tf.reshape(loss, [-1, 2]), 1)


@case('coupled', SEQ)
def bert_masked_lm(b, is_training):
  z = dense(tf.one_hot(b['s'], 12), 12, 'd')
  loss = ce(tf.reshape(z, [-1, 12]), tf.reshape(b['t'], [-1]))
  w = tf.reshape(tf.sequence_mask(b['l'], 5, dtype=tf.float32), [-1])
  return tf.reduce_sum(w * loss) / (tf.reduce_sum(w) + 1e-5)


@case('exact', SEQ, tf1=True)
def crf(b, is_training):
  z = dense(tf.one_hot(b['s'], 12), 4, 'd')
  ll, _ = contrib.crf.crf_log_likelihood(z, b['t'] % 4, b['l'])
  return -ll


@case('exact', SEQ)
def while_decoder(b, is_training):
  x = tf.one_hot(b['s'], 12)
  w = tf.get_variable('w', [12, 4])
  u = tf.get_variable('u', [4, 4])
  n = tf.shape(x)[0]

  def body(i, h, tot):
    h2 = tf.tanh(tf.matmul(x[:, i], w) + tf.matmul(h, u))
    live = tf.cast(i < b['l'], tf.float32)[:, None]
    h = live * h2 + (1 - live) * h
    return i + 1, h, tot + live[:, 0] * ce(h, b['t'][:, i] % 4)

  shapes = [tf.TensorShape([]), tf.TensorShape([None, 4]), tf.TensorShape([None])]
  return tf.while_loop(lambda i, h, t: i < tf.reduce_max(b['l']), body,
                       [0, tf.zeros([n, 4]), tf.zeros([n])], shape_invariants=shapes)[2]


def loop(goes_on, turn, b):
  """Returns rows that begin with zeros, after the turns of a loop."""
  return tf.while_loop(
      goes_on, lambda i, z: (i + 1, turn(z)), [0, tf.zeros([tf.shape(b['x'])[0], 4])],
      shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 4])])[1]


@case('coupled', XY)
def while_until_batch_converges(b, is_training):
  w = tf.get_variable('w', [6, 4])
  z = loop(lambda i, z: tf.logical_and(i < 12, tf.reduce_mean(tf.abs(z)) < 0.2),
           lambda z: 0.6 * z + 0.4 * tf.tanh(tf.matmul(b['x'], w) + z), b)
  return ce(z, b['y'])


@case('coupled', XY)
def while_batch_mean_inside(b, is_training):
  w = tf.get_variable('w', [6, 4])
  z = loop(lambda i, z: i < 3,
           lambda z: tf.tanh(tf.matmul(b['x'], w) + z - tf.reduce_mean(z, 0)), b)
  return ce(z, b['y'])


@case('coupled', XY)
def stateful_rnn(b, is_training):
  h = tf.get_variable('h', [16, 4], initializer=tf.zeros_initializer(), trainable=False)
  n = tf.shape(b['x'])[0]
  new = tf.tanh(dense(b['x'], 4, 'd') + tf.matmul(h[:n], tf.get_variable('u', [4, 4])))
  update(h.assign(tf.concat([tf.stop_gradient(new), h[n:]], 0)))
  return ce(dense(new, 4, 'o'), b['y'])


@case('exact', XY)
def map_fn(b, is_training):
  w = tf.get_variable('w', [6, 4])
  z = tf.map_fn(lambda r: tf.linalg.matvec(w, r / (tf.norm(r) + 1.0), transpose_a=True), b['x'])
  return ce(z, b['y'])


@case('coupled', XY)
def scan_over_batch(b, is_training):
  return ce(tf.scan(lambda a, r: 0.5 * a + r, dense(b['x'], 4, 'd')), b['y'])


@case('exact', SEQ)
def ragged_mean(b, is_training):
  r = tf.RaggedTensor.from_tensor(b['s'], lengths=b['l'])
  table = tf.get_variable('t', [12, 4])
  e = tf.ragged.map_flat_values(tf.nn.embedding_lookup, table, r)
  return ce(tf.reduce_mean(e, axis=1), b['y'])


@case('exact', SEQ)
def segment_sum_by_example(b, is_training):
  n = tf.shape(b['s'])[0]
  seg = tf.reshape(tf.tile(tf.range(n)[:, None], [1, 5]), [-1])
  v = tf.gather(tf.get_variable('t', [12, 4]), tf.reshape(b['s'], [-1]))
  return ce(tf.math.unsorted_segment_mean(v, seg, n), b['y'])


@case('exact', SEQ)
def embedding_lookup_sparse(b, is_training):
  idx = tf.where(tf.sequence_mask(b['l'], 5))
  sp = tf.SparseTensor(idx, tf.cast(tf.gather_nd(b['s'], idx), tf.int64),
                       tf.cast(tf.shape(b['s']), tf.int64))
  table = tf.get_variable('t', [12, 4])
  return ce(tf.nn.embedding_lookup_sparse(table, sp, None, combiner='mean', max_norm=0.5), b['y'])


@case('exact', SEQ)
def rows_of_a_table_in_a_loop(b, is_training):
  table = tf.get_variable('t', [12, 4])
  rows = tf.map_fn(lambda ids: tf.matmul(tf.gather(table, ids), table, transpose_b=True)[:, 0],
                   b['s'], dtype=tf.float32)
  rows.set_shape([None, 5])
  return ce(dense(rows, 4, 'd'), b['y'])


@case('exact', XY)
def array_that_grows(b, is_training):
  rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=[None, 4])

  def body(i, rows, x):
    x = tf.tanh(x)
    return i + 1, rows.write(i, x), x + tf.cast(i, tf.float32)

  _, rows, _ = tf.while_loop(lambda i, *_: i < 3, body, (0, rows, dense(b['x'], 4, 'd')))
  return ce(tf.reduce_sum(rows.stack(), 0), b['y'])


@case('exact', XY)
def array_of_rows(b, is_training):
  rows = tf.TensorArray(tf.float32, tf.shape(b['x'])[0]).unstack(tf.identity(b['x']))
  return by_rows(rows.stack(), b)


@case('exact', XY)
def loop_in_a_branch_in_a_loop(b, is_training):
  def body(i, x):
    def inner():
      return tf.while_loop(lambda j, _: j < i, lambda j, x: (j + 1, tf.sin(x)), (0, x))[1]

    return i + 1, tf.cond(i > 1, lambda: tf.tanh(x), inner)

  return ce(tf.while_loop(lambda i, _: i < 3, body, (0, dense(b['x'], 4, 'd')))[1], b['y'])


@case('exact', XY)
def functions(b, is_training):
  w = tf.get_variable('w', [6, 4])

  @tf.function
  def double(x):
    return 2 * tf.tanh(tf.matmul(x, w))

  return ce(double(b['x']) + double(b['x'] * 0.5), b['y'])


@case('random', SEQ)
def sampled_softmax(b, is_training):
  h = dense(tf.one_hot(b['s'][:, 0], 12), 6, 'd')
  return tf.nn.sampled_softmax_loss(tf.get_variable('w', [12, 6]), tf.get_variable('b', [12]),
                                    tf.cast(b['t'][:, :1], tf.int64), h, 4, 12)


@case('random', XY)
def noise_per_example(b, is_training):
  return ce(dense(b['x'] + 0.1 * tf.random.normal(tf.shape(b['x'])), 4, 'd'), b['y'])


@case('random', XY)
def batch_level_dropout(b, is_training):
  z = dense(b['x'], 8, 'd', tf.nn.relu)
  return ce(dense(tf.nn.dropout(z, rate=0.5, noise_shape=[1, 8]), 4, 'o'), b['y'])


@case('random', XY)
def branch_dropped_at_random(b, is_training):
  z = dense(b['x'], 4, 'd')
  return ce(tf.cond(tf.random.uniform([]) < 0.5, lambda: z, lambda: z * 0.1), b['y'])


@case('random', XY)
def gumbel_multinomial(b, is_training):
  z = dense(b['x'], 4, 'd')
  a = tf.random.categorical(tf.stop_gradient(z), 1)[:, 0]
  return ce(z, tf.cast(a, tf.int32)) * b['x'][:, 0]


@case('random', XY)
def dropout_in_while(b, is_training):
  w = tf.get_variable('w', [6, 4])
  z = loop(lambda i, z: i < 3,
           lambda z: tf.nn.dropout(tf.tanh(tf.matmul(b['x'], w) + z), rate=0.3), b)
  return ce(z, b['y'])


@case('random', XY)
def gamma_noise(b, is_training):
  return ce(dense(b['x'] * tf.random.gamma(tf.shape(b['x']), 5.0) / 5, 4, 'd'), b['y'])
