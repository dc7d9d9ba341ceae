"""The law: W workers of N towers are one tower on the whole batch, and all the same to the bit.

The models, data and points are those of `test_towers_equal_one`, with workers beside towers.
"""

import numpy as np
import pytest

from tensorflow_v1 import tf
from tests import test_towers_equal_one as law
from tests.harness import small
from tests.harness.covering import cover
from tests.harness.in_process_cluster import InProcessCluster
from tests.harness.small import Run, assert_moved, assert_same_weights

NUM_STEPS = 5
UPDATES = {'momentum': dict(), 'adam, clipped': dict(optimizer='adam', clip_norm=0.3),
           'averaged weights': dict(average_weights=0.9),
           'frozen': dict(frozen='hidden/biases', rate_factors='hidden/=0.5,logits/=2')}
AXES = dict(
    shape=[(2, 2), (3, 1), (4, 1), (2, 1)], placement=['replicated', 'host', 'balanced', 'first'],
    model=list(law.MODELS), data=list(law.DATA), size=[33, 41, 40], update=list(UPDATES),
    mode=list(small.MODES), depth=[1, 2, 0], accumulate=[1, 2], last_batch=['keep', 'pad', 'drop'],
    tower_build=['clone', 'reuse'])


def is_valid(point):
  num_workers, num_towers = point.get('shape', (1, 1))
  return law.is_valid({**point, 'num_towers': num_workers * num_towers})


def settings_of(point):
  """Returns the settings that one tower has as well."""
  size = point['size']
  return dict(UPDATES[point['update']], model=law.MODELS[point['model']], batch_size=law.BATCH,
              batch_norm='sync', weight_decay=0.01, learning_rate=0.02,
              train=law.DATA[point['data']](size), last_batch=point['last_batch'],
              validation=small.random_examples(40 if size == 40 else 31, 'validation', seed=1))


def read(run):
  with run.graph.as_default():
    variables = {variable.op.name: variable for variable in tf.global_variables()
                 if not variable.op.name.startswith('copies/')}
    return run.session.run(variables)


PAIRS = cover(AXES, strength=2, is_valid=is_valid)


@pytest.mark.parametrize('point', small.nightly_but(PAIRS[:2], PAIRS),
                         ids=lambda point: '-'.join(map(str, point.values())))
def test_workers_equal_one_tower(point):
  num_workers, num_towers = point['shape']
  layout = {name: point[name] for name in ('placement', 'mode', 'depth', 'accumulate',
                                           'tower_build')}
  settings = settings_of(point)
  with InProcessCluster(num_workers=num_workers, num_towers=num_towers, **layout,
                        **settings) as cluster, Run(num_towers=1, depth=0, **settings) as one:
    for _ in range(NUM_STEPS):
      assert cluster.train() == pytest.approx(one.train(), abs=2e-5)
    assert_moved(one.initial_weights, one.weights())
    expected, found = read(one), [read(run) for run in cluster.runs]
    weights = set(one.weights())
    for values in found:
      assert_same_weights(values, expected, 2e-5)
      assert all(np.array_equal(values[name], found[0][name]) for name in weights)
    means, num_examples = one.validate()
    for theirs, count in cluster.each(Run.validate):
      assert count == num_examples and theirs == pytest.approx(means, abs=2e-5)
    assert cluster.train() == pytest.approx(one.train(), abs=2e-5)
