"""A run of main.py answers signals at any moment: words, checkpoint, exit code, and soon."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests import ROOT
from tests.harness.loaded_process import LoadedProcess
from tests.harness.small import diagonal
from towers.training.faults.signals import Signals

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


@pytest.mark.nightly
@pytest.mark.parametrize('fault, moment', [('warm-up is slow', 'warm-up'),
                                           ('building is slow', 'set-up')])
def test_before_the_first_step_a_signal_ends_it_at_once(fault, moment, tmp_path):
  code, errors = signalled(fault, moment, signal.SIGTERM, flags=[f'--checkpoint_dir={tmp_path}'])
  assert code == 143 and 'SIGTERM: interrupted' in errors
  assert not list(tmp_path.glob('*.index'))


@pytest.mark.nightly
def test_a_second_ctrl_c_ends_it_at_once_in_a_step_that_does_not_end():
  code, errors = signalled('a late map function sleeps', 'asleep', signal.SIGINT, signal.SIGINT,
                           seconds_later=STEPS_LEFT_SECONDS)
  assert code == 130
  assert 'SIGINT: the run saves and exits' in errors and 'SIGINT: interrupted' in errors


@pytest.mark.nightly
def test_a_step_that_does_not_end_is_left_within_the_time():
  code, errors = signalled('a late map function sleeps', 'asleep', signal.SIGTERM,
                           seconds_later=STEPS_LEFT_SECONDS)
  assert code == 143 and 'the step does not end; left without saving' in errors


# A run without TensorFlow, which saves by making a file.
RUN = '''
import os, sys, time
from towers.base.output import open_closed_streams, write_line
from towers.training.faults.signals import Signals, exit_code
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
  process = subprocess.Popen(
      ['sh', '-c', f'exec "$0" -c "$1" "$2" {STREAMS[streams]}', sys.executable, RUN, str(saved)],
      cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  try:
    if streams == 'to readers who left':
      process.stdout.close()
      process.stderr.close()
    elif streams == 'to readers who stand still':
      for pipe in (process.stdout, process.stderr):
        fill(pipe.fileno())
    while not ready.exists():
      time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(timeout=GONE_SECONDS) == 128 + number and saved.exists()
  finally:
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()


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
from towers.training.faults.signals import Signals
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


@pytest.mark.parametrize('where, outcome', [('set-up', b'interrupted'), ('run', b'left'),
                                            ('hangs', b'interrupted')])
def test_ctrl_c_ends_a_cell_and_never_its_kernel(where, outcome):
  process = subprocess.Popen([sys.executable, '-c', CELL, where], cwd=ROOT, stdout=subprocess.PIPE)
  with contextlib.closing(process.stdout) as lines:
    for _ in range(2):
      assert lines.readline() == b'ready\n'
      process.send_signal(signal.SIGINT)
      assert lines.readline() == outcome + b'\n'
  assert process.wait(timeout=GONE_SECONDS) == 0


# Holds the interpreter's lock, like the load of a library.
LOAD = '''
import ctypes
from towers.base.default_signals import default_signals
from towers.training.faults.signals import Signals
with Signals(), default_signals():
  print('loading', flush=True)
  ctypes.PyDLL(None).sleep(3600)
'''


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_process_that_can_run_no_python(number):
  process = subprocess.Popen([sys.executable, '-c', LOAD], cwd=ROOT, stdout=subprocess.PIPE)
  try:
    assert process.stdout.readline() == b'loading\n'
    process.send_signal(number)
    assert process.wait(timeout=GONE_SECONDS) == -number
  finally:
    process.kill()
    process.wait()
    process.stdout.close()


# Says how SIGTERM is handled when TensorFlow is about to load, and after that.
FIND = '''
import os, signal, sys
from towers.base import default_signals
class Finder:
  def find_spec(self, name, path=None, target=None):
    if name == 'tensorflow':
      print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
      raise ImportError('enough')
from towers.command_line import main
from towers.training.faults.signals import Signals
import importlib.util
sys.meta_path.insert(0, Finder())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: True if name == 'tensorflow' else find(name)
with Signals():
  try:
    import tensorflow_v1
  except ImportError:
    print(signal.getsignal(signal.SIGTERM) is default_signals.wake)
'''


def test_tensorflow_loads_while_signals_end_the_process_by_themselves():
  done = subprocess.run([sys.executable, '-c', FIND], cwd=ROOT, stdout=subprocess.PIPE)
  assert done.stdout == b'True\nTrue\n'


def test_under_nohup_a_closed_terminal_ends_nothing():
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    with Signals():
      assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
  finally:
    signal.signal(signal.SIGHUP, before)


@pytest.mark.nightly
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_whole_run_saves_though_nobody_reads_its_streams(number, tmp_path):
  command = [sys.executable, 'main.py', '--data=synthetic', '--model=linear', '--device=cpu',
             '--steps=1000000', '--checkpoint_every=20steps', f'--checkpoint_dir={tmp_path}',
             '--validate_every=1000000steps']
  process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  try:
    while not list(tmp_path.glob('*.index')):
      assert process.poll() is None
      time.sleep(0.05)
    process.stdout.close()
    process.stderr.close()
    process.send_signal(number)
    assert process.wait(timeout=GONE_SECONDS) == 128 + number
  finally:
    process.kill()
    process.wait()


@pytest.mark.parametrize('is_answered', [False, True])
def test_it_waits_for_a_run_that_saves_but_not_for_one_that_does_not_answer(is_answered):
  codes, left = [], threading.Event()
  handlers = [signal.getsignal(number) for number in HANDLED]
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
  assert [signal.getsignal(number) for number in HANDLED] == handlers


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
