"""Accumulation: what is summed over the micro-batches of a step, where, and how often it moves.

That a step in micro-batches is one on the whole batch, `tests/test_towers_equal_one.py` shows.
"""

import pytest

from tests.harness import small
from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed
from towers.input.plan import build_plan
from towers.tensorflow_v1 import tf


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


@pytest.mark.parametrize('settings, words', [
    (dict(batch_size=12, accumulate=5), 'accumulate=5 micro-batches of equal size'),
    (dict(batch_size=12, accumulate=6, num_towers=3),
        'leaves 2 examples in each for 3 towers.*at least 18')])
def test_batches_that_cannot_be_cut_are_refused(settings, words):
  with pytest.raises(UsageError, match=words):
    build_plan(**dict(dict(num_examples=100, num_towers=2), **settings))
