"""The collector is off while TensorFlow is imported and towers are built, and on afterwards."""

import gc
import weakref

import pytest

from tests.harness import small
from tests.harness.processes import output_of
from towers.base import garbage_collector
from towers.base.garbage_collector import uncollected


def test_models_are_called_without_the_collector_and_it_is_there_again():
  found = []

  def model(batch, is_training):
    found.append(gc.isenabled())
    return small.model(batch, is_training)

  with small.Run(num_towers=3, model=model):
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
  """An object that refers to itself: only the collector can free it."""

  def __init__(self):
    self.itself = self


def test_later_scans_skip_what_was_built():
  with uncollected():
    built = _Loop()
    found = weakref.ref(built)
  assert not any(one is built for one in gc.get_objects())
  del built
  gc.collect()
  assert found() is not None
  made_outside = _Loop()
  found = weakref.ref(made_outside)
  del made_outside
  gc.collect()
  assert found() is None


@pytest.mark.nightly(but='1099511627776-4')
@pytest.mark.parametrize('worth_bytes, num_there', [(-1 << 40, 1), (1 << 40, 4)])
def test_of_programs_one_after_another_those_before_go_once_they_are_worth_a_look(
    worth_bytes, num_there, monkeypatch):
  monkeypatch.setattr(garbage_collector, '_WORTH_BYTES', worth_bytes)
  graphs = []
  for _ in range(4):
    with small.Run(num_towers=1) as run:
      run.train()
    graphs.append(weakref.ref(run.graph))
    del run
  assert sum(graph() is not None for graph in graphs) == num_there


# Says whether TensorFlow is there when signals are left to the kernel, and when that ends.
IMPORT = """
import contextlib, gc, sys
from towers.base import default_signals
looks = []
gc.callbacks.append(lambda phase, info: looks.append(info['generation']))
@contextlib.contextmanager
def spy():
  print('tensorflow' in sys.modules)
  yield
  print('tensorflow' in sys.modules)
default_signals.default_signals = spy
import towers.tensorflow_v1
print(looks.count(2), gc.isenabled(), gc.get_freeze_count() > 50000)
"""


def test_tensorflow_is_imported_without_it_and_while_signals_end_the_process():
  assert output_of('-c', IMPORT).split() == ['False', 'True', '0', 'True', 'True']
