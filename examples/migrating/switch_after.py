"""The same switch, but it takes every example once.  python -m examples.migrating.switch_after"""
import tensorflow.compat.v1 as tf

import towers
from towers.input.feed import build_feed, build_switched_batches
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.placement.devices import build_devices, build_session_config

NUM_GPUS, BATCH_SIZE = 2, 4


def load(name):
  return towers.Examples(1000, lambda: tf.data.Dataset.range(1000), name=name)

devices = build_devices(NUM_GPUS, 'cpu')
plan = build_plan(num_examples=1000, batch_size=BATCH_SIZE, num_towers=NUM_GPUS)
train, validation = [
    build_feed(build_inputs(load(name), plan=plan), devices=devices.names)
    for name in ('train', 'validation')
]
is_validating = tf.placeholder_with_default(False, [], 'is_validating')
batches = build_switched_batches(train, validation, is_validating=is_validating)
taken = []
for batch, device in zip(batches, devices.names):
  with tf.device(device):
    taken.append(tf.identity(batch.tensors))  # The model would build on this.
with tf.Session(config=build_session_config(devices)) as session:
  train.start(session)
  validation.start(session)
  for what, feed in (('training', train), ('training', train), ('validation', validation)):
    numbers = session.run(taken + feed.put_ops, {is_validating: feed is validation})
    print('{}: {}'.format(
        what, ', '.join('tower %d takes %s' % (tower, list(map(int, numbers[tower])))
                        for tower in range(NUM_GPUS))))
print('\n'.join(towers.check_inputs(taken, train.put_ops))
      or 'no batch is lost, and none is taken twice')
