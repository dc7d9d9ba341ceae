"""Start-up times every phase, shows a long one, and leaves no thread behind a failed one."""

import io
import itertools
import re
import threading
import time

import pytest

from tensorflow_v1 import tf
from towers.training.reporting.describe import describe_ops
from towers.training.stepping.startup import Startup


def test_a_long_phase_tells_how_far_it_is():
  stream = io.StringIO()
  counts = itertools.count(1000, 1000)
  with Startup(time.monotonic() - 1, stream=stream, beat_seconds=0.05) as startup:
    time.sleep(0.15)
    assert stream.getvalue() == ''
    startup.begin('graph', 'building the graph', count_ops=lambda: next(counts))
    startup.note('2 towers')
    while stream.getvalue().count('\n') < 2:
      time.sleep(0.02)
    startup.begin('first step', 'running the first step')
    startup.finish()
    startup.finish()
  *beats, last = stream.getvalue().splitlines()
  for count, beat in enumerate(beats, 1):
    assert re.match(rf'^building the graph … \d+ s, {count},000 ops so far$', beat), beats
  match = re.match(r'^ready in (\S+) s: packages and files (\S+), graph (\S+) \(2 towers\), first '
                   r'step \S+$', last)
  assert match, last
  total, files, graph = map(float, match.groups())
  assert files >= 1.1 and total >= files + graph - 0.1
  assert list(startup.seconds) == ['packages and files', 'graph', 'first step']


def test_a_phase_that_fails_leaves_no_thread_and_no_line():
  stream = io.StringIO()
  with pytest.raises(KeyError), Startup(time.monotonic(), stream=stream) as startup:
    startup.begin('graph', 'building the graph')
    raise KeyError
  assert stream.getvalue() == ''
  assert 'startup' not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize('is_lifted', [False, True])
def test_a_start_with_a_limit_says_what_does_not_end_unless_the_limit_is_lifted(is_lifted):
  late = []
  with Startup(time.monotonic(), stream=io.StringIO(), beat_seconds=0.02,
               on_late=late.append) as startup:
    startup.limit(0.2)
    startup.begin('graph', 'building the graph')
    time.sleep(0.1)
    assert not late
    if is_lifted:
      startup.limit(None)
    time.sleep(0.3)
  assert [reason.startswith('building the graph does not end: not all workers are ready to train '
                            '0.2 s (start_seconds)') for reason in late] == [True] * (not is_lifted)


@pytest.mark.parametrize('kind', ['idle', 'busy', 'unlimited'])
def test_a_start_that_does_nothing_for_long_ends_and_one_that_works_does_not(kind):
  idle, is_told = [], threading.Event()

  def on_idle(reason):
    idle.append(reason)
    is_told.set()

  cpu_seconds = itertools.count(0, 1.5 if kind == 'busy' else 0.001)
  with Startup(time.monotonic(), stream=io.StringIO(), beat_seconds=0.02, on_late=on_idle,
               on_idle=on_idle, cpu_clock=lambda: next(cpu_seconds)) as startup:
    startup.limit_idleness(0.2)
    if kind == 'unlimited':
      startup.limit_idleness(None)
    is_told.wait(30 if kind == 'idle' else 0.5)
  assert [reason.startswith("This worker has done nothing for 0.2 s (start_seconds), and the "
                            "others wait for it. It is still at 'packages and files'")
          for reason in idle] == [True] * (kind == 'idle')


def test_ops_are_counted_by_tower():
  with tf.Graph().as_default() as graph:
    tf.constant(0)
    for tower in range(2):
      with tf.name_scope(f'tower_{tower}'):
        tf.constant(1) + tf.constant(2)
    assert describe_ops(graph, 2) == '2 towers of 3 ops, 7 in all'
