"""What a run waits for is told: whose input, which area, or the computation; a slow one is left alone."""

import threading
import time

import pytest

from tests.towers import small
from tests.towers.small import Run
from training import watchdog
from training.watchdog import Watchdog, find_stall


def stalled(run, action, free):
  """Returns the watchdog's reason while `action` blocks; `free` then lets it go."""
  reasons, told = [], threading.Event()
  dog = Watchdog(limit_seconds=0.5, on_stall=lambda reason: (reasons.append(reason), told.set()))
  thread = threading.Thread(target=action)
  with dog:
    dog.watch(run.steps)
    thread.start()
    started = time.monotonic()
    assert told.wait(20)
    assert time.monotonic() - started < 20
  free()
  thread.join(20)
  assert not thread.is_alive()
  return reasons[0]


@pytest.mark.parametrize('validation', [False, True])
def test_an_empty_area_is_named_and_the_session_can_go_on(validation):
  with Run(num_towers=3, depth=2) as run, run.graph.as_default():
    run.steps.train()
    feed = run.program.validation.feed if validation else run.program.train
    taken = feed.stage.get(1)
    for _ in range(2):
      run.session.run(taken)
    # Without the puts that belong to it: they would free the get.
    program = run.program
    action = (lambda: run.session.run(program.validation.sums, {program.validation.is_validating: True})) \
        if validation else (lambda: run.session.run(program.train_op))
    reason = stalled(run, action, lambda: run.session.run(feed.stage.put_ops))
    assert 'the staging area of tower 1 (split %s) is empty' % feed.inputs.name in reason
    assert 'stall_seconds' in reason and 'after 1 steps' in reason
    run.steps.start(run.counters()[0])
    assert run.steps.train() > 0


def test_a_full_area_is_named():
  # One tower, so that one thread is blocked, and one is left to take from the area again.
  with Run(num_towers=1, depth=1) as run, run.graph.as_default():
    stage = run.program.train.stage
    taken = stage.get(0)
    run.session.run(stage.put_ops)  # Now two wait, which is all there is room for.
    thread = threading.Thread(target=lambda: run.session.run(stage.put_ops))
    thread.start()
    time.sleep(0.5)
    assert 'the staging area of tower 0 (split train) is full with 2 batches' in find_stall(run.steps)
    run.session.run(taken)
    thread.join(20)
    assert not thread.is_alive()


def test_what_goes_forward_or_is_paused_or_not_watched_yet_is_left_alone():
  reasons = []
  with Run(num_towers=1) as run, Watchdog(limit_seconds=0.4, on_stall=reasons.append) as dog:
    time.sleep(0.6)
    dog.watch(run.steps)
    with dog.paused():
      time.sleep(0.8)
    for _ in range(8):
      run.steps.train()
      time.sleep(0.1)
  time.sleep(0.5)
  assert reasons == []


def test_a_run_ends_even_if_nobody_can_tell_why(monkeypatch):
  def fail(steps):
    raise ValueError('no such op')

  monkeypatch.setattr(watchdog, 'find_stall', fail)
  with Run(num_towers=1) as run:
    reason = stalled(run, lambda: time.sleep(1), lambda: None)
  assert 'could not be found out (no such op)' in reason


def test_a_session_that_does_not_close_is_told():
  with Run(num_towers=1, train=small.random_examples(9)) as run:
    run.steps.activity = 'the end'
    assert 'does not close' in find_stall(run.steps)
