"""The law: others' programs are one tower on N towers, or `towers.check` names why they differ."""

import re

import numpy as np
import pytest

from tests.gallery.programs import PROGRAMS
from tests.gallery.training import check, largest_difference, train
from tests.harness import small

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def here(*, differ):
  """Returns the programs of this TensorFlow; the other cannot take those that it alone has."""
  return [name for name, program in PROGRAMS.items()
          if program.runs_here and bool(program.cause) == differ]


@pytest.mark.parametrize('name', here(differ=False))
def test_a_program_trains_on_towers_as_on_one(name):
  one = train(name, 1, 'reuse')
  assert np.ptp(one.losses) > 1e-3
  for variable, value in one.weights.items():
    stays = re.search(PROGRAMS[name].stays, variable)
    assert bool(stays) == np.array_equal(value, one.initial[variable]), variable
  for num_towers in (2, 3):
    called = train(name, num_towers, 'reuse')
    small.assert_same_weights(one.initial, called.initial, tolerance=0)
    assert largest_difference(one, called) <= 1e-5
  assert largest_difference(called, train(name, num_towers, 'clone')) == 0
  report = check(name)
  assert report.agrees and not report.causes, report.format()


@pytest.mark.parametrize('name', here(differ=True))
def test_a_program_that_sees_its_batch_is_told_apart_by_name(name):
  one, called = train(name, 1, 'reuse'), train(name, 2, 'reuse')
  small.assert_same_weights(one.initial, called.initial, tolerance=0)
  assert largest_difference(one, called) > 1e-3
  assert largest_difference(called, train(name, 2, 'clone')) == 0
  report = check(name)
  assert not report.agrees
  assert PROGRAMS[name].cause in ' '.join(report.causes), report.format()
