"""Accumulation: what is summed over the micro-batches of a step, where, and how often it moves.

That a step in micro-batches is one on the whole batch, `tests/test_towers_equal_one.py` shows.
"""

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed
from towers.tower.batch_norm_layer import batch_norm
from towers.tower.global_batch import GlobalBatch


def test_moving_averages_move_once_by_the_mean_of_all_micro_batches():
  def model(batch, is_training):
    features, labels = batch
    x = batch_norm(features, is_training, name='norm', momentum=0.75)
    return small.classify(x, labels)

  train = small.random_examples(12)
  parts = np.split(train.arrays[0], 3)
  with small.Run(model=model, num_towers=2, batch_size=12, accumulate=3, batch_norm='sync',
                 train=train) as run:
    run.train()
    moving = run.variables()
  np.testing.assert_allclose(moving['norm/moving_mean'],
                             0.25 * np.mean([part.mean(0) for part in parts], 0), atol=1e-6)
  np.testing.assert_allclose(moving['norm/moving_variance'],
                             0.75 + 0.25 * np.mean([part.var(0, ddof=1) for part in parts], 0),
                             atol=1e-6)


def test_sums_stand_with_their_variables_and_are_cleared_behind_the_update():
  with small.Run(num_towers=3, placement='balanced', batch_size=12,
                 accumulate=2) as run, run.graph.as_default():
    devices = {variable.op.name: variable.device for variable in tf.local_variables()}
    for variable in tf.trainable_variables():
      assert devices['accumulated/' + variable.op.name] == variable.device
    ops = run.graph.get_operations()
    updates = {op for op in ops if op.type.startswith('ResourceApply')}
    clears = [op for op in ops if op.type == 'AssignVariableOp' and not op.name.endswith('/Assign')
              and op.inputs[0].op.name.startswith('accumulated/')]
    # Of four gradients, the loss, the metrics and the number of examples.
    assert updates and len(clears) == 7
    for op in clears:
      assert updates <= find_needed([op]), op.name


def test_towers_and_their_average_must_be_of_as_many_micro_batches():
  tower = towers.Tower('', 'tower_0/', None, {}, None, [], [], GlobalBatch([], 2, 2.0, 1, 3))
  with pytest.raises(UsageError, match='3 micro-batches a step in build_towers, but 1 in average_'):
    towers.average_gradients([tower])


@pytest.mark.parametrize('settings, words', [
    (dict(batch_size=12, accumulate=5), 'accumulate=5 micro-batches of equal size'),
    (dict(batch_size=12, accumulate=6, num_towers=3),
        'leaves 2 examples in each for 3 towers.*at least 18'),
])
def test_batches_that_cannot_be_cut_are_refused(settings, words):
  with pytest.raises(UsageError, match=words):
    towers.build_plan(**dict(dict(num_examples=100, num_towers=2), **settings))
