"""Advice for towers that wait fits the settings."""

from towers.training.reporting.result import advise


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
