"""The same program, with towers.  python -m examples.migrating.tower_loop_after"""
import towers
from tensorflow_v1 import tf
from towers import data

NUM_GPUS, BATCH_SIZE, NUM_STEPS = 2, 32, 125


def model(batch, is_training):
  images, labels = batch
  x = tf.reshape(tf.cast(images, tf.float32) / 255, [-1, 28 * 28])
  for layer, size in enumerate([64, 10]):
    weights = tf.get_variable(f'weights_{layer}', [x.shape[1], size])
    x = tf.matmul(x, weights) + tf.get_variable(f'biases_{layer}', [size],
                                                initializer=tf.zeros_initializer())
    x = x if layer else tf.nn.relu(x)
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, 1e-4 * tf.nn.l2_loss(weights))
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)

images, labels = data.load('sample').train.arrays
examples = data.from_arrays(images, labels)  # Fed once, of any size, shared by all towers.
devices = towers.build_devices(NUM_GPUS, 'cpu')
plan = towers.build_plan(num_examples=examples.num_examples, batch_size=NUM_GPUS * BATCH_SIZE,
                         num_towers=NUM_GPUS)
feed = towers.build_feed(towers.build_inputs(examples, plan=plan, mode='next', shuffle=True),
                         devices=devices.names)
store = towers.build_variable_store(devices=devices.names)
reduced = towers.average_gradients(
    towers.build_towers(model, towers.build_batches(feed), devices=devices.names, store=store))
train_op = towers.build_train_op(reduced, optimizer=tf.train.GradientDescentOptimizer(0.1))
with tf.Session(config=towers.build_session_config(devices)) as session:
  session.run(tf.global_variables_initializer())
  feed.start(session)
  for _ in range(NUM_STEPS):
    value = session.run([reduced.loss, train_op])[0]  # The mean over the global batch.
  print(f'loss after {NUM_STEPS} steps: {value:.4f}')
