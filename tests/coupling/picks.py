"""Small models of x `[n, 8]` and y `[n]`, n even, that take examples by their place in a batch.

EXACT, MIXED and UNKNOWN are as in `tests.coupling.models`. SILENT differ on several towers, and
nothing is known of them; STATIC are mixed, and need to know n.
"""

from tensorflow_v1 import tf
from tests.coupling.models import critic, cross_entropy, dense

EXACT, MIXED, UNKNOWN, SILENT, STATIC = {}, {}, {}, {}, {}


def _in(group):
  return lambda model: group.setdefault(model.__name__, model)


def half(x):
  return tf.shape(x)[0] // 2


@_in(MIXED)
def less_the_first(x, y):
  return cross_entropy(x - x[0], y)


@_in(MIXED)
def less_the_first_that_is_kept(x, y):
  return cross_entropy(x - tf.tile(x[:1], [tf.shape(x)[0], 1]), y)


@_in(MIXED)
def plus_the_last(x, y):
  return cross_entropy(dense(x + x[-1], 8), y)


@_in(MIXED)
def times_the_second(x, y):
  return cross_entropy(x * tf.gather(x, [1]), y)


@_in(MIXED)
def less_some_of_the_first(x, y):
  return cross_entropy(x - tf.reduce_mean(tf.slice(x, [0, 0], [2, 8]), 0), y)


@_in(MIXED)
def similar_to_the_first(x, y):
  return cross_entropy(x, y) + tf.matmul(x, x[:1], transpose_b=True)[:, 0]


@_in(MIXED)
def halves_paired(x, y):
  hidden = dense(x, 3)
  return tf.reduce_mean((hidden[:half(x)] - hidden[half(x):]) ** 2)


@_in(MIXED)
def halves_paired_by_split(x, y):
  left, right = tf.split(dense(x, 3), 2)
  return tf.reduce_mean(left * right)


@_in(MIXED)
def halves_in_one_row(x, y):
  return tf.reduce_mean(dense(tf.concat(tf.split(x, 2), 1), 3) ** 2)


@_in(MIXED)
def a_mixture_of_halves(x, y):
  left, right = tf.split(x, 2)
  return tf.reduce_mean(tf.nn.relu(dense(0.7 * left + 0.3 * right, 3)))


@_in(MIXED)
def neighbours(x, y):
  hidden = dense(x, 3)
  return tf.reduce_mean((hidden[1:] - hidden[:-1]) ** 2)


@_in(MIXED)
def labels_of_halves_compared(x, y):
  losses = tf.reduce_sum(tf.split(dense(x, 3), 2)[0] ** 2, 1)
  return tf.reduce_mean(losses * tf.cast(tf.equal(*tf.split(y, 2)), tf.float32))


@_in(MIXED)
def rolled_by_concat(x, y):
  return cross_entropy(x + tf.concat([x[1:], x[:1]], 0), y)


@_in(MIXED)
def halves_swapped(x, y):
  left, right = tf.split(x, 2)
  return cross_entropy(x * tf.concat([right, left], 0), y)


@_in(MIXED)
def two_views_against_each_other(x, y):
  left, right = tf.split(dense(tf.concat([x + 0.1, 2 * x], 0), 6), 2)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=tf.range(tf.shape(x)[0]), logits=tf.matmul(left, right, transpose_b=True))


@_in(MIXED)
def a_relativistic_loss(x, y):
  scores = dense(tf.concat([x, dense(x, 8, 'generator')], 0), 1)[:, 0]
  real, fake = scores[:tf.shape(x)[0]], scores[tf.shape(x)[0]:]
  return tf.nn.softplus(fake - tf.reduce_mean(real))


@_in(EXACT)
def a_gradient_of_two_views(x, y):
  both = critic(tf.concat([x, 2 * x], 0))
  left, right = tf.split(both, 2)
  [step] = tf.gradients([tf.reduce_sum(both), tf.reduce_sum(left ** 2 * right)], [x])
  return tf.reduce_sum(x * step ** 2, 1)


@_in(UNKNOWN)
def a_gradient_of_halves(x, y):
  losses = [tf.reduce_sum(critic(part) ** 2) for part in (x[:half(x)], x[half(x):])]
  return tf.reduce_sum(x * tf.gradients(losses, [x])[0], 1)


@_in(MIXED)
def a_gradient_of_the_mean_of_two_views(x, y):
  [step] = tf.gradients(tf.reduce_mean(critic(tf.concat([x, 2 * x], 0))), [x])
  return tf.reduce_mean(critic(x)) + tf.reduce_mean((tf.norm(step, axis=1) - 1) ** 2)


@_in(EXACT)
def two_views_of_an_example(x, y):
  left, right = tf.split(dense(tf.concat([x + 0.1, 2 * x], 0), 6), 2)
  return tf.reduce_sum(tf.nn.l2_normalize(left, 1) * tf.nn.l2_normalize(right, 1), 1)


@_in(EXACT)
def two_views_apart_by_the_size_of_both(x, y):
  hidden = dense(tf.tile(x, [2, 1]), 6)
  return tf.reduce_sum((hidden[:half(hidden)] - 2 * hidden[half(hidden):]) ** 2, 1)


@_in(EXACT)
def real_and_fake(x, y):
  size = tf.shape(x)[0]
  scores = dense(tf.concat([x, tf.ones([size, 8])], 0), 1)
  labels = tf.concat([tf.ones([size, 1]), tf.zeros([size, 1])], 0)
  return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=scores))


@_in(EXACT)
def noise_for_two(x, y):
  noise = tf.random.uniform([2 * tf.shape(x)[0], 8]) * 0 + 1
  left, right = tf.split(tf.tanh(dense(noise, 8)), 2)
  return cross_entropy(x, y) + tf.reduce_sum(left * right * x, 1)


@_in(EXACT)
def apart_and_joined(x, y):
  return cross_entropy(x * tf.concat([x[:half(x)], x[half(x):]], 0), y)


@_in(EXACT)
def all_rows(x, y):
  size = tf.shape(y)[0]
  return cross_entropy(x[:size] * x[:100] * x[0:] * tf.slice(x, [0, 0], [-1, 8]), y)


@_in(EXACT)
def columns(x, y):
  left, right = tf.split(x, 2, axis=1)
  steps = tf.transpose(tf.reshape(x, [-1, 4, 2]), [1, 0, 2])
  last = steps[-1] - steps[0] + tf.gather(steps, [2])[0] + tf.unstack(steps)[1]
  return cross_entropy(x[:, :1] * x, y) + tf.reduce_sum(left * right, 1) + last[:, 0]


@_in(UNKNOWN)
def each_part_by_itself_and_joined(x, y):
  return cross_entropy(x * tf.concat([tf.tanh(part) for part in tf.split(x, 2)], 0), y)


def loss_of_part(x, y):
  with tf.variable_scope('part', reuse=tf.AUTO_REUSE):
    return tf.reduce_mean(cross_entropy(x, y))


@_in(UNKNOWN)
def means_of_halves_added(x, y):
  loss = sum(loss_of_part(*parts) for parts in zip(tf.split(x, 2), tf.split(y, 2))) / 2
  return tf.where(tf.math.is_finite(loss), loss, tf.zeros_like(loss))


@_in(UNKNOWN)
def sums_of_halves_taken_off(x, y):
  loss = 0.0
  for parts in zip(tf.split(x, 2), tf.split(y, 2)):
    loss -= loss_of_part(*parts) / 2
  return loss


@_in(UNKNOWN)
def a_sum_of_halves_that_are_chosen(x, y):
  loss = tf.zeros([])
  for part in tf.split(x, 2):
    added = tf.reduce_mean(tf.square(part))
    loss = tf.where(added > 0, loss + added, loss)
  return loss


@_in(UNKNOWN)
def a_branch_of_one_task(x, y):
  tasks = 0 * y
  is_first = tf.equal(tasks[0], 0)
  return cross_entropy(tf.cond(is_first, lambda: dense(x, 8), lambda: x * 2), tasks)


@_in(UNKNOWN)
def a_size_of_the_first(x, y):
  sizes = 0 * y[:, None] + [[2, 1]]
  images = tf.image.resize_bilinear(tf.reshape(x, [-1, 4, 2, 1]), sizes[0])
  return tf.reduce_sum(images, [1, 2, 3]) * tf.cast(sizes[:, 0], tf.float32)


@_in(UNKNOWN)
def losses_with_those_of_halves(x, y):
  left, right = tf.split(x, 2)
  return cross_entropy(x, y) + tf.reduce_mean(left) + tf.reduce_mean(right)


@_in(UNKNOWN)
def halves_back_in_their_places(x, y):
  left, right = tf.split(tf.tanh(x), 2)
  both = (tf.pad(left, [[0, half(x)], [0, 0]]) + tf.pad(right, [[half(x), 0], [0, 0]]))
  return cross_entropy(x * both, y)


@_in(EXACT)
def zeros_like_the_first(x, y):
  return cross_entropy(x + tf.zeros_like(x[0]), y)


@_in(UNKNOWN)
def ones_like_the_first_half(x, y):
  return cross_entropy(x * tf.reduce_mean(tf.ones_like(x[:half(x)])), y)


@_in(EXACT)
def a_mask_as_long_as_that_of_the_first(x, y):
  lengths = y * 0 + 3
  steps = tf.cast(tf.sequence_mask(lengths, lengths[0]), tf.float32)
  return cross_entropy(x, y) * tf.reduce_sum(steps, 1)


@_in(MIXED)
def less_the_mean_of_a_group(x, y):
  groups = tf.reshape(x, [2, -1, 8])
  return cross_entropy(tf.reshape(groups - tf.reduce_mean(groups, 0, keepdims=True), [-1, 8]), y)


@_in(MIXED)
def the_deviation_in_a_group_beside_each_example(x, y):
  groups = tf.reshape(x, [tf.minimum(2, tf.shape(x)[0]), -1, 4, 2])
  groups -= tf.reduce_mean(groups, 0, keepdims=True)
  deviation = tf.reduce_mean(tf.sqrt(tf.reduce_mean(tf.square(groups), 0) + 1e-8), [1, 2])
  return cross_entropy(tf.concat([x, tf.tile(deviation, [2])[:, None]], 1), y)


@_in(UNKNOWN)
def a_mean_of_means_of_groups(x, y):
  return tf.reduce_mean(tf.reduce_mean(tf.reshape(cross_entropy(x, y), [2, -1]), 0))


@_in(UNKNOWN)
def groups_that_are_put_back(x, y):
  groups = tf.tanh(tf.reshape(x, [2, -1, 8]))
  return cross_entropy(x * tf.reshape(groups, [-1, 8]), y)


@_in(UNKNOWN)
def groups_of_neighbours(x, y):
  pairs = tf.reshape(x, [-1, 2, 8])
  pairs -= tf.reduce_mean(pairs, 1, keepdims=True)
  return cross_entropy(tf.reshape(pairs, [-1, 8]), y)


@_in(EXACT)
def noise_in_a_shape_taken_apart(x, y):
  size, width = tf.unstack(tf.shape(x))
  return cross_entropy(x + 0 * tf.random.normal([size, width]), y)


@_in(UNKNOWN)
def a_parameter_of_the_batch(x, y):
  return cross_entropy(x * (1 + 0 * tf.cast(y, tf.float32)[0]), y)


@_in(SILENT)
def the_first_half_alone(x, y):
  return tf.reduce_mean(cross_entropy(x[:half(x)], y[:half(y)]))


@_in(SILENT)
def halves_treated_differently(x, y):
  left, right = tf.split(x, 2)
  return tf.reduce_mean(left ** 2) + tf.reduce_mean(tf.abs(right))


@_in(STATIC)
def parts_of_given_sizes(x, y):
  left, middle, _ = tf.split(x, [1, 1, x.shape.as_list()[0] - 2])
  return tf.reduce_mean(dense(left, 3) * dense(middle, 3, 'other'))


@_in(STATIC)
def rows_apart(x, y):
  rows = tf.unstack(x)
  return tf.reduce_mean(dense(rows[0][None], 3) * rows[-1][:3])
