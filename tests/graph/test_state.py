"""State that a model keeps itself by UPDATE_OPS: once per step, from the first tower's batch."""

import numpy as np
import pytest

from tests.harness import small
from tests.harness.in_process_cluster import InProcessCluster
from towers.tensorflow_v1 import tf

NUM_STEPS, NUM_ROWS = 5, 16
QUEUE = 6


def keeping(batch, is_training):
  """Counts steps, keeps a moving average of its features, and a queue of the newest rows."""
  features, _ = batch
  zeros = dict(initializer=tf.zeros_initializer(), trainable=False)
  count = tf.get_variable('count', [], tf.int64, **zeros)
  average = tf.get_variable('average', [small.NUM_FEATURES], **zeros)
  queue = tf.get_variable('queue', [QUEUE, small.NUM_FEATURES], **zeros)
  rows = tf.concat([features, queue.read_value()], 0)[:QUEUE]
  for update in (count.assign_add(1), queue.assign(rows),
                 average.assign_sub(0.3 * (average - tf.reduce_mean(features, 0)))):
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
  return small.model(batch, is_training)


def first_rows(step, *, mode, num_towers, accumulate, num_workers=1):
  """Returns the rows of the chief's first tower in the last micro-batch of a step."""
  size = 8 // accumulate
  begin = step * 8 % NUM_ROWS + (accumulate - 1) * size
  rows = range(begin, begin + size)
  if mode == 'shard':
    return [row for row in rows if row % (num_towers * num_workers) == 0]
  rows = [row for row in rows if row % num_workers == 0]
  return rows[:-(-len(rows) // num_towers)]


def expect(**setting):
  """Returns count, moving average and queue after all steps."""
  features, _ = small.random_examples(NUM_ROWS).arrays
  average, queue = np.zeros(small.NUM_FEATURES), np.zeros([QUEUE, small.NUM_FEATURES])
  for step in range(NUM_STEPS):
    rows = features[first_rows(step, **setting)]
    average -= 0.3 * (average - rows.mean(0))
    queue = np.concatenate([rows, queue])[:QUEUE]
  return NUM_STEPS, average, queue


def read(run):
  variables = run.variables()
  return [variables[name] for name in ('count', 'average', 'queue')]


def assert_kept(run, expected):
  count, average, queue = read(run)
  assert count == expected[0]
  np.testing.assert_allclose(average, expected[1], rtol=0, atol=1e-5)
  np.testing.assert_allclose(queue, expected[2], rtol=0, atol=1e-6)


@pytest.mark.nightly(but='shard')
@pytest.mark.parametrize('mode, num_towers, accumulate, settings', [
    ('split', 1, 1, {}), ('next', 3, 1, dict(placement='replicated', tower_build='clone')),
    ('shard', 2, 2, {}), ('split', 2, 4, dict(validation_tower=True))],
    ids=['one', 'next', 'shard', 'aside'])
def test_the_first_towers_last_micro_batch_counts_once(mode, num_towers, accumulate, settings):
  towers_that_train = num_towers - bool(settings.get('validation_tower'))
  expected = expect(mode=mode, num_towers=towers_that_train, accumulate=accumulate)
  with small.Run(mode=mode, num_towers=num_towers, accumulate=accumulate, model=keeping,
                 validates=True, train=small.random_examples(NUM_ROWS), **settings) as run:
    run.train(NUM_STEPS)
    assert_kept(run, expected)
    run.validate()
    assert_kept(run, expected)


@pytest.mark.nightly
def test_of_workers_the_chiefs_counts_once_they_validate():
  chief = expect(mode='split', num_towers=2, accumulate=1, num_workers=2)
  with InProcessCluster(num_workers=2, num_towers=2, mode='split', model=keeping, validates=True,
                        train=small.random_examples(NUM_ROWS)) as cluster:
    cluster.train(NUM_STEPS)
    assert_kept(cluster.runs[0], chief)
    assert abs(read(cluster.runs[1])[1] - chief[1]).max() > 0.01
    cluster.each(lambda run: run.validate())
    for run in cluster.runs:
      assert_kept(run, chief)
