"""Sets how many tests run at a time, and which points at night; lets processes answer signals."""

import collections
import functools
import gc
import os
import signal
import sys

import pytest

import tests  # noqa: F401 (finds the packages in extras/)
from towers.base.cores import count_cores

# Under nohup all processes of the tests would ignore SIGHUP, and in the background of a script
# SIGINT: tests of these would fail.
if hasattr(signal, 'SIGHUP'):
  signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
  """Lets a commit run the points that `nightly(but=...)` names, and `plain` tests on 1.14 alone."""
  left, seen = {}, collections.Counter()
  for item in items:
    if item.get_closest_marker('plain') and sys.version_info[:2] != (3, 7):
      item.add_marker('nightly')
    for mark in [mark for mark in item.own_markers if mark.name == 'nightly' and mark.kwargs]:
      but, test = mark.kwargs['but'], item.nodeid.split('[')[0]
      first = but if isinstance(but, int) else 0
      ids = left.setdefault(test, set() if first else {but} if isinstance(but, str) else {*but})
      seen[test] += 1
      if seen[test] <= first or item.callspec.id in ids:
        item.own_markers.remove(mark)
        ids.discard(item.callspec.id)
  unknown = [f'{test}[{name}]' for test, ids in left.items() for name in sorted(ids)]
  if unknown and not (config.getoption('lf', False)
                      or any('[' in argument for argument in config.args)):
    raise pytest.UsageError(f"nightly(but=...) names no point: {', '.join(unknown)}")


def pytest_collection_finish(session):
  """Lets ops of 1.14 keep the innermost lines of the stack that made them, without pytest's forty.

  To list all of these in Python takes a twelfth of the tests' time.
  """
  tf_stack = sys.modules.get('tensorflow.python.util.tf_stack')
  if sys.version_info[:2] == (3, 7) and tf_stack is not None:
    tf_stack.extract_stack = functools.partial(tf_stack.extract_stack, limit=30)
