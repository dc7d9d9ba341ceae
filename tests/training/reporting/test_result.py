"""A result is not lost on a full disk, and advice for towers that wait fits the settings."""

import pytest

from tests.harness import faults
from towers.training.faults.run_error import RunError
from towers.training.reporting.result import advise, write_result


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


def test_a_disk_that_fills_during_the_run_costs_no_result(tmp_path):
  with faults.full_disk(), pytest.raises(RunError) as error:
    write_result(str(tmp_path / 'result.json'), dict(train_loss=0.125))
  assert '"train_loss": 0.125' in str(error.value) and 'Make room' in str(error.value)
  with pytest.raises(RunError) as error:
    write_result('/sys/result.json', dict(train_loss=0.125))
  assert '"train_loss": 0.125' in str(error.value) and 'room' not in str(error.value)
