"""Start-up: every phase is timed, a long one is not silent, and a failed one leaves no thread."""

import io
import itertools
import re
import threading
import time

import pytest

from training.startup import Startup


def test_a_long_phase_tells_how_far_it_is_and_a_short_one_is_silent():
  stream = io.StringIO()
  counts = itertools.count(1000, 1000)
  startup = Startup(time.monotonic(), stream=stream, first_beat_seconds=0.1, beat_seconds=0.05)
  with startup.phase('graph', 'building the graph', count_ops=lambda: next(counts)):
    while stream.getvalue().count('\n') < 2:
      time.sleep(0.05)
  with startup.phase('variables', 'starting the variables'):
    pass
  startup.finish({'graph': '2 towers'})
  *beats, last = stream.getvalue().splitlines()
  assert len(beats) >= 2
  for number, beat in enumerate(beats):
    assert re.match(r'^building the graph … \d+ s, %d,000 ops so far$' % (number + 1), beat)
  match = re.match(r'^ready in (\d+\.\d) s: graph (\d+\.\d) \(2 towers\), variables \d\.\d$', last)
  assert match and float(match.group(1)) >= float(match.group(2)) > 0.1
  assert startup.seconds['graph'] > 0.1


def test_a_phase_that_fails_leaves_no_thread():
  startup = Startup(time.monotonic(), stream=io.StringIO())
  with pytest.raises(KeyError), startup.phase('graph', 'building the graph'):
    raise KeyError
  assert 'startup' not in [thread.name for thread in threading.enumerate()]
