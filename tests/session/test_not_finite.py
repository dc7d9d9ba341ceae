"""A step that is not finite names the tower and the variable, in whichever micro-batch."""

import numpy as np
import pytest

from towers.session.not_finite import Retried
from towers.update.nan_guard import Diagnosis

NAMES = ['weights', 'biases']


def finding(**faults):
  """Returns the result for 2 micro-batches and 2 towers; row 2 of the gradients is their sum."""
  losses, finite = np.ones([2, 2, 1], np.float32), np.ones([2, 3, 2], bool)
  if 'loss' in faults:
    losses[faults['loss']] = np.nan
  if 'gradient' in faults:
    finite[faults['gradient']] = False
  found = Diagnosis(losses, finite, NAMES, (), np.ones([2, 2, 0], bool), [])
  return Retried(False, found, faults.get('has_other_workers', False))


@pytest.mark.parametrize('micro_batch', [0, 1])
def test_towers_and_sums_of_any_micro_batch_are_named(micro_batch):
  assert str(finding(loss=(micro_batch, 1))) == 'in tower 1 the loss is nan'
  assert str(finding(gradient=(micro_batch, 0, 1))) == (
      'in tower 0 the gradient of biases is not finite (the first of 1 variables out of 2)')
  assert str(finding(gradient=(micro_batch, 2, 1))) == (
      'every tower is finite, but the sum of their gradients of biases is not')


def test_if_all_towers_of_this_worker_are_finite_another_one_has_the_fault():
  assert 'their sum over the micro-batches' in str(finding())
  assert 'another worker' in str(finding(has_other_workers=True))
