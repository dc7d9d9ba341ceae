"""The loop of TensorFlow's cifar10 tutorial: towers by hand.

  python -m examples.migrating.tower_loop_before
"""
import tensorflow.compat.v1 as tf

from towers import data

NUM_GPUS, BATCH_SIZE, NUM_STEPS = 2, 32, 125


def tower_loss(images, labels):
  x = tf.reshape(tf.cast(images, tf.float32) / 255, [-1, 28 * 28])
  for layer, size in enumerate([64, 10]):
    weights = tf.get_variable(f'weights_{layer}', [x.shape[1], size])
    x = tf.matmul(x, weights) + tf.get_variable(f'biases_{layer}', [size],
                                                initializer=tf.zeros_initializer())
    x = x if layer else tf.nn.relu(x)
    tf.add_to_collection('losses', 1e-4 * tf.nn.l2_loss(weights))
  return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x))

def average_gradients(tower_gradients):
  reduced = []
  for pairs in zip(*tower_gradients):
    stacked = tf.stack([gradient for gradient, _ in pairs])
    reduced.append((tf.reduce_mean(stacked, 0), pairs[0][1]))
  return reduced

images, labels = data.load('sample').train.arrays
dataset = tf.data.Dataset.from_tensor_slices(
    (images, labels))  # The graph holds all images: 2 GB at most.
iterator = tf.data.make_one_shot_iterator(dataset.shuffle(4000, seed=0).batch(BATCH_SIZE).repeat())
optimizer = tf.train.GradientDescentOptimizer(0.1)
tower_gradients = []
with tf.variable_scope(tf.get_variable_scope()):
  for tower in range(NUM_GPUS):
    with tf.device(f'/cpu:{tower}'), tf.name_scope(f'tower_{tower}') as scope:
      loss = tower_loss(*iterator.get_next())
      # Each tower adds the penalties of all weights again; the mean over towers undoes that.
      total = tf.add_n([loss] + tf.get_collection('losses', scope))
      tf.get_variable_scope().reuse_variables()
      tower_gradients.append(optimizer.compute_gradients(total))
train_op = optimizer.apply_gradients(average_gradients(tower_gradients))
with tf.Session(
    config=tf.ConfigProto(device_count={'CPU': NUM_GPUS}, allow_soft_placement=True)) as session:
  session.run(tf.global_variables_initializer())
  for _ in range(NUM_STEPS):
    value, _ = session.run([loss, train_op])  # The loss of the last tower alone.
  print(f'loss after {NUM_STEPS} steps: {value:.4f}')
