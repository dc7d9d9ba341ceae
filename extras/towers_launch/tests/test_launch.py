"""The launcher: what it starts, shows, ends and restarts, with children that train nothing."""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from typing import NamedTuple, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher import PRELUDE, SLEEP
from tests import ROOT
from tests.harness.processes import clean_environment, is_alive, output_of, run_python, wait_until
from towers import extras
from towers.base.usage_error import UsageError
from towers_launch import ports as launch_ports
from towers_launch.child_process import ChildProcess, Lines, Output
from towers_launch.members import plan_members
from towers_launch.orphans import follow

pytestmark = pytest.mark.plain


def test_lines_of_several_workers_are_whole_and_in_order(start):
  launcher = start(
      '''
for stream in (1, 2):
  text = ''.join('%d %d %s\\n' % (worker, index, 'x' * (index % 97))
                 for index in range(5000)).encode()
  while text:
    text = text[os.write(stream, text[:1009]):]
os.write(1, b'no end')
''', '--workers=3')
  assert launcher.end() == 0
  for text, last in ((launcher.stdout, ['no end']), (launcher.stderr, [])):
    lines = [re.match(r'worker (\d) │ (.*)$', line).groups() for line in text.splitlines()]
    for worker in '012':
      assert [line for name, line in lines if name == worker] == [
          f"{worker} {index} {'x' * (index % 97)}" for index in range(5000)] + last


@settings(deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([b'a', b'bc', b'\n', b'\r', b'\r\n', b'a\nb\r'])))
def test_however_output_is_cut_its_lines_are_the_same(parts):
  def cut(parts):
    lines = Lines(clock=lambda: float('nan'))  # Never time to show a line that is not whole.
    return [line for part in parts for line in lines.add(part)] + lines.end()

  assert cut(parts) == cut([b''.join(parts)])
  if b'\r' not in b''.join(parts).replace(b'\r\n', b''):
    assert cut(parts) == b''.join(parts).splitlines()


def test_a_redrawn_line_is_shown_now_and_then_and_in_its_last_state():
  now = [0.0]
  lines = Lines(clock=lambda: now[0])
  shown = []
  for percent in range(100):
    now[0] = 0.1 * percent
    shown += lines.add(b'\r%d %%' % percent)
  assert shown == [b'0 %', b'50 %']
  assert lines.add(b'\rdone\n') == [b'done']
  now[0] = 100.0
  # Half of a line end redraws nothing.
  assert lines.add(b'whole\r') == [] and lines.add(b'\n') == [b'whole']


def test_a_line_without_end_takes_no_memory_without_end():
  lines = Lines()
  shown = [line for _ in range(100) for line in lines.add(b'x' * 65536)] + lines.end()
  assert sum(map(len, shown)) == 6553600
  assert lines.add(b'x' * 70000) == [b'x' * 70000]


@pytest.mark.parametrize('no_color', ['', '1'])
def test_tags_have_colours_on_a_terminal_unless_no_color_is_set(start, no_color):
  ours, theirs = pty.openpty()
  launcher = start('print("hello")', '--workers=2', stdout=theirs,
                   environment={'NO_COLOR': no_color, 'TERM': 'xterm', 'PYTHONIOENCODING': 'ascii'})
  os.close(theirs)
  assert launcher.end() == 0
  text = os.read(ours, 4096).decode()
  os.close(ours)
  tags = set(re.findall(r'(.*)hello', text))
  assert tags == ({'worker 0 | ', 'worker 1 | '} if no_color else
                  {'\x1b[36mworker 0 | \x1b[0m', '\x1b[33mworker 1 | \x1b[0m'})


def test_ports_are_distinct_and_free():
  with socket.socket() as taken:
    for _ in range(20):
      ports = launch_ports.find_free_ports(8)
      assert len(set(ports)) == 8
      with contextlib.ExitStack() as sockets:
        for port in ports:
          sockets.enter_context(socket.socket()).bind(('', port))
    [port] = launch_ports.find_free_ports(1)
    taken.bind(('', port))
    taken.listen()
    with pytest.MonkeyPatch().context() as patch:
      patch.setattr(launch_ports, '_PORTS', range(port, port + 1))
      with pytest.raises(UsageError, match='workers=1 needs? as many ports'):
        launch_ports.find_free_ports(1)


class Case(NamedTuple):
  """What children do, and what becomes of them."""
  child: str
  flags: str
  code: int  # Of the launcher.
  said: Sequence[str]  # Lines of the launcher, the last of which is its last.
  rounds: int = 1


GONE = '''
wait_for_all(3)
if worker == 0:
  note('gone')
  sys.exit(75)
if worker == 1:
  wait_for('gone')
  time.sleep(0.3)
  sys.exit(%d)
''' + SLEEP
ASKS = '''
wait_for_all(3)
if worker == 1 and len(open(os.path.join(os.environ['NOTES'], 'starts')).readlines()) == 3:
  sys.exit(76)
if len(open(os.path.join(os.environ['NOTES'], 'starts')).readlines()) == 3:
  time.sleep(3600)
'''
ASKED = ['worker 1 has no memory for its share; all start again with smaller ones',
         'goes on with 3 of 3 workers from the last checkpoint']


def ends(how, sentence, code):
  """Worker 1 of three ends when the others and the evaluator are there."""
  return Case(
      f'wait_for_all(4)\nif worker == 1:\n  {how}\n' + SLEEP,
      '--workers=3 --evaluator --restarts=0', code, [
          f'worker 1 {sentence}', 'worker 0 was killed by SIGTERM',
          'evaluator was killed by SIGTERM', f'error: worker 1 {sentence}; restarts: 0 of 0.'])


CASES = {
    'killed': ends('os.kill(os.getpid(), signal.SIGKILL)', 'was killed by SIGKILL', 137),
    'unnamed signal': ends('os.kill(os.getpid(), signal.SIGRTMIN + 1)',
                           f'was killed by signal {signal.SIGRTMIN + 1}', 129 + signal.SIGRTMIN),
    'code': ends('sys.exit(3)', 'ended with exit code 3', 3),
    'the cause comes later': Case(GONE % 3, '--workers=3 --restarts=0', 3, [
        'error: worker 1 ended with exit code 3; restarts: 0 of 0.']),
    'no cause comes': Case(GONE % 75, '--workers=3 --restarts=0', 75, [
        'error: worker 0 ended with exit code 75; restarts: 0 of 0.']),
    'asks for a start again': Case(ASKS, '--workers=3 --restarts=0', 0, ASKED, rounds=2),
    'asks for a start again, elastic': Case(ASKS, '--workers=3 --min_workers=1', 0, ASKED, 2),
    'restarts': Case('wait_for_all(3)\nif worker == 1:\n  sys.exit(3)\n' + SLEEP,
                     '--workers=2 --evaluator --restarts=2', 3, [
                         'restart 1 of 2 in 1 s', 'restart 2 of 2 in 2 s',
                         'error: worker 1 ended with exit code 3; restarts: 2 of 2.'], rounds=3),
    'mistake': Case('wait_for_all(2)\nif worker == 1:\n  sys.exit(2)\n' + SLEEP,
                    '--workers=2 --restarts=3', 2, [
                        'error: worker 1 ended with exit code 2; a mistake to correct, which no '
                        'restart mends.']),
    'ignores SIGTERM': Case('''
if worker == 1:
  wait_for('ready')
  sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
note('ready')
''' + SLEEP, '--workers=2 --restarts=0 --grace_seconds=0.3', 3, [
    'worker 0 has not ended within 0.3 s of SIGTERM, and is killed',
    'error: worker 1 ended with exit code 3; restarts: 0 of 0.']),
    'the evaluator ends last': Case('''
if worker == 'evaluator':
  wait_for('trained')
  time.sleep(0.5)
note('trained')
''', '--workers=2 --evaluator', 0, ['the workers are done; waiting for the evaluator, which ends '
                                     'by itself after the last checkpoint']),
    'the evaluator fails': Case('''
if worker == 'evaluator':
  note('failed')
  sys.exit(4)
wait_for('failed')
time.sleep(0.5)
''', '--workers=2 --evaluator', 4, [
    'evaluator ended with exit code 4',
    'error: evaluator ended with exit code 4; the workers are done.'])}


NIGHTLY = ('unnamed signal', 'code', 'no cause comes', 'asks for a start again, elastic',
           'the evaluator ends last')


@pytest.mark.nightly(but=[name for name in CASES if name not in NIGHTLY])
@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_how_children_end_decides_what_the_launcher_does(case, start):
  launcher = start(case.child, *case.flags.split())
  assert launcher.end() == case.code
  said = [line[len('launch: '):] for line in launcher.said()]
  assert set(case.said) <= set(said) and case.said[-1] == said[-1]
  # Every round starts all, on other ports.
  num_workers = int(re.search(r'--workers=(\d)', case.flags)[1])
  tasks = [('worker', rank) for rank in range(num_workers)]
  tasks += [('evaluator', 0)] * ('--evaluator' in case.flags)
  rounds = {}
  for config in map(json.loads, launcher.notes('tf_configs')):
    rounds.setdefault(tuple(config['cluster']['worker']), []).append(
        (config['task']['type'], config['task']['index']))
  assert [sorted(started) for started in rounds.values()] == [sorted(tasks)] * case.rounds
  for addresses in rounds:
    assert len(set(addresses)) == num_workers
    assert {address.split(':')[0] for address in addresses} == {'127.0.0.1'}


# Notes each signal, and leaves half a second after the first one.
PATIENT = '''
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
  signal.signal(number, lambda number, _: note('signals', number))
note('ready')
signal.pause()
time.sleep(0.5)
note('left')
sys.exit(7)
'''
STUBBORN = 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\nnote("ready")\n' + SLEEP
FAILS = 'if worker == 1:\n  wait_for("ready")\n  sys.exit(3)\n'


@pytest.mark.nightly(but=['SIGTERM', 'while leaving', 'in a pause', 'twice'])
@pytest.mark.parametrize('child, flags, until, sent, received, left', [
    *((PATIENT, ['--evaluator', '--grace_seconds=0'], ('ready', 3), [number], [number] * 3, 3)
      for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
    # While all are leaving they do not get a second one.
    (FAILS + PATIENT, [], ('signals', 1), [signal.SIGTERM], [signal.SIGTERM], 1),
    # In the pause before a restart.
    ('wait_for_all(2)\nnote("end")\nsys.exit(3)', [], ('end', 1), [signal.SIGTERM], [], 0),
    # A second one kills all.
    (STUBBORN, [], ('ready', 2), [signal.SIGTERM, signal.SIGINT], [], 0)],
    ids=['SIGTERM', 'SIGINT', 'SIGHUP', 'while leaving', 'in a pause', 'twice'])
def test_a_signal_reaches_each_once_and_nothing_starts_again(
    child, flags, until, sent, received, left, start):
  launcher = start(child, '--workers=2', '--restarts=3', *flags)
  launcher.wait_for(*until)
  for number in sent:
    time.sleep(0.2)
    assert launcher.process.poll() is None
    launcher.process.send_signal(number)
  assert launcher.end() == 128 + sent[0]
  assert launcher.notes('signals') == [str(int(number)) for number in received]
  assert len(launcher.notes('left')) == left
  assert len(launcher.notes('tf_configs')) == 2 + ('--evaluator' in flags)
  if len(sent) > 1:
    assert 'launch: SIGINT: all are killed' in launcher.said()


@pytest.mark.parametrize('streams', ['>/dev/full 2>&1', '>&- 2>&-'])
def test_workers_end_well_though_the_launcher_can_write_nothing(streams, tmp_path):
  (tmp_path / 'child.py').write_text(
      PRELUDE + 'for line in range(1000): print(line)\nprint(line, file=sys.stderr)\nnote("end")')
  command = [sys.executable, '-m', 'towers', 'launch', '--workers=2', '--', sys.executable,
             str(tmp_path / 'child.py')]
  done = subprocess.run(['sh', '-c', f'exec "$0" "$@" {streams}', *command], cwd=ROOT, timeout=60,
                        env=clean_environment(NOTES=str(tmp_path)))
  assert done.returncode == 0 and (tmp_path / 'end').read_text() == '\n\n'


def test_a_stopped_worker_handles_sigterm(start):
  launcher = start('''
if worker == 0:
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  note('pid', os.getpid())
else:
  wait_for('stopped')
  sys.exit(3)
''' + SLEEP, '--workers=2', '--restarts=0')
  launcher.wait_for('pid')
  os.kill(int(launcher.notes('pid')[0]), signal.SIGSTOP)
  (launcher.folder / 'stopped').write_text('')
  assert launcher.end() == 3
  assert 'launch: worker 0 ended with exit code 143' in launcher.said()


# A child with a child of its own, which ignores SIGTERM and outlives its parent. It ends in silence
# only if its parent is gone before it is up.
PARENT = '''
grandchild = subprocess.Popen([sys.executable, '-c', 'import signal, time; '
                               'signal.signal(signal.SIGPIPE, signal.SIG_DFL); '
                               'signal.signal(signal.SIGTERM, signal.SIG_IGN); '
                               'print("up", flush=True); '
                               'time.sleep(3600)'], stdout=subprocess.PIPE%s)
grandchild.stdout.readline()
note('pid', os.getpid())
note('pid', grandchild.pid)
'''


def test_a_launcher_that_is_killed_leaves_no_process_behind(start):
  launcher = start(PARENT % '' + SLEEP, '--workers=2', '--evaluator')
  launcher.wait_for('pid', 6)
  pids = [int(line) for line in launcher.notes('pid')]
  assert all(map(is_alive, pids))
  launcher.process.kill()
  wait_until(lambda: not any(map(is_alive, pids)))


@pytest.mark.nightly(but='os.kill(os.getpid(), signal.SIGKILL)')
@pytest.mark.parametrize('end', ['pass', 'sys.exit(3)', 'os.kill(os.getpid(), signal.SIGKILL)'])
def test_what_a_worker_has_started_ends_with_it(start, end):
  launcher = start(PARENT % '' + end, '--workers=2', '--restarts=0')
  launcher.end()
  pids = [int(line) for line in launcher.notes('pid')]
  assert pids
  wait_until(lambda: not any(map(is_alive, pids)))  # SIGKILL has been sent, and takes a moment.


def test_a_process_that_left_the_group_keeps_nothing_waiting(start):
  launcher = start(PARENT.replace('PIPE%s', 'PIPE, start_new_session=True') + 'print("last")',
                   '--workers=1')
  try:
    assert launcher.end() == 0 and launcher.stdout == 'worker 0 │ last\n'
  finally:
    os.kill(int(launcher.notes('pid')[1]), signal.SIGKILL)


def test_what_a_child_has_written_last_is_shown_before_it_has_ended(tmp_path):
  output = tmp_path / 'output'
  with open(str(output), 'w', encoding='utf-8') as file, open(os.devnull, 'wb') as orphans:
    child = ChildProcess('worker 0', [sys.executable, '-c', 'print("last " * 10000)'],
                         environment=dict(os.environ), cores=[], index=0, orphans=orphans,
                         outputs=[Output(file), Output(file)])
    # Nothing is read before the child has ended.
    wait_until(lambda: child.poll() or child.returncode is not None)
    assert child.returncode == 0 and child.descriptors == []
  assert output.read_text(encoding='utf-8') == f"worker 0 │ {'last ' * 10000}\n"


def test_groups_that_have_ended_are_not_killed():
  assert follow(['+12\n', '+13\n', '-12\n', '+14\n']) == {13, 14}


def test_gpus_and_cores_are_shared_out(monkeypatch):
  def plan(num_workers, **settings):
    return [(member.gpus, member.cores) for member in plan_members(num_workers, **settings)]

  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: {2, 3, 5, 7, 11, 13})
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  assert plan(2) == [(None, [])] * 2
  assert plan(2, gpus_per_worker=2) == [(['0', '1'], []), (['2', '3'], [])]
  assert plan(1, gpus_per_worker=0) == [([], [])]
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '4,GPU-8932f937,6')
  assert plan(2, gpus_per_worker=1, cores_per_worker=2, has_evaluator=True) == [
      (['4'], [2, 3]), (['GPU-8932f937'], [5, 7]), (['6'], [11, 13])]
  for flag, each, owner, count in (('gpus', 2, 'CUDA_VISIBLE_DEVICES has', 3),
                                   ('cores', 4, 'this process may use', 6)):
    message = (f'{flag}_per_worker={each} takes {2 * each} for 2 processes, and {owner} {count}: '
               f'use at most {count // 2}')
    with pytest.raises(UsageError, match=message):
      plan(2, **{f'{flag}_per_worker': each})


@pytest.mark.nightly(but='own')
@pytest.mark.parametrize('flags, given, growth', [
    (['--gpus_per_worker=1', '--cores_per_worker=1'], {}, 'None'), ([], {}, 'true'),
    ([], {'TF_FORCE_GPU_ALLOW_GROWTH': 'false'}, 'false')], ids=['own', 'shared', 'given'])
def test_a_worker_has_its_own_gpus_and_cores_or_leaves_memory_to_the_others(
    flags, given, growth, start):
  cores = sorted(os.sched_getaffinity(0))[:2]
  launcher = start("""
note('own', [worker, os.environ['CUDA_VISIBLE_DEVICES'], sorted(os.sched_getaffinity(0)),
             os.environ.get('TF_FORCE_GPU_ALLOW_GROWTH')])
""", f'--workers={len(cores)}', *flags, environment=dict(given, CUDA_VISIBLE_DEVICES='3,4,5'))
  assert launcher.end() == 0
  assert sorted(launcher.notes('own')) == [
      str([worker, str(worker + 3) if flags else '3,4,5',
           [core] if flags else sorted(os.sched_getaffinity(0)),
           None if growth == 'None' else growth]) for worker, core in enumerate(cores)]


WORKERS, COMMAND = ['--workers=1'], ['--', sys.executable, '-c', '']
HOSTS = ['--port=2222', 'a', 'b']


@pytest.mark.parametrize('program, flags, message', [
    ('launch', COMMAND, '--workers'),
    ('launch', ['--workers=0', *COMMAND], 'workers=0 must be at least 1'),
    ('launch', ['--workers=two', *COMMAND], "argument --workers: invalid int value: 'two'"),
    ('launch', [*WORKERS, '--min_workers=2', *COMMAND], 'min_workers=2 must be at most workers=1'),
    ('launch', [*WORKERS, '--restarts=-1', *COMMAND], 'restarts=-1 must be at least 0'),
    ('launch', [*WORKERS, '--grace_seconds=nan', *COMMAND],
     'grace_seconds=nan must be at least 0'),
    ('launch', [*WORKERS, '--cores_per_worker=99999', *COMMAND], 'use at most'),
    ('launch', WORKERS, 'there is no command to start: give it after --'),
    ('launch', [*WORKERS, '--'], 'there is no command to start: give it after --'),
    ('launch', [*WORKERS, 'python', 'main.py'],
     'python is no flag of launch: the command and its flags stand after --'),
    ('launch', [*WORKERS, '--wokers=2', *COMMAND], '--wokers=2 is no flag of launch'),
    ('launch', [*WORKERS, '--', 'no-such-program'], 'the command no-such-program is not found'),
    ('launch', [*WORKERS, '--', './README.md'],
     'the command ./README.md is not found, or is no program'),
    ('tf_config', ['--index=2', *HOSTS], 'index=2, but there are 2 hosts, from 0 to 1'),
    ('tf_config', ['--index=-1', *HOSTS], 'index=-1, but there are 2 hosts'),
    ('tf_config', ['--index=0', '--port=0', 'a'], 'port=0 is not a port'),
    ('tf_config', ['--index=0', *HOSTS, 'a'], 'a is twice among the hosts'),
    ('tf_config', ['--index=0', '--port=2222'], 'HOST')])
def test_mistakes_are_one_line_and_exit_code_2(program, flags, message, monkeypatch, capfd):
  monkeypatch.chdir(ROOT)
  monkeypatch.delenv('TF_CONFIG', raising=False)
  assert extras.run(f'python -m towers {program}', flags) == 2
  stdout, stderr = capfd.readouterr()
  [line] = stderr.splitlines()
  assert stdout == '' and line.startswith('towers: error: ') and message in line


def test_what_cannot_start_is_a_mistake_too(tmp_path, start):
  program = tmp_path / 'program'
  program.write_bytes(b'\0no program')
  program.chmod(0o755)
  done = run_python('-m', 'towers', 'launch', '--workers=2', '--', str(program),
                    env=clean_environment())
  assert (done.returncode, done.stderr) == (
      2, f'towers: error: the command {program} cannot be executed: Exec format error.\n')
  launcher = start('', '--workers=1', environment={'TF_CONFIG': '{}'})
  assert launcher.end() == 2 and 'towers: error: TF_CONFIG is set' in launcher.stderr


def test_nothing_heavy_is_imported():
  code = ('import sys, tests, towers_launch.__main__, towers_launch.tf_config\n'
          'print([name for name in ("tensorflow", "numpy", "absl") if name in sys.modules])')
  assert output_of('-c', code) == '[]\n'
