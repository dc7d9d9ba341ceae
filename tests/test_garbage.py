"""Nothing is collected while TensorFlow is imported and towers are built, and all is as before afterwards."""

import gc
import subprocess
import sys
import weakref

import pytest

import garbage
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


def test_what_was_built_is_left_out_of_later_looks():
  with uncollected():
    built = _Loop()
    found = weakref.ref(built)
  assert not any(one is built for one in gc.get_objects())
  del built
  gc.collect()
  assert found() is not None


@pytest.mark.parametrize('num_left_out, num_there', [(1, 1), (10 ** 9, 4)])
def test_of_programs_one_after_another_those_before_go_once_it_is_worth_a_look(num_left_out, num_there, monkeypatch):
  graphs = []
  for _ in range(4):
    monkeypatch.setattr(garbage, '_num_left_out', num_left_out)
    with Run(num_towers=1) as run:
      run.steps.train()
    graphs.append(weakref.ref(run.graph))
    del run
  assert sum(graph() is not None for graph in graphs) == num_there


def test_a_look_counts_what_it_has_found(monkeypatch):
  monkeypatch.setattr(garbage, '_num_left_out', 1)
  garbage.collect_former()
  assert garbage._num_left_out == pytest.approx(gc.get_freeze_count(), rel=0.01)
  assert garbage._num_left_out > 50000


def test_the_import_of_tensorflow_is_left_out_of_it():
  code = ('import gc; runs = []; gc.callbacks.append(lambda phase, info: runs.append(phase)); import garbage; '
          'runs.clear(); import tensorflow_v1; print(len(runs), gc.isenabled(), gc.get_freeze_count()); '
          'runs.clear(); garbage.collect_former(); print(len(runs), garbage._num_left_out)')
  runs, is_enabled, frozen, looks, left_out = subprocess.check_output([sys.executable, '-c', code],
                                                            universal_newlines=True).split()
  assert int(runs) < 20 and is_enabled == 'True' and int(frozen) > 50000
  # What has been imported is no reason to look for programs before the first; from there it counts.
  assert looks == '0' and int(left_out) == pytest.approx(int(frozen), rel=0.01)  # Some of it has gone by itself.
