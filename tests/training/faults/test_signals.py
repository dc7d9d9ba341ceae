"""A run of main.py answers signals at any moment: words, checkpoint, exit code, and soon."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests import ROOT
from towers.training.faults.signals import Signals

GONE_SECONDS = 10.0
# For the steps on batches that were read before the map function fell asleep.
STEPS_LEFT_SECONDS = 1.5


def signalled(fault, moment, *numbers, flags=(), seconds_later=0.0):
  """Sends signals to a run at a moment of it, or later; returns its exit code and stderr."""
  command = [sys.executable, '-m', 'tests.harness.faulty_run', fault, *flags]
  process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True)
  try:
    for line in process.stdout:
      if f'<{moment}>' in line:
        break
    drain = threading.Thread(target=process.stdout.read)
    drain.start()
    time.sleep(seconds_later)
    sent = time.monotonic()
    for number in numbers:
      process.send_signal(number)
      time.sleep(0.5)
    process.wait(timeout=60)
    seconds = time.monotonic() - sent
    drain.join()
    errors = process.stderr.read()
  finally:
    process.kill()
    process.stdout.close()
    process.stderr.close()
  assert 'Traceback' not in errors
  assert seconds < GONE_SECONDS, errors
  return process.returncode, errors


def saved_step(folder, errors):
  """Returns the step that the run says it resumes from, which must be saved."""
  step = int(re.search(r'resumes from step (\d+)', errors).group(1))
  assert (folder / (f'model.ckpt-{step}.index')).exists()
  return step


def test_sigterm_in_training_finishes_the_step_and_saves(tmp_path):
  code, errors = signalled('steps are marked', 'training', signal.SIGTERM,
                           flags=[f'--checkpoint_dir={tmp_path}'])
  assert code == 143 and 'SIGTERM: the run saves and exits' in errors
  assert saved_step(tmp_path, errors) >= 1


def test_ctrl_c_in_validation_saves_the_step_before_it(tmp_path):
  code, errors = signalled('validation is slow', 'validation', signal.SIGINT,
                           flags=[f'--checkpoint_dir={tmp_path}', '--validate_every=3steps',
                                  '--staging_depth=0'])
  assert code == 130 and saved_step(tmp_path, errors) == 3


@pytest.mark.slow
@pytest.mark.parametrize('fault, moment', [('warm-up is slow', 'warm-up'),
                                           ('building is slow', 'set-up')])
def test_before_the_first_step_a_signal_ends_it_at_once(fault, moment, tmp_path):
  code, errors = signalled(fault, moment, signal.SIGTERM, flags=[f'--checkpoint_dir={tmp_path}'])
  assert code == 143 and 'SIGTERM: interrupted' in errors
  assert not list(tmp_path.glob('*.index'))


@pytest.mark.slow
def test_a_second_ctrl_c_ends_it_at_once_in_a_step_that_does_not_end():
  code, errors = signalled('a late map function sleeps', 'asleep', signal.SIGINT, signal.SIGINT,
                           seconds_later=STEPS_LEFT_SECONDS)
  assert code == 130
  assert 'SIGINT: the run saves and exits' in errors and 'SIGINT: interrupted' in errors


@pytest.mark.slow
def test_a_step_that_does_not_end_is_left_within_the_time():
  code, errors = signalled('a late map function sleeps', 'asleep', signal.SIGTERM,
                           seconds_later=STEPS_LEFT_SECONDS)
  assert code == 143 and 'the step does not end; left without saving' in errors


@pytest.mark.parametrize('is_answered', [False, True])
def test_it_waits_for_a_run_that_saves_but_not_for_one_that_does_not_answer(is_answered):
  codes, left = [], threading.Event()
  handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
  clock = [0.0]
  signals = Signals(leave=lambda code: (codes.append(code), left.set()), clock=lambda: clock[0])
  with signals:
    signals.leave_to_run(lambda: 0.001)
    os.kill(os.getpid(), signal.SIGTERM)
    while signals.received is None:
      time.sleep(0.01)
    if is_answered:
      signals.answer()
    clock[0] = 100.0
    signals.look_again()
    assert left.wait(0.5 if is_answered else 20) != is_answered
    if is_answered:
      signals.has_saved()
      clock[0] = 103.0
      signals.look_again()
      assert left.wait(20)
  assert codes == [143]
  assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_it_is_awake_in_a_process_with_more_handles_than_select_takes():
  handles = [os.dup(0) for _ in range(1100)]
  left = threading.Event()
  try:
    with Signals(leave=lambda code: left.set()):
      os.kill(os.getpid(), signal.SIGTERM)
      assert left.wait(5)
  finally:
    for handle in handles:
      os.close(handle)
