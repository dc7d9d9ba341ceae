"""Sets how many tests run at a time, and which; lets their processes answer signals."""

import itertools
import signal
import sys

import pytest

from towers.base.cores import count_cores

# Under nohup all processes of the tests would ignore it, and tests of it fail.
if hasattr(signal, 'SIGHUP'):
  signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Of a test with so many slow points, each TensorFlow takes every other one.
_WIDE = 4


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
  """Returns more than the number of cores: many tests wait for processes or for time to pass."""
  return count_cores() * 3 // 2


def pytest_addoption(parser):
  parser.addoption('--whole_grids', action='store_true',
                   help='run all slow points of the widest grids, which 1.14 and 2.x share')


def pytest_collection_modifyitems(config, items):
  """Leaves the slow points that the other TensorFlow takes out; both take all fast ones."""
  is_named = any('::' in argument for argument in config.args)
  if config.getoption('--whole_grids') or is_named:
    return
  # A machine with GPUs has one TensorFlow.
  slow_points = [item for item in items
                 if hasattr(item, 'callspec') and item.get_closest_marker('slow')
                 and not item.get_closest_marker('gpu')]
  left_out = set()
  for _, points in itertools.groupby(slow_points, key=lambda item: item.function):
    points = list(points)
    if len(points) >= _WIDE:
      left_out.update(points[sys.version_info[:2] == (3, 7)::2])
  config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
  items[:] = [item for item in items if item not in left_out]
