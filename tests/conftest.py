"""Sets how many tests run at a time."""

import pytest

from towers.base.cores import count_cores


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
  """Returns more than the number of cores: many tests wait for processes or for time to pass."""
  return count_cores() * 3 // 2
