"""Input alone is measured in every mode, and waiting towers get advice that fits what is set."""

import pytest

import towers
from tests.harness.small import MODES, random_examples
from towers.data import DataSet, load_synthetic
from towers.training.settings.config import Config
from towers.training.tools.measure_input import advise, format_speeds, measure_input


@pytest.mark.parametrize('num_towers', [1, 3])
def test_every_mode_is_measured_on_what_it_really_takes(num_towers):
  data_set = DataSet(random_examples(50), random_examples(5), (1, 1, 5), 3)
  config = Config(batch_size=8)
  devices = towers.build_devices(num_towers, 'cpu')
  speeds = measure_input(config, data_set, devices, seconds=0.1)
  assert tuple(speeds) == MODES and all(speed > 100 for speed in speeds.values())
  lines = format_speeds(config, num_towers, speeds).splitlines()
  assert f'{num_towers} tower' in lines[0] and [line.split()[0] for line in lines[1:]
                                               ] == list(MODES)


def test_augmented_arrays_are_measured_too():
  from towers.data.augment import augment_arrays
  data_set = load_synthetic(num_train=64, num_validation=8)
  data_set = data_set._replace(train=augment_arrays(data_set.train, kind='cifar', seed=0))
  assert min(
      measure_input(Config(batch_size=16), data_set, towers.build_devices(2, 'cpu'),
                    seconds=0.1).values()) > 100


def test_advice_is_for_those_who_wait_and_fits_the_settings(monkeypatch):
  monkeypatch.setattr('towers.base.cores.list_cores', lambda: range(8))
  assert advise(Config(), 0.05) == ''
  assert '43%' in advise(Config(), 0.43) and 'all 8 cores decode already' in advise(Config(), 0.43)
  assert 'input_threads=8 uses all cores, where it is 2' in advise(Config(input_threads=2), 0.43)
  assert 'staging_depth=1' in advise(Config(staging_depth=0), 0.43)
  assert 'towers.data.convert' in advise(Config(data='images', data_dir='photos'), 0.43)
  assert '--input_only' in advise(Config(), 0.43)
  of_arrays = advise(Config(), 0.43, needs_threads=False)
  assert 'larger batch_size' in of_arrays and 'decode' not in of_arrays
