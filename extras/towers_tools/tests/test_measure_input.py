"""Measure input: each mode by itself."""

import pytest

from tests.harness.small import MODES, random_examples
from towers.data import load_synthetic
from towers.data.augmented import augment_arrays
from towers.placement.devices import build_devices
from towers_tools.measure_input import format_speeds, measure_input


@pytest.mark.nightly(but='3')
@pytest.mark.parametrize('num_towers', [1, 3])
def test_every_mode_is_measured(num_towers):
  devices = build_devices(num_towers, 'cpu')
  speeds = measure_input(random_examples(50), devices, batch_size=8, seconds=0.1)
  assert tuple(speeds) == MODES and all(speed > 100 for speed in speeds.values())
  head, *lines = format_speeds(speeds, num_towers=num_towers, batch_size=8).splitlines()
  assert f'{num_towers} tower' in head and 'global batch 8' in head
  assert [line.split()[0] for line in lines] == list(MODES)


@pytest.mark.nightly
def test_augmented_arrays_are_measured_too():
  train = load_synthetic(num_train=64, num_validation=8).train
  augmented = augment_arrays(train, kind='cifar', seed=0)
  speeds = measure_input(augmented, build_devices(2, 'cpu'), batch_size=16, seconds=0.1)
  assert min(speeds.values()) > 100
