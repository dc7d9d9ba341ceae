"""A run of main.py whose device has memory for fewer examples than its share of a batch.

  python -m tests.harness.capped_run MEGABYTES [flags of main.py]    0: no cap; 100@1: for worker 1

The cap is that of TensorFlow's own pool on the CPU, which every tower of the process shares. A step
holds 200 kB per example and more: 800 MB for a batch of 4,096.
"""

import os
import sys

import numpy as np

from towers.placement.cluster import read_cluster

NUM_EXAMPLES, NUM_FEATURES = 10000, 64
HERE = 'tests.harness.capped_run'
FLAGS = [f'--data={HERE}:load', f'--model={HERE}:model', '--device=cpu', '--batch_size=4096',
         '--optimizer=adam', '--validate_every=1000epochs', '--accumulate=auto']


def load():
  """Examples of random features, and of labels that follow from them."""
  import towers
  features = np.random.RandomState(0).randn(NUM_EXAMPLES, NUM_FEATURES).astype(np.float32)
  labels = (features[:, :3].sum(1) > 0).astype(np.int32)
  return towers.from_arrays(features, labels), towers.from_arrays(
      features[:100], labels[:100], name='validation')


def model(batch, is_training):
  """A model of few weights and many activations: 64 values of each feature, four times."""
  from towers.tensorflow_v1 import tf
  del is_training
  features, labels = batch
  values = tf.expand_dims(features, 2)
  for layer in range(4):
    shape = [NUM_FEATURES, 64]
    scale = tf.get_variable(f'scale_{layer}', shape, initializer=tf.random_normal_initializer())
    shift = tf.get_variable(f'shift_{layer}', shape, initializer=tf.zeros_initializer())
    values = tf.tanh(values * scale + shift)
  weights = tf.get_variable('weights', [NUM_FEATURES * 64, 2])
  logits = tf.matmul(tf.reshape(values, [-1, NUM_FEATURES * 64]), weights)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


if __name__ == '__main__':
  megabytes, _, rank = sys.argv[1].partition('@')
  if int(megabytes) and (not rank or int(rank) == read_cluster(os.environ).rank):
    os.environ['TF_CPU_ALLOCATOR_USE_BFC'] = '1'
    os.environ['TF_CPU_BFC_MEM_LIMIT_IN_MB'] = megabytes
  import main
  sys.exit(main.main([sys.argv[0], *FLAGS, *sys.argv[2:]]))
