"""The same, with towers, switch and loop in plain view.  python -m
examples.migrating.estimator_after
"""
import os
import tempfile

import towers
from tensorflow_v1 import tf
from towers import data

NUM_GPUS, BATCH_SIZE, STEPS, EVERY = 2, 64, 126, 63


def model(batch, is_training):
  images, labels = batch
  x = tf.reshape(tf.cast(images, tf.float32) / 255, [-1, 28 * 28])
  for layer, size in enumerate([64, 10]):
    weights = tf.get_variable(f'weights_{layer}', [x.shape[1], size])
    x = tf.matmul(x, weights) + tf.get_variable(f'biases_{layer}', [size],
                                                initializer=tf.zeros_initializer())
    x = x if layer else tf.nn.relu(x)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)
  return losses, {'accuracy': tf.equal(tf.argmax(x, 1, output_type=tf.int32), labels)}

def feed(examples, shuffle):
  plan = towers.build_plan(num_examples=examples.num_examples, batch_size=BATCH_SIZE,
                           num_towers=NUM_GPUS)
  return towers.build_feed(towers.build_inputs(examples, plan=plan, shuffle=shuffle),
                           devices=devices.names)

sample = data.load('sample')
devices = towers.build_devices(NUM_GPUS, 'cpu')
train, validate = feed(sample.train, True), feed(sample.validation, False)
is_validating = tf.placeholder_with_default(False, [])
all_towers = towers.build_towers(
    model, towers.build_switched_batches(train, validate, is_validating=is_validating),
    devices=devices.names, store=towers.build_variable_store(devices=devices.names),
    is_training=tf.logical_not(is_validating))
train_op = towers.build_train_op(towers.average_gradients(all_towers),
                                 optimizer=tf.train.MomentumOptimizer(0.05, 0.9))
validation = towers.build_validation(all_towers, feed=validate, is_validating=is_validating)
with tempfile.TemporaryDirectory() as folder, tf.Session(
    config=towers.build_session_config(devices)) as session:
  session.run(tf.global_variables_initializer())
  train.start(session)
  validate.start(session)
  saver = tf.train.Saver()
  for step in range(1, STEPS + 1):
    session.run(train_op)
    if step % EVERY == 0:
      saver.save(session, os.path.join(folder, 'model'), step)
      sums = sum(session.run(validation.sums, {is_validating: True})
                 for _ in range(validate.inputs.plan.steps_per_epoch))
  means = dict(zip(validation.names, sums[:-1] / sums[-1]))
  print(f"accuracy after {STEPS} steps: {means['accuracy']:.3f}")
