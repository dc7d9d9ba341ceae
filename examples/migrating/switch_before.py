"""Training and validation in one graph, as many try.  python -m examples.migrating.switch_before"""
import tensorflow.compat.v1 as tf

import towers

NUM_GPUS, BATCH_SIZE = 2, 4

is_validating = tf.placeholder(tf.bool, [], 'is_validating')
train = tf.data.make_one_shot_iterator(tf.data.Dataset.range(1000).batch(BATCH_SIZE))
validation = tf.data.make_one_shot_iterator(tf.data.Dataset.range(1000).batch(BATCH_SIZE))
train_batch, validation_batch = train.get_next(), validation.get_next()
batch = tf.cond(is_validating, lambda: validation_batch, lambda: train_batch)
taken = []
for tower in range(NUM_GPUS):
  with tf.device(f'/cpu:{tower}'):
    taken.append(tf.identity(batch))  # The model would build on this.
with tf.Session(config=tf.ConfigProto(device_count={'CPU': NUM_GPUS})) as session:
  for what in ('training', 'training', 'validation'):
    numbers = session.run(taken, {is_validating: what == 'validation'})
    print('{}: {}'.format(
        what, ', '.join('tower %d takes %s' % (tower, list(map(int, numbers[tower])))
                        for tower in range(NUM_GPUS))))
print('\n'.join(towers.check_inputs(taken)))
