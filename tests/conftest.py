"""How many tests run at a time."""

import pytest

from towers.base.cores import count_cores


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
  """Returns more than there are cores: many a test waits, for processes of its own or for what is
  to stand still.
  """
  return count_cores() * 3 // 2
