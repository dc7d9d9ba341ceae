"""Measure input: each mode by itself, and advice for towers that wait, which fits the settings."""

import pytest

import towers
from tests.harness.small import MODES, random_examples
from towers.data import load_synthetic
from towers.data.augment import augment_arrays
from towers.training.tools.measure_input import advise, format_speeds, measure_input


@pytest.mark.parametrize('num_towers', [1, 3])
def test_every_mode_is_measured(num_towers):
  devices = towers.build_devices(num_towers, 'cpu')
  speeds = measure_input(random_examples(50), devices, batch_size=8, seconds=0.1)
  assert tuple(speeds) == MODES and all(speed > 100 for speed in speeds.values())
  head, *lines = format_speeds(speeds, num_towers=num_towers, batch_size=8).splitlines()
  assert f'{num_towers} tower' in head and 'global batch 8' in head
  assert [line.split()[0] for line in lines] == list(MODES)


def test_augmented_arrays_are_measured_too():
  train = load_synthetic(num_train=64, num_validation=8).train
  augmented = augment_arrays(train, kind='cifar', seed=0)
  speeds = measure_input(augmented, towers.build_devices(2, 'cpu'), batch_size=16, seconds=0.1)
  assert min(speeds.values()) > 100


def test_towers_that_wait_get_advice_that_fits_the_settings(monkeypatch):
  monkeypatch.setattr('towers.base.cores.list_cores', lambda: range(8))
  assert advise(0.05) == ''
  assert '43%' in advise(0.43) and 'all 8 cores decode already' in advise(0.43)
  assert 'input_threads=8 uses all cores, where it is 2' in advise(0.43, input_threads=2)
  assert 'staging_depth=1' in advise(0.43, staging_depth=0)
  assert 'towers.data.convert' in advise(0.43, is_image_folder=True)
  assert '--input_only' in advise(0.43)
  of_arrays = advise(0.43, needs_threads=False)
  assert 'larger batch_size' in of_arrays and 'decode' not in of_arrays
