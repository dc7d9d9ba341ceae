"""Small models of x `[n, 8]` and y `[n]`, by what towers make of them.

EXACT, MIXED and SCALED say how: as on one tower; other, since examples are mixed; of another scale.
UNKNOWN are exact, but have an op that no rule follows.
"""

from tensorflow_v1 import tf

EXACT, MIXED, SCALED, UNKNOWN = {}, {}, {}, {}


def _in(group):
  return lambda model: group.setdefault(model.__name__, model)


def dense(x, size, name='dense'):
  with tf.variable_scope(name):
    weights = tf.get_variable('w', [int(x.shape[-1]), size])
    return tf.matmul(x, weights) + tf.get_variable('b', [size], initializer=tf.zeros_initializer())


def cross_entropy(x, y):
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=dense(x, 4, 'logits'))


def count(x):
  return tf.cast(tf.shape(x)[0], tf.float32)


def mask(y):
  return tf.cast(y > 0, tf.float32)


@_in(EXACT)
def a_loss_per_example(x, y):
  return cross_entropy(x, y)


@_in(EXACT)
def a_mean(x, y):
  return tf.reduce_mean(cross_entropy(x, y))


@_in(EXACT)
def a_mean_and_a_penalty(x, y):
  loss = tf.reduce_mean(cross_entropy(x, y))
  return loss + 1e-3 * tf.add_n([tf.nn.l2_loss(one) for one in tf.trainable_variables()])


@_in(EXACT)
def a_sum_divided_by_the_number_of_examples(x, y):
  return tf.reduce_sum(cross_entropy(x, y)) / count(x)


@_in(EXACT)
def a_loss_of_tf_losses(x, y):
  return tf.losses.sparse_softmax_cross_entropy(y, dense(x, 4))


@_in(EXACT)
def a_squared_error_of_tf_losses(x, y):
  return tf.losses.mean_squared_error(tf.one_hot(y, 4), dense(x, 4))


@_in(EXACT)
def noise(x, y):
  x += 0 * tf.random.normal(tf.shape(x))
  return cross_entropy(x + 0 * tf.random.normal([tf.shape(x)[0], 8]), y)


@_in(EXACT)
def attention_within_an_example(x, y):
  steps = tf.reshape(x, [-1, 4, 2])
  scores = tf.nn.softmax(tf.matmul(steps, steps, transpose_b=True))
  return cross_entropy(tf.reshape(tf.matmul(scores, steps), [tf.shape(x)[0], 8]), y)


@_in(EXACT)
def a_dense_layer_on_each_step(x, y):
  steps = dense(tf.reshape(x, [-1, 2]), 3)
  return cross_entropy(tf.reshape(steps, [-1, 12]), y)


@_in(EXACT)
def convolutions(x, y):
  images = tf.reshape(x, [-1, 4, 2, 1])
  kernel = tf.get_variable('kernel', [2, 2, 1, 3])
  images = tf.nn.relu(tf.nn.conv2d(images, kernel, strides=[1, 1, 1, 1], padding='SAME'))
  return cross_entropy(tf.reduce_max(images, [1, 2]), y)


@_in(EXACT)
def a_convolution_over_time(x, y):
  kernel = tf.get_variable('kernel', [2, 1, 3])
  return cross_entropy(tf.reduce_max(tf.nn.conv1d(x[:, :, None], kernel, 1, 'SAME'), 1), y)


@_in(EXACT)
def an_embedding(x, y):
  table = tf.get_variable('table', [9, 8])
  return cross_entropy(x + tf.nn.embedding_lookup(table, y), y)


@_in(EXACT)
def a_layer_norm(x, y):
  mean, variance = tf.nn.moments(x, [1], keep_dims=True)
  return cross_entropy((x - mean) * tf.rsqrt(variance + 1e-3), y)


@_in(UNKNOWN)
def a_mapped_function(x, y):
  return cross_entropy(tf.map_fn(tf.tanh, x), y)


@_in(EXACT)
def a_mask_as_long_as_the_longest(x, y):
  steps = tf.cast(tf.sequence_mask(y + 1, tf.reduce_max(y) + 1), tf.float32)
  return cross_entropy(x, y) * tf.reduce_sum(steps, 1)


def losses_of_steps(x, y, length):
  return tf.reduce_sum(tf.reshape(dense(x, 8), [-1, 4, 2])[:, :length] ** 2, 2)


@_in(EXACT)
def positions_up_to_the_longest(x, y):
  length = tf.reduce_max(y + 1)
  steps = tf.cast(tf.sequence_mask(y + 1, length), tf.float32)
  weights = tf.get_variable('positions', [4])[:length]
  return tf.reduce_sum(losses_of_steps(x, y, length) * steps * weights, 1)


@_in(UNKNOWN)
def a_number_of_steps_less_the_largest(x, y):
  steps = tf.reduce_max(y) - y
  return cross_entropy(x, y) + 0 * tf.cast(steps, tf.float32)


@_in(MIXED)
def a_mean_over_sequences_as_long_as_the_longest(x, y):
  steps = tf.cast(tf.sequence_mask(y + 1), tf.float32)
  losses = losses_of_steps(x, y, tf.shape(steps)[1])
  return tf.reduce_sum(losses * steps) / (tf.reduce_sum(steps) + 1e-12)


@_in(MIXED)
def a_mean_over_sequences_from_a_loop(x, y):
  losses = losses_of_steps(tf.map_fn(tf.tanh, x), y, 4)
  steps = tf.cast(tf.sequence_mask(y + 1, tf.shape(losses)[1]), tf.float32)
  return tf.reduce_sum(losses * steps) / tf.reduce_sum(steps)


@_in(EXACT)
def a_mean_over_the_steps_of_an_example(x, y):
  steps = tf.cast(tf.sequence_mask(y + 1, 4), tf.float32)
  return tf.reduce_sum(dense(x, 4) ** 2 * steps, 1) / tf.reduce_sum(steps, 1)


@_in(EXACT)
def a_branch(x, y):
  hidden = dense(x, 8)
  validates = tf.placeholder_with_default(False, [])
  return cross_entropy(tf.cond(validates, lambda: hidden * 2, lambda: hidden + hidden), y)


@_in(EXACT)
def moves_of_axes(x, y):
  left, right = tf.split(tf.transpose(x), 2)
  pieces = tf.unstack(tf.stack([left, right, tf.tile(left, [1, 1])]), axis=1)
  columns = [tf.expand_dims(piece[0], 1) for piece in pieces]
  joined = tf.squeeze(tf.concat(columns, 1)[:, :, None], 2)
  return cross_entropy(tf.pad(joined, [[0, 0], [0, 1]]), y)


@_in(EXACT)
def a_linear_function_of_a_mean(x, y):
  products = tf.matmul(dense(x, 3), x, transpose_a=True) / count(x)
  return tf.reduce_mean(cross_entropy(x, y)) + tf.reduce_sum(products)


@_in(MIXED)
def in_batch_negatives(x, y):
  hidden = tf.nn.l2_normalize(dense(x, 6), 1)
  scores = 5 * tf.matmul(hidden, hidden, transpose_b=True)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=tf.range(tf.shape(x)[0]), logits=scores)


@_in(MIXED)
def distances_of_all_pairs(x, y):
  hidden = dense(x, 3)
  squares = tf.reduce_sum((hidden[:, None] - hidden[None]) ** 2, 2)
  return tf.reduce_mean(squares * tf.cast(tf.equal(y[:, None], y[None]), tf.float32), 1)


@_in(MIXED)
def a_column_less_a_vector(x, y):
  return tf.reduce_mean((dense(x, 1) - tf.cast(y, tf.float32)) ** 2)


@_in(MIXED)
def moments_of_the_batch(x, y):
  mean, variance = tf.nn.moments(x, [0])
  return cross_entropy((x - mean) * tf.rsqrt(variance + 1e-3), y)


@_in(MIXED)
def a_mean_over_a_mask(x, y):
  return tf.reduce_sum(cross_entropy(x, y) * mask(y)) / tf.reduce_sum(mask(y))


@_in(MIXED)
def a_mask_of_tf_losses(x, y):
  return tf.losses.sparse_softmax_cross_entropy(y, dense(x, 4), weights=mask(y))


@_in(MIXED)
def a_mean_of_a_loop_over_a_mask(x, y):
  losses = cross_entropy(tf.map_fn(tf.tanh, x), y)
  return tf.reduce_sum(losses * mask(y)) / (tf.reduce_sum(mask(y)) + 1e-6)


@_in(MIXED)
def a_mean_of_chosen_examples(x, y):
  return tf.reduce_mean(tf.boolean_mask(cross_entropy(x, y), y > 0))


@_in(MIXED)
def a_mean_of_chosen_steps(x, y):
  steps = tf.boolean_mask(tf.reshape(x, [-1, 4, 2]), tf.sequence_mask(y + 1, 4))
  return tf.reduce_mean(dense(steps, 3) ** 2)


@_in(MIXED)
def a_sum_divided_by_the_number_of_chosen(x, y):
  losses = cross_entropy(x, y)
  chosen = tf.gather_nd(losses, tf.where(y > 0))
  return tf.reduce_sum(chosen) / tf.cast(tf.size(chosen), tf.float32)


@_in(MIXED)
def a_sum_divided_by_the_shape_of_chosen(x, y):
  chosen = tf.boolean_mask(cross_entropy(x, y), y > 0)
  return tf.reduce_sum(chosen) / count(chosen)


@_in(MIXED)
def means_of_two_parts(x, y):
  parts = tf.dynamic_partition(cross_entropy(x, y), tf.cast(y > 0, tf.int32), 2)
  return tf.add_n([tf.reduce_sum(part) / tf.reduce_sum(tf.ones_like(part)) for part in parts])


@_in(EXACT)
def a_sum_of_chosen_divided_by_the_number_of_examples(x, y):
  return tf.reduce_sum(tf.boolean_mask(cross_entropy(x, y), y > 0)) / count(x)


@_in(SCALED)
def a_sum_of_chosen_examples(x, y):
  return tf.reduce_sum(tf.boolean_mask(cross_entropy(x, y), y > 0))


@_in(MIXED)
def the_root_of_a_mean(x, y):
  return tf.sqrt(tf.reduce_mean(cross_entropy(x, y)))


@_in(MIXED)
def the_hardest_examples(x, y):
  return tf.reduce_mean(tf.nn.top_k(cross_entropy(x, y), 2).values)


@_in(MIXED)
def weights_that_are_a_softmax_of_losses(x, y):
  losses = cross_entropy(x, y)
  return losses * tf.stop_gradient(tf.nn.softmax(losses))


@_in(MIXED)
def a_running_sum(x, y):
  return cross_entropy(tf.cumsum(x), y)


@_in(MIXED)
def examples_backwards(x, y):
  return cross_entropy(tf.reverse(x, [0]), y)


@_in(MIXED)
def each_example_with_the_one_before(x, y):
  return cross_entropy(x + tf.roll(x, 1, 0), y)


@_in(MIXED)
def each_example_with_one_from_the_end(x, y):
  return cross_entropy(0.7 * x + 0.3 * x[::-1], y)


@_in(EXACT)
def elements_of_an_example_rolled_and_backwards(x, y):
  return cross_entropy(tf.roll(x, 1, 1) * x[:, ::-1], y)


@_in(MIXED)
def distances_from_the_means_of_classes(x, y):
  hidden = dense(x, 3)
  return tf.reduce_sum((hidden - tf.gather(tf.unsorted_segment_mean(hidden, y, 4), y)) ** 2, 1)


@_in(MIXED)
def weights_by_the_size_of_a_class(x, y):
  counts = tf.scatter_nd(y[:, None], tf.ones_like(x[:, 0]), [4])
  return cross_entropy(x, y) * tf.gather(counts, y)


@_in(MIXED)
def weights_by_a_histogram(x, y):
  counts = tf.math.bincount(y, minlength=4, maxlength=4, dtype=tf.float32)
  return cross_entropy(x, y) * tf.gather(1 / (counts + 1), y)


@_in(EXACT)
def a_sum_of_classes_divided_by_the_number_of_examples(x, y):
  return tf.reduce_sum(tf.unsorted_segment_sum(cross_entropy(x, y), y, 4)) / count(x)


@_in(UNKNOWN)
def elements_put_in_the_place_of_a_class(x, y):
  places = 4 * tf.range(tf.shape(x)[0]) + y
  table = tf.scatter_nd(places[:, None], x[:, 0], tf.shape(tf.tile(y, [4])))
  return cross_entropy(x, y) * tf.reduce_sum(tf.reshape(table, [-1, 4]), 1)


@_in(MIXED)
def the_determinant_of_a_covariance(x, y):
  hidden = dense(x, 3)
  products = tf.matmul(hidden, hidden, transpose_a=True) / count(x)
  return tf.reduce_mean(cross_entropy(x, y)) - tf.linalg.logdet(products + tf.eye(3))


@_in(EXACT)
def determinants_of_each_example(x, y):
  matrices = tf.reshape(x, [-1, 4, 2])
  products = tf.matmul(matrices, matrices, transpose_a=True) + tf.eye(2)
  return cross_entropy(x, y) - tf.linalg.det(products)


@_in(MIXED)
def a_square_of_a_mean(x, y):
  hidden = dense(x, 3)
  return tf.reduce_sum((tf.matmul(hidden, hidden, transpose_a=True) / count(x)) ** 2)


@_in(SCALED)
def a_sum(x, y):
  return tf.reduce_sum(cross_entropy(x, y))


@_in(SCALED)
def a_sum_divided_by_a_constant(x, y):
  return tf.reduce_sum(cross_entropy(x, y)) / 10


@_in(SCALED)
def an_l2_loss(x, y):
  return tf.nn.l2_loss(dense(x, 4) - tf.one_hot(y, 4))


@_in(SCALED)
def a_sum_and_a_penalty(x, y):
  return tf.reduce_sum(cross_entropy(x, y)) + tf.nn.l2_loss(tf.trainable_variables()[0])


@_in(SCALED)
def losses_divided_by_the_number_of_examples(x, y):
  return cross_entropy(x, y) / count(x)


def critic(x):
  with tf.variable_scope('critic', reuse=tf.AUTO_REUSE):
    return dense(tf.nn.tanh(dense(x, 5, 'hidden')), 1, 'score')


def critic_of_images(x):
  with tf.variable_scope('critic', reuse=tf.AUTO_REUSE):
    images = tf.reshape(x, [-1, 4, 2, 1])
    kernel = tf.get_variable('kernel', [2, 2, 1, 3])
    images = tf.nn.leaky_relu(tf.nn.conv2d(images, kernel, strides=[1, 1, 1, 1], padding='SAME'))
    images = tf.nn.avg_pool(images, [1, 2, 2, 1], [1, 2, 2, 1], 'SAME')
    return dense(tf.reduce_mean(tf.nn.bias_add(images, tf.ones([3])), [1, 2]), 1)


def gradient_norm(value, x):
  return tf.sqrt(tf.reduce_sum(tf.square(tf.gradients(value, [x])[0]), 1) + 1e-12)


@_in(EXACT)
def a_gradient_penalty(x, y):
  mixed = x + tf.random.uniform([tf.shape(x)[0], 1]) * 0
  return cross_entropy(x, y) + 10 * (gradient_norm(critic(mixed), mixed) - 1) ** 2


@_in(EXACT)
def a_gradient_penalty_of_a_sum(x, y):
  return tf.reduce_mean(cross_entropy(x, y)) + tf.reduce_mean(
      (gradient_norm(tf.reduce_sum(critic(x)), x) - 1) ** 2)


@_in(EXACT)
def a_gradient_penalty_on_images(x, y):
  return cross_entropy(x, y) + (gradient_norm(critic_of_images(x), x) - 1) ** 2


@_in(EXACT)
def a_step_as_long_as_one_along_the_gradient_of_a_mean(x, y):
  [step] = tf.gradients(tf.reduce_mean(critic(x) ** 2), [x])
  step /= tf.norm(step, axis=1, keepdims=True) + 1e-12
  return tf.reduce_mean(critic(x + 0.1 * tf.stop_gradient(step)))


@_in(EXACT)
def the_sign_of_the_gradient_of_a_mean(x, y):
  [step] = tf.gradients(tf.reduce_mean(cross_entropy(x, y)), [x])
  return tf.reduce_mean(critic(x + 0.1 * tf.sign(step)))


@_in(EXACT)
def a_gradient_of_a_mean_that_is_summed(x, y):
  return tf.reduce_sum(tf.gradients(tf.reduce_mean(cross_entropy(x, y)), [x])[0])


@_in(EXACT)
def a_gradient_of_a_mean_that_is_multiplied_by_the_number_of_examples(x, y):
  [step] = tf.gradients(tf.reduce_mean(critic(x) ** 2), [x])
  return tf.reduce_sum((step * count(x)) ** 2, 1)


@_in(EXACT)
def a_linear_function_of_the_gradient_of_weights(x, y):
  loss = tf.reduce_mean(critic(x) ** 2)
  return loss + sum(tf.reduce_sum(one) for one in tf.gradients(loss, tf.trainable_variables()))


@_in(EXACT)
def an_inner_step_for_each_example(x, y):
  code = tf.zeros_like(x[:, :3])
  code -= 0.1 * tf.gradients(tf.reduce_sum((critic(code) - x) ** 2, 1), [code])[0]
  return tf.reduce_sum((critic(code) - x) ** 2, 1)


@_in(MIXED)
def an_inner_step_along_a_mean_for_each_example(x, y):
  code = tf.zeros_like(x[:, :3])
  loss = tf.reduce_mean(tf.reduce_sum((critic(code) - x) ** 2, 1))
  return tf.reduce_sum((critic(code - tf.gradients(loss, [code])[0]) - x) ** 2, 1)


@_in(SCALED)
def a_square_of_the_gradient_of_a_mean(x, y):
  [step] = tf.gradients(tf.reduce_mean(critic(x)), [x])
  return tf.reduce_mean(cross_entropy(x, y)) + tf.reduce_mean(tf.reduce_sum(step ** 2, 1))


@_in(SCALED)
def a_sum_of_gradients_of_weights(x, y):
  critic(x)
  weights = tf.trainable_variables()
  return sum(tf.reduce_sum(one) for one in tf.gradients(critic(x) ** 2, weights))


@_in(MIXED)
def a_gradient_penalty_of_a_mean(x, y):
  return tf.reduce_mean(cross_entropy(x, y)) + tf.reduce_mean(
      (gradient_norm(tf.reduce_mean(critic(x)), x) - 1) ** 2)


@_in(MIXED)
def a_gradient_penalty_of_a_mean_of_images(x, y):
  return cross_entropy(x, y) + (gradient_norm(tf.reduce_mean(critic_of_images(x)), x) - 1) ** 2


@_in(MIXED)
def a_gradient_penalty_of_a_mean_loss(x, y):
  losses = cross_entropy(x, y)
  return losses + tf.nn.relu(gradient_norm(tf.reduce_mean(losses), x) - 0.1)


@_in(MIXED)
def a_step_along_the_gradient_of_a_mean(x, y):
  [step] = tf.gradients(tf.reduce_mean(critic(x) ** 2), [x])
  return tf.reduce_mean(critic(x - step))


@_in(MIXED)
def the_norm_of_the_gradient_of_weights(x, y):
  loss = tf.reduce_mean(critic(x) ** 2)
  return loss + tf.global_norm(tf.gradients(loss, tf.trainable_variables()))


@_in(MIXED)
def an_inner_step(x, y):
  weights = tf.get_variable('inner', [8, 1])
  [step] = tf.gradients(tf.reduce_mean(tf.matmul(x, weights) ** 2), [weights])
  return tf.reduce_mean((tf.matmul(x, weights - 0.5 * step) - 1) ** 2)
