"""Nothing is collected while towers are built, and everything as before afterwards, whatever happens within."""

import gc

import pytest

from tests.towers import small
from tests.towers.small import Run
from towers.garbage import uncollected


def test_models_are_called_without_the_collector_and_it_is_there_again():
  found = []

  def model(batch, is_training):
    found.append(gc.isenabled())
    return small.model(batch, is_training)

  with Run(num_towers=3, model=model):
    assert found == [False] * 3 and gc.isenabled()


def test_an_error_leaves_it_as_it_was():
  with pytest.raises(ValueError), uncollected():
    raise ValueError
  assert gc.isenabled()
  gc.disable()
  try:
    with uncollected():
      pass
    assert not gc.isenabled()
  finally:
    gc.enable()
