"""Towers on constants, without input or training loop, to compare two ways to build them."""

import collections

import numpy as np

import towers
from tensorflow_v1 import tf
from tests.harness import small
from towers.placement.replicas import follow_writes

BATCH = 4

Outcome = collections.namedtuple('Outcome', 'values graph scopes')


def build(tower_build, model, *, num_towers=3, placement='host', prepare=lambda: None):
  """Returns the results of towers on features [4, 5] and labels [4], their graph and scopes.

  Args:
    tower_build: 'reuse', 'clone' or 'auto'.
    model: as for `build_towers`.
    num_towers: on as many devices.
    placement: of variables.
    prepare: called before the towers are built.
  """
  random = np.random.RandomState(0)
  devices = towers.build_devices(num_towers, 'cpu')
  with tf.Graph().as_default() as graph:
    is_training = tf.logical_not(tf.placeholder_with_default(False, [], 'is_validating'))
    prepare()
    batches = [make_batch(random) for _ in range(num_towers)]
    store = towers.build_variable_store(devices=devices.names, placement=placement, seed=3)
    built = towers.build_towers(model, batches, devices=devices.names, store=store,
                                is_training=is_training, build=tower_build)
    reduced = towers.average_gradients(built)
    fetches = [reduced.loss, reduced.gradients, tf.get_collection('seen')]
    for tower in built:
      fetches += [tower.loss, tower.sums, [part for part in tower.gradients if part is not None]]
    follow_writes([])
    with tf.Session(config=towers.build_session_config(devices)) as session:
      session.run([tf.global_variables_initializer(), tf.local_variables_initializer(),
                   tf.tables_initializer()])
      values = tf.nest.flatten(session.run(fetches))
      return Outcome(values, graph, [tower.scope for tower in built])


def make_batch(random):
  features = random.randn(BATCH, small.NUM_FEATURES)
  labels = random.randint(small.NUM_CLASSES, size=BATCH)
  return towers.Batch((tf.constant(features, tf.float32, name='features'),
                       tf.constant(labels, tf.int32, name='labels')), BATCH)


def assert_same_values(left, right):
  """Asserts that two outcomes hold the same bits, tower by tower."""
  assert left.scopes == right.scopes
  assert len(left.values) == len(right.values)
  for one, other in zip(left.values, right.values):
    np.testing.assert_array_equal(one, other)


def names_of_towers(outcome):
  """Returns the names of all ops of the towers."""
  return [op.name for op in outcome.graph.get_operations()
          if op.name.startswith(tuple(outcome.scopes))]
