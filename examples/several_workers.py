"""own_model.py on several workers.  python -m towers.launch --workers=2 -- python -m
examples.several_workers
"""
import json
import os

import numpy as np

import towers
from tensorflow_v1 import tf

config = json.loads(os.environ.get('TF_CONFIG') or '{"cluster": {"worker": [""]}, "task": '
                                                   '{"index": 0}}')
addresses, rank = config['cluster']['worker'], config['task']['index']
workers = towers.Workers(len(addresses), rank)

angles = np.random.RandomState(0).uniform(1, 10, 3000)
labels = np.arange(3000) % 2
points = np.stack(
    [angles * np.cos(angles + np.pi * labels), angles * np.sin(angles + np.pi * labels)], 1)
examples = towers.Examples(3000, lambda: tf.data.Dataset.from_tensor_slices(
    (np.float32(points), labels)))

def model(batch, is_training):
  x, labels = batch
  for layer, (size, next_size) in enumerate([(2, 64), (64, 64), (64, 2)]):
    weights = tf.get_variable(f'weights_{layer}', [size, next_size])
    x = tf.matmul(x if layer == 0 else tf.nn.relu(x), weights) + tf.get_variable(
        f'biases_{layer}', [next_size])
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)

devices = towers.build_devices(2, 'cpu')
# Every worker takes its share of the same global batch …
plan = towers.build_plan(num_examples=examples.num_examples, batch_size=100, num_towers=2,
                         num_workers=len(addresses), rank=rank)
feed = towers.build_feed(towers.build_inputs(examples, plan=plan, mode='split', shuffle=True),
                         devices=devices.names)
store = towers.build_variable_store(devices=devices.names, rank=rank)
all_towers = towers.build_towers(model, towers.build_batches(feed), devices=devices.names,
                                 store=store, workers=workers)
# … and computes the mean over all of it, to the same bits as the others.
reduced = towers.average_gradients(all_towers, workers=workers)
train_op = towers.build_train_op(reduced, optimizer=tf.train.AdamOptimizer(0.005))
session_config = towers.build_session_config(devices, workers=workers)
target = ''
if len(addresses) > 1:
  server = tf.train.Server({'worker': addresses}, job_name='worker', task_index=rank,
                           config=session_config)
  target = server.target
with tf.Session(target, config=session_config) as session:
  session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
  if len(addresses) > 1:
    session.run(towers.build_broadcast(workers).all_op)  # Broadcast the chief's variables.
  feed.start(session)
  for _ in range(1200):
    loss = session.run([reduced.loss, train_op])[0]
  print(f'loss after 1200 steps: {loss:.4f}')
server = None  # Ends it while Python can still do so.
