"""Sets how many tests run at a time, and which; lets their processes answer signals."""

import functools
import gc
import itertools
import os
import signal
import sys
import zlib

import pytest

from towers.base.cores import count_cores

# Under nohup all processes of the tests would ignore SIGHUP, and in the background of a script
# SIGINT: tests of these would fail.
if hasattr(signal, 'SIGHUP'):
  signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)

IS_1 = sys.version_info[:2] == (3, 7)

# On 2.x oneDNN looks through every graph for ops to rewrite, a tenth of the tests'
# time. The commands of the docs run with it, as users do.
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')

# A test's garbage is graphs in cycles, and the survivors are TensorFlow: looked at less often, they
# cost a twentieth of the time less.
gc.set_threshold(50000, 20, 100)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
  """Returns more than the number of cores: many tests wait for processes or for time to pass."""
  return count_cores() * 3 // 2


def pytest_addoption(parser):
  parser.addoption('--whole_grids', action='store_true',
                   help='run all slow tests, which 1.14 and 2.x deal out between them')


def pytest_collection_finish(session):
  """Lets ops of 1.14 keep the innermost lines of the stack that made them, without pytest's forty.

  To list all of these in Python takes a twelfth of the tests' time.
  """
  tf_stack = sys.modules.get('tensorflow.python.util.tf_stack')
  if IS_1 and tf_stack is not None:
    tf_stack.extract_stack = functools.partial(tf_stack.extract_stack, limit=30)


def pytest_collection_modifyitems(config, items):
  """Deals the slow tests out to both TensorFlows, each test and point once; both take fast ones.

  Those marked `both`, and those that are skipped under some condition, both take: a test must be
  marked if its points are others on each. 1.14 takes those marked `slow(on='1.14')`: they start
  many processes, and to load it takes half the time.
  """
  is_named = any('::' in argument for argument in config.args)
  if config.getoption('--whole_grids') or is_named:
    return
  # A machine with GPUs has one TensorFlow.
  dealt = [item for item in items if item.get_closest_marker('slow') and not any(
      map(item.get_closest_marker, ('both', 'skipif', 'gpu')))]
  of_1 = [item for item in dealt
          if item.get_closest_marker('slow').kwargs.get('on') == '1.14']
  left_out = set() if IS_1 else set(of_1)
  dealt = [item for item in dealt if item not in of_1]
  for test, points in itertools.groupby(dealt, key=lambda item: item.nodeid.split('[')[0]):
    # The points of a grid take turns, and a hash says who begins.
    left_out.update(list(points)[(zlib.crc32(test.encode()) + IS_1) % 2::2])
  config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
  items[:] = [item for item in items if item not in left_out]
