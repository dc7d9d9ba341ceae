"""The watchdog says what a stalled run waits for, and leaves a slow one alone."""

import threading
import time

from tests.harness import small
from towers.session import watchdog
from towers.session.watchdog import Watchdog, find_stall


def stalled(run, action, free, monkeypatch):
  """Returns the watchdog's reason while `action` blocks; `free()` then unblocks it."""
  reasons, told = [], threading.Event()
  monkeypatch.setattr(
      watchdog, 'end_process', lambda reason: (reasons.append(reason), told.set()))
  dog = Watchdog(limit_seconds=0.5)
  thread = threading.Thread(target=action)
  with dog:
    dog.engine = run.engine
    thread.start()
    started = time.monotonic()
    assert told.wait(20)
    assert time.monotonic() - started < 20
  free()
  thread.join(20)
  assert not thread.is_alive()
  return reasons[0]


def test_what_goes_forward_or_is_paused_or_not_watched_yet_is_left_alone(monkeypatch):
  reasons = []
  monkeypatch.setattr(watchdog, 'end_process', reasons.append)
  with small.Run(num_towers=1) as run, Watchdog(limit_seconds=0.4) as dog:
    time.sleep(0.6)
    dog.engine = run.engine
    with dog.paused():
      time.sleep(0.8)
    for _ in range(8):
      run.train()
      time.sleep(0.1)
  time.sleep(0.5)
  assert reasons == []


def test_a_run_ends_even_if_nobody_can_tell_why(monkeypatch):
  def fail(engine):
    raise ValueError('no such op')

  monkeypatch.setattr(watchdog, 'find_stall', fail)
  with small.Run(num_towers=1) as run:
    reason = stalled(run, lambda: time.sleep(1), lambda: None, monkeypatch)
  assert 'could not be found out (no such op)' in reason


def test_a_session_that_does_not_close_is_told():
  with small.Run(num_towers=1, train=small.random_examples(9)) as run:
    run.engine.activity = 'the end'
    assert 'does not close' in find_stall(run.engine)
