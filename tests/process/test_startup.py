"""Start-up times every phase, shows a long one, and leaves no thread behind a failed one."""

import io
import itertools
import re
import threading
import time
import types

import pytest

from towers.process import startup as process_startup
from towers.process.startup import Startup


def test_a_long_phase_tells_how_far_it_is(monkeypatch):
  stream = io.StringIO()
  counts = itertools.count()
  monkeypatch.setattr(process_startup, '_BEAT_SECONDS', 0.05)
  with Startup(time.monotonic() - 1, stream=stream) as startup:
    time.sleep(0.15)
    assert stream.getvalue() == ''
    startup.begin('graph', lambda: f'building the graph ({next(counts)} ops)')
    while stream.getvalue().count('\n') < 2:
      time.sleep(0.02)
    startup.begin('first step', 'running the first step')
    startup.finish()
    startup.finish()
  *beats, last = stream.getvalue().splitlines()
  found = [int(re.match(r'building the graph \((\d+) ops\) … \d+ s$', beat)[1]) for beat in beats]
  assert found == sorted(set(found)), beats
  match = re.match(r'^ready in (\S+) s: packages and files (\S+), graph (\S+), first step \S+$',
                   last)
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


LATE = ('the graph does not end: not all workers are ready to train 0.2 s (start_seconds)', 75)
IDLE = ('This worker has done nothing for 0.2 s (start_seconds), and the others wait for it. It is '
        "still at 'graph'", 3)


@pytest.mark.parametrize('is_of_idleness, is_lifted, cpu_seconds, expected', [
    (False, False, 1.5, [LATE]), (False, True, 0.001, []), (True, False, 0.001, [IDLE]),
    (True, True, 0.001, []), (True, False, 1.5, [])],
                         ids=['late', 'late, lifted', 'idle', 'idle, lifted', 'busy'])
def test_a_start_that_takes_too_long_or_does_nothing_ends_unless_the_limit_is_lifted(
    is_of_idleness, is_lifted, cpu_seconds, expected, monkeypatch):
  ended, is_told, seconds = [], threading.Event(), itertools.count(0, cpu_seconds)

  def end(reason, code):
    ended.append((reason, code))
    is_told.set()

  monkeypatch.setattr(process_startup, 'end_process', end)
  monkeypatch.setattr(process_startup, '_BEAT_SECONDS', 0.02)
  monkeypatch.setattr(process_startup, 'time', types.SimpleNamespace(
      monotonic=time.monotonic, process_time=seconds.__next__))
  with Startup(time.monotonic(), stream=io.StringIO()) as startup:
    startup.begin('graph', 'the graph')
    startup.limit(0.2, is_of_idleness=is_of_idleness)
    time.sleep(0.1)
    assert not ended
    if is_lifted:
      startup.limit(None)
    is_told.wait(30 if expected else 0.5)
  assert len(ended) == len(expected)
  for (reason, code), (start, expected_code) in zip(ended, expected):
    assert reason.startswith(start) and code == expected_code
