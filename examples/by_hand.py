"""own_model.py without towers.Program, from its parts.  python -m examples.by_hand"""
import numpy as np
import tensorflow.compat.v1 as tf

import towers
from towers.coupling.check import check_towers
from towers.input.feed import build_batches, build_feed
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.placement.devices import build_devices, build_session_config
from towers.placement.variables import VariableStore
from towers.reduce.average import average_gradients
from towers.tower.towers import build_towers
from towers.update.apply import build_train_op

angles = np.random.RandomState(0).uniform(1, 10, 3000)
labels = np.arange(3000) % 2
points = np.stack(
    [angles * np.cos(angles + np.pi * labels), angles * np.sin(angles + np.pi * labels)], 1)
examples = towers.from_arrays(np.float32(points), labels)

def model(batch, is_training):
  x, labels = batch
  for layer, (size, next_size) in enumerate([(2, 64), (64, 64), (64, 2)]):
    weights = tf.get_variable(f'weights_{layer}', [size, next_size])
    x = tf.matmul(x if layer == 0 else tf.nn.relu(x), weights) + tf.get_variable(
        f'biases_{layer}', [next_size])
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)

devices = build_devices(2, 'cpu')
plan = build_plan(num_examples=examples.num_examples, batch_size=100, num_towers=2)
feed = build_feed(build_inputs(examples, plan=plan, mode='split', shuffle=True),
                  devices=devices.names)
batches = build_batches(feed)
store = VariableStore(devices=devices.names)
built = build_towers(model, batches, devices=devices.names, store=store)
gradients = average_gradients(built)
train_op = build_train_op(gradients, optimizer=tf.train.AdamOptimizer(0.005))
with tf.Session(config=build_session_config(devices)) as session:
  session.run(tf.global_variables_initializer())
  # A model that computes from several examples at once is named here.
  check_towers(built, session, feed.start(session, peeks=True))
  for _ in range(1200):
    loss = session.run([gradients.loss, train_op])[0]
  print(f'loss after 1200 steps: {loss:.4f}')
