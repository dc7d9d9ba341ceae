"""A run of main.py answers signals at any moment: words, checkpoint, exit code, and soon."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

import towers
from tests.harness import small
from tests.harness.loaded_process import LoadedProcess
from tests.harness.processes import running, wait_until
from tests.harness.small import diagonal
from towers.process import signals as process_signals
from towers.process.signals import Interrupted, Signals

GONE_SECONDS = 10.0
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# For the steps on batches that were read before the map function fell asleep.
STEPS_LEFT_SECONDS = 1.5


def signalled(fault, moment, *numbers, flags=(), seconds_later=0.0):
  """Sends signals to a run at a moment of it, or later; returns its exit code and stderr."""
  process = LoadedProcess(['-m', 'tests.harness.faulty_run', fault, *flags])
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


@pytest.mark.nightly(but=['training', 'validation'])
@pytest.mark.parametrize('fault, moment, numbers, flags, said', [
    pytest.param(fault, moment, numbers, flags, said, id=name)
    for name, fault, moment, numbers, flags, said in (
        ('training', 'steps are marked', 'training', [signal.SIGTERM], [],
         ['SIGTERM: the run saves and exits', 'resumes from step']),
        ('validation', 'validation is slow', 'validation', [signal.SIGINT],
         ['--validate_every=3steps', '--staging_depth=0'], ['resumes from step 3']),
        # Before the first step, there is nothing to save.
        ('warm-up', 'warm-up is slow', 'warm-up', [signal.SIGTERM], [], ['SIGTERM: interrupted']),
        ('set-up', 'building is slow', 'set-up', [signal.SIGTERM], [], ['SIGTERM: interrupted']),
        # In a step that does not end.
        ('twice', 'a late map function sleeps', 'asleep', [signal.SIGINT, signal.SIGINT], [],
         ['SIGINT: the run saves and exits', 'SIGINT: interrupted']),
        ('once', 'a late map function sleeps', 'asleep', [signal.SIGTERM], [],
         ['the step does not end; left without saving']))])
def test_a_run_ends_by_a_signal_and_goes_on_from_what_it_has_saved(
    fault, moment, numbers, flags, said, tmp_path):
  code, errors = signalled(fault, moment, *numbers, flags=[f'--checkpoint_dir={tmp_path}', *flags],
                           seconds_later=STEPS_LEFT_SECONDS if moment == 'asleep' else 0)
  assert code == 128 + numbers[0]
  for words in said:
    assert words in errors
  saved = re.findall(r'resumes from step (\d+)', errors)
  assert [path.name for path in tmp_path.glob('*.index')] == [
      f'model.ckpt-{step}.index' for step in saved]


@pytest.mark.parametrize('settings', [{}, dict(num_towers=2, accumulate=2)])
def test_a_run_of_short_steps_ends_after_the_step_in_which_the_signal_came(settings, tmp_path):
  def send(step, loss):
    if step == 7:
      os.kill(os.getpid(), signal.SIGTERM)

  program = small.program(train=small.random_examples(64), batch_size=4, **settings)
  with pytest.raises(Interrupted, match='after step 7; started again, the run resumes from s'):
    towers.train(program, steps=1000, callbacks=[send], checkpoint_dir=str(tmp_path), quiet=True)


# A run without TensorFlow, which saves by making a file.
RUN = '''
import os, sys, time
from towers.base.output import open_closed_streams, write_line
from towers.process.signals import Signals, exit_code
open_closed_streams()
with Signals() as signals:
  signals.leave_to_run(lambda: 0.01)
  open(sys.argv[1] + '.ready', 'w').close()
  while signals.received is None:
    write_line('a step')
    time.sleep(0.01)
  signals.answer()
  open(sys.argv[1], 'w').close()
  signals.has_saved()
sys.exit(exit_code(signals.received))
'''
STREAMS = {'without stderr': '2>&-', 'without both': '>&- 2>&-', 'on a full disk':
           '>/dev/full 2>&1', 'to readers who left': '', 'to readers who stand still': ''}


@pytest.mark.parametrize('streams, number', diagonal(
    sorted(STREAMS), [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
def test_signals_save_whatever_became_of_the_streams(streams, number, tmp_path):
  saved, ready = tmp_path / 'saved', tmp_path / 'saved.ready'
  with running('sh', '-c', f'exec "$0" -c "$1" "$2" {STREAMS[streams]}', sys.executable, RUN,
               str(saved), stderr=subprocess.PIPE) as process:
    if streams == 'to readers who left':
      process.stdout.close()
      process.stderr.close()
    elif streams == 'to readers who stand still':
      for pipe in (process.stdout, process.stderr):
        fill(pipe.fileno())
    wait_until(ready.exists)
    process.send_signal(number)
    assert process.wait(timeout=GONE_SECONDS) == 128 + number and saved.exists()


def fill(reader):
  """Fills the pipe of a reader."""
  writer = os.open(f'/proc/self/fd/{reader}', os.O_WRONLY | os.O_NONBLOCK)
  with contextlib.suppress(BlockingIOError):
    while True:
      os.write(writer, bytes(4096))
  os.close(writer)


# The cell of a notebook, in set-up, or in a step that does not end or that a run leaves in time.
CELL = '''
import io, os, sys, time
from towers.process.signals import Signals
out, kernel = sys.stdout, type('OutStream', (io.StringIO,), {'__module__': 'ipykernel.iostream'})
sys.stdout = kernel()
for _ in range(2):
  try:
    with Signals() as signals:
      if sys.argv[1] != 'set-up':
        signals.leave_to_run(lambda: 0.01)
      print('ready', file=out, flush=True)
      until = time.monotonic() + 20
      while time.monotonic() < until and (sys.argv[1] != 'run' or not signals.received):
        time.sleep(0.01)
      print('left', file=out, flush=True)
  except KeyboardInterrupt:
    print('interrupted', file=out, flush=True)
'''


@pytest.mark.nightly(but='run-left')
@pytest.mark.parametrize('where, outcome', [('set-up', b'interrupted'), ('run', b'left'),
                                            ('hangs', b'interrupted')])
def test_ctrl_c_ends_a_cell_and_never_its_kernel(where, outcome):
  with running(sys.executable, '-c', CELL, where) as process:
    for _ in range(2):
      assert process.stdout.readline() == b'ready\n'
      process.send_signal(signal.SIGINT)
      assert process.stdout.readline() == outcome + b'\n'
    assert process.wait(timeout=GONE_SECONDS) == 0


# Holds the interpreter's lock, like the load of a library.
LOAD = '''
import ctypes
from towers.base.default_signals import default_signals
from towers.process.signals import Signals
with Signals(), default_signals():
  print('loading', flush=True)
  ctypes.PyDLL(None).sleep(3600)
'''


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_process_that_can_run_no_python(number):
  with running(sys.executable, '-c', LOAD) as process:
    assert process.stdout.readline() == b'loading\n'
    process.send_signal(number)
    assert process.wait(timeout=GONE_SECONDS) == -number


def test_under_nohup_a_closed_terminal_ends_nothing():
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    with Signals():
      assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
  finally:
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize('is_answered', [False, 'before it is read', 'after'])
def test_it_waits_for_a_run_that_saves_but_not_for_one_that_does_not_answer(
    is_answered, monkeypatch):
  codes, left, read = [], threading.Event(), threading.Event()
  handlers = [signal.getsignal(number) for number in HANDLED]
  clock = [0.0]
  monkeypatch.setattr(os, '_exit', lambda code: (codes.append(code), left.set()))
  monkeypatch.setattr(process_signals, 'time', types.SimpleNamespace(monotonic=lambda: clock[0]))
  with Signals() as signals:
    signals.leave_to_run(lambda: read.set() or 0.001)
    if is_answered == 'before it is read':
      signals.answer()
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals.received == signal.SIGTERM  # At once, and not when the thread has its turn.
    assert read.wait(20)
    if is_answered == 'after':
      signals.answer()
    clock[0] = 100.0
    signals.look_again()
    assert left.wait(0.5 if is_answered else 20) != bool(is_answered)
    if is_answered:
      signals.has_saved()
      clock[0] = 103.0
      signals.look_again()
      assert left.wait(20)
  assert codes == [143]
  assert [signal.getsignal(number) for number in HANDLED] == handlers
