"""Sets how many tests run at a time, and which; lets their processes answer signals."""

import collections
import functools
import gc
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

# As many parts have the slow tests, of which CI runs one at each commit.
PARTS = 3

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
                   help='run all points of all tests, which 1.14 and 2.x deal out between them')
  parser.addoption('--part', type=int, metavar='NUMBER',
                   help=f'run one of {PARTS} parts of the slow tests, by the number modulo {PARTS}')


def pytest_collection_finish(session):
  """Lets ops of 1.14 keep the innermost lines of the stack that made them, without pytest's forty.

  To list all of these in Python takes a twelfth of the tests' time.
  """
  tf_stack = sys.modules.get('tensorflow.python.util.tf_stack')
  if IS_1 and tf_stack is not None:
    tf_stack.extract_stack = functools.partial(tf_stack.extract_stack, limit=30)


def pytest_collection_modifyitems(config, items):
  """Leaves out what the other TensorFlow runs, and of slow tests what is not in the chosen part.

  Slow tests, and the points of tests that have several, are dealt out to both TensorFlows, each
  once. Both take all other fast tests; those marked `both`, whose points are others on each or show
  what TensorFlow does; and those that some condition skips. 1.14 takes those marked
  `slow(on='1.14')`: they start many processes, and to load it takes half the time.
  """
  is_named = any('::' in argument for argument in config.args)
  if config.getoption('--whole_grids') or is_named:
    return
  groups = collections.defaultdict(list)
  for item in items:
    # A machine with GPUs has one TensorFlow.
    is_shared = any(map(item.get_closest_marker, ('both', 'skipif', 'gpu')))
    slow = item.get_closest_marker('slow')
    groups[item.nodeid.split('[')[0], is_shared, slow and slow.kwargs.get('on', 'any')].append(item)
  part, left_out = config.getoption('--part'), set()
  for (test, is_shared, slow_on), points in groups.items():
    # The points of a test take turns, and a hash says who begins.
    for turn, item in enumerate(points, zlib.crc32(test.encode())):
      is_ours = True
      if not is_shared and slow_on == '1.14':
        is_ours = IS_1
      elif not is_shared and (slow_on or len(points) > 1):
        turn, target = divmod(turn, 2)
        is_ours = target != IS_1
      if not is_ours or slow_on and part is not None and (turn - part) % PARTS:
        left_out.add(item)
  config.hook.pytest_deselected(items=[item for item in items if item in left_out])
  items[:] = [item for item in items if item not in left_out]
