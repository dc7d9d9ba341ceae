"""What is told of a step that was not finite: the tower and variable, whichever micro-batch they
come from.
"""

import numpy as np
import pytest

from towers.training.stepping.not_finite import Retried

NAMES = ['weights', 'biases']


def finding(**faults):
  """Returns what two runs of two towers have shown; the third row of gradients is of their sum."""
  losses, finite = np.ones([2, 2], np.float32), np.ones([2, 3, 2], bool)
  if 'loss' in faults:
    losses[faults['loss']] = np.nan
  if 'gradient' in faults:
    finite[faults['gradient']] = False
  return Retried(1.0, False, losses, finite, NAMES, faults.get('has_other_workers', False))


@pytest.mark.parametrize('run', [0, 1])
def test_towers_and_sums_of_any_run_are_told(run):
  assert finding(loss=(run, 1)).describe() == 'in tower 1 the loss is nan'
  assert finding(gradient=(run, 0, 1)).describe() == (
      'in tower 0 the gradient of biases is not finite (the first of 1 variables out of 2)')
  assert finding(gradient=(run, 2, 1)).describe() == (
      'every tower is finite, but the sum of their gradients of biases is not')


def test_what_no_tower_of_this_worker_shows_is_another_ones():
  assert 'their sum over the runs' in finding().describe()
  assert 'another worker' in finding(has_other_workers=True).describe()
