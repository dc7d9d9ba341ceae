"""Nothing is collected while TensorFlow is imported and towers are built, and all is as before afterwards."""

import gc
import subprocess
import sys
import weakref

import pytest

from garbage import uncollected
from tests.towers import small
from tests.towers.small import Run


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


class _Loop:
  """An object that refers to itself: only the collector can take it away."""

  def __init__(self):
    self.itself = self


def test_what_was_built_is_left_out_until_something_else_is():
  with uncollected():
    built = _Loop()
    found = weakref.ref(built)
  assert not any(one is built for one in gc.get_objects())
  del built
  gc.collect()
  assert found() is not None
  with uncollected():
    pass
  made_outside = _Loop()
  found = weakref.ref(made_outside)
  del made_outside
  gc.collect()
  assert found() is None


def test_the_graph_before_can_be_collected_once_another_is_built():
  with uncollected():
    before = _Loop()
    found = weakref.ref(before)
  del before
  with uncollected():
    gc.collect()
    assert found() is None


def test_the_import_of_tensorflow_is_left_out_of_it():
  code = ('import gc; runs = []; gc.callbacks.append(lambda phase, info: runs.append(phase)); from garbage import '
          'uncollected; runs.clear(); import tensorflow_v1; print(len(runs), gc.isenabled(), gc.get_freeze_count())')
  runs, is_enabled, frozen = subprocess.check_output([sys.executable, '-c', code], universal_newlines=True).split()
  assert int(runs) < 20 and is_enabled == 'True' and int(frozen) > 50000
