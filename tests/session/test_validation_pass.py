"""A pass over the validation split adds up many batches exactly, and returns their means."""

import types

import numpy as np

from towers.session.validation_pass import ValidationPass, format_means
from towers.whole import WholeRows


def begin(*names, num_steps, step):
  tower = types.SimpleNamespace(sums=dict.fromkeys(names), weights={}, losses=())
  return ValidationPass(tower, WholeRows([{}]), num_steps=num_steps, step=step)


def test_means_are_over_all_examples_and_complete_after_the_last_batch():
  validation_pass = begin('loss', 'accuracy', num_steps=2, step=7)
  validation_pass.add(np.array([6.0, 2.0, 4.0], np.float32))
  assert not validation_pass.is_complete
  assert validation_pass.means() == {'loss': 1.5, 'accuracy': 0.5}
  validation_pass.add(np.array([4.0, 0.0, 1.0], np.float32))
  assert validation_pass.is_complete and validation_pass.step == 7
  assert validation_pass.means() == {'loss': 2.0, 'accuracy': 0.4}
  assert validation_pass.num_examples == 5
  assert format_means(validation_pass.means(), 5) == 'loss 2.0000, accuracy 0.4000 (5 examples)'
  validation_pass.sums = 3 * validation_pass.sums
  assert validation_pass.num_examples == 15 and validation_pass.means()['loss'] == 2.0


def test_more_examples_than_float32_can_count():
  validation_pass = begin('loss', num_steps=3, step=0)
  for count in (2.0 ** 24, 1.0, 1.0):
    validation_pass.add(np.array([1.0, count], np.float32))
  assert validation_pass.num_examples == 2 ** 24 + 2
