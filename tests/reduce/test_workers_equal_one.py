"""The law: W workers of N towers are one tower on the whole batch, and all the same to the bit.

The models, data and points are those of `test_towers_equal_one`, with workers beside towers, rows
of tables that are sent whole or not, and gradients that cross in 16 bits.
"""

import numpy as np
import pytest

from tests import test_towers_equal_one as law
from tests.harness import small
from tests.harness.covering import cover
from tests.harness.in_process_cluster import InProcessCluster
from tests.reduce.test_rows import LARGE, SMALL, make_model
from towers.tensorflow_v1.collectives import SUMS_16_BITS

NUM_STEPS = 5
ROWS = {'few rows': make_model(SMALL), 'many rows': make_model(LARGE),
        'weighted rows': make_model(LARGE, is_weighted=True)}
MODELS = {**law.MODELS, **ROWS}
# A gradient is rounded where it is sent, and where shares are added up on the way.
WIRES = dict(float32=2e-5, **(dict(bfloat16=4e-3, float16=5e-4) if SUMS_16_BITS else {}))
UPDATES = {'momentum': dict(), 'adam, clipped': dict(optimizer='adam', clip_norm=0.3),
           'sgd': dict(optimizer='sgd'),
           'averaged weights': dict(average_weights=0.9),
           'frozen': dict(frozen='hidden/biases', rate_factors='hidden/=0.5,logits/=2')}
AXES = dict(
    shape=[(2, 2), (3, 1), (4, 1), (2, 1)], placement=['replicated', 'host', 'balanced', 'first'],
    model=list(MODELS), data=[data for data in law.DATA if data not in law.OWN_MODELS],
    size=[33, 41, 40], update=list(UPDATES), wire=list(WIRES), mode=list(small.MODES),
    depth=[1, 2, 0], accumulate=[1, 2], last_batch=['keep', 'pad', 'drop'],
    tower_build=['clone', 'reuse'])


def is_valid(point):
  num_workers, num_towers = point.get('shape', (1, 1))
  update = point.get('update', '')
  if update == 'frozen' and point.get('model') in (*ROWS, 'contrasted'):
    return False  # They have no hidden layer.
  if point.get('model') == 'contrasted' and point.get('last_batch') == 'pad':
    return False  # Its queue is computed from all rows.
  # Adam moves by the sign of the smallest gradient, which is rounded away.
  return not ('adam' in update and point.get('wire', 'float32') != 'float32') and law.is_valid(
      {**point, 'num_towers': num_workers * num_towers})


def settings_of(point):
  """Returns the settings that one tower has as well."""
  size = point['size']
  return dict(UPDATES[point['update']], model=MODELS[point['model']], batch_size=law.BATCH,
              batch_norm='sync', weight_decay=0.01, learning_rate=0.02,
              train=law.DATA[point['data']](size), last_batch=point['last_batch'],
              validation=small.random_examples(40 if size == 40 else 31, 'validation', seed=1))


PAIRS = cover(AXES, strength=2, is_valid=is_valid)
CHOSEN = [next(point for point in PAIRS if (point['model'], point['wire']) == chosen)
          for chosen in (('many rows', list(WIRES)[-1]), ('drawn', 'float32'))]


@pytest.mark.parametrize('point', small.nightly_but(CHOSEN, PAIRS),
                         ids=lambda point: '-'.join(map(str, point.values())))
def test_workers_equal_one_tower(point):
  num_workers, num_towers = point['shape']
  layout = {name: point[name] for name in ('placement', 'wire', 'mode', 'depth', 'accumulate',
                                           'tower_build')}
  settings, tolerance = settings_of(point), WIRES[point['wire']]
  with InProcessCluster(num_workers=num_workers, num_towers=num_towers, **layout,
                        **settings) as cluster, small.Run(num_towers=1, depth=0, **settings) as one:
    # Nothing is rounded but gradients, so the loss of the first step is not.
    assert cluster.train() == pytest.approx(one.train(), abs=2e-5)
    for _ in range(NUM_STEPS - 1):
      assert cluster.train() == pytest.approx(one.train(), abs=tolerance)
    small.assert_moved(one.initial_weights, one.weights(), at_least=2e-4)
    assert [run.counters() for run in cluster.runs] == [one.counters()] * num_workers
    expected, found = one.variables(), [run.variables() for run in cluster.runs]
    weights = set(one.weights())
    for values in found:
      names = expected if point['wire'] == 'float32' else weights
      small.assert_same_weights({name: values[name] for name in names},
                                {name: expected[name] for name in names}, tolerance)
      assert all(np.array_equal(values[name], found[0][name]) for name in weights)
    means, num_examples = one.validate()
    for theirs, count in cluster.each(small.Run.validate):
      assert count == num_examples and theirs == pytest.approx(means, abs=tolerance)
    assert cluster.train() == pytest.approx(one.train(), abs=tolerance)
