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

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher import PRELUDE, SLEEP
from tests import ROOT
from tests.harness.processes import clean_environment, is_alive, wait_until
from towers.base.usage_error import UsageError
from towers_launch import ports as launch_ports
from towers_launch import tf_config
from towers_launch.__main__ import main
from towers_launch.child_process import ChildProcess, Lines, Output
from towers_launch.members import plan_members
from towers_launch.orphans import follow


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


def test_every_process_gets_its_rank_and_all_addresses(start):
  launcher = start('note("tf_configs", os.environ["TF_CONFIG"])', '--workers=3', '--evaluator')
  assert launcher.end() == 0
  tf_configs = [json.loads(line) for line in launcher.notes('tf_configs')]
  tasks = sorted((config['task']['type'], config['task']['index']) for config in tf_configs)
  assert tasks == [('evaluator', 0), ('worker', 0), ('worker', 1), ('worker', 2)]
  cluster = tf_configs[0]['cluster']
  assert all(config['cluster'] == cluster for config in tf_configs)
  hosts, ports = zip(*(address.split(':') for address in cluster['worker']))
  assert set(hosts) == {'127.0.0.1'} and len(set(ports)) == 3


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


@pytest.mark.nightly(but='os.kill(os.getpid(), signal.SIGKILL)-137-worker 1 was killed by SIGKILL')
@pytest.mark.parametrize('end, code, sentence', [
    ('os.kill(os.getpid(), signal.SIGKILL)', 137, 'worker 1 was killed by SIGKILL'),
    ('os.kill(os.getpid(), signal.SIGRTMIN + 1)', 128 + signal.SIGRTMIN + 1,
     f'worker 1 was killed by signal {signal.SIGRTMIN + 1}'),
    ('sys.exit(3)', 3, 'worker 1 ended with exit code 3'),
])
def test_a_worker_that_fails_ends_all_and_is_named(start, end, code, sentence):
  launcher = start(f'''
if worker == 1:
  wait_for('asleep')
  {end}
note('asleep')
''' + SLEEP, '--workers=3', '--evaluator', '--restarts=0')
  assert launcher.end() == code
  said = launcher.said()
  assert said[0] == f'launch: {sentence}'
  assert {f'launch: {name} was killed by SIGTERM'
          for name in ('worker 0', 'worker 2', 'evaluator')} < set(said)
  assert said[-1] == f'launch: error: {sentence}; restarts: 0 of 0.'


@pytest.mark.parametrize('late, code, named', [
    ('sys.exit(3)', 3, 'worker 1 ended with exit code 3'),
    ('sys.exit(75)', 75, 'worker 0 ended with exit code 75')])
def test_a_worker_that_leaves_since_another_is_gone_is_not_the_cause(start, late, code, named):
  launcher = start(f'''
if worker == 0:
  note('gone')
  sys.exit(75)
if worker == 1:
  wait_for('gone')
  time.sleep(0.3)
  {late}
''' + SLEEP, '--workers=3', '--restarts=0')
  assert launcher.end() == code
  assert launcher.said()[-1] == f'launch: error: {named}; restarts: 0 of 0.'


@pytest.mark.parametrize('flags', [
    ['--restarts=0'], pytest.param(['--min_workers=1'], marks=pytest.mark.nightly)])
def test_a_worker_that_asks_for_a_start_again_is_no_failure(start, flags):
  launcher = start('''
wait_for_all(3)
if len(open(os.path.join(os.environ['NOTES'], 'starts')).readlines()) == 3:
  if worker == 1:
    sys.exit(76)
  time.sleep(3600)
''', '--workers=3', *flags)
  assert launcher.end() == 0
  assert sorted(launcher.notes('starts')) == ['0', '0', '1', '1', '2', '2']
  said = launcher.said()
  assert 'launch: worker 1 has no memory for its share; all start again with smaller ones' in said
  assert said[-1] == 'launch: goes on with 3 of 3 workers from the last checkpoint'


def test_all_start_again_on_other_ports_as_often_as_asked_for(start):
  launcher = start('''
note('tf_configs', os.environ['TF_CONFIG'])
wait_for_all(2)
if worker == 1:
  sys.exit(3)
''' + SLEEP, '--workers=2', '--restarts=2')
  assert launcher.end() == 3
  assert sorted(launcher.notes('starts')) == ['0'] * 3 + ['1'] * 3
  assert [line for line in launcher.said() if ' in ' in line] == [
      'launch: restart 1 of 2 in 1 s', 'launch: restart 2 of 2 in 2 s']
  assert launcher.said()[-1] == 'launch: error: worker 1 ended with exit code 3; restarts: 2 of 2.'
  ports = {tuple(json.loads(line)['cluster']['worker']) for line in launcher.notes('tf_configs')}
  assert len(ports) == 3


def test_a_mistake_is_not_restarted(start):
  launcher = start(f'wait_for_all(2)\nsys.exit(2) if worker == 1 else {SLEEP}', '--workers=2',
                   '--restarts=3')
  assert launcher.end() == 2
  assert len(launcher.notes('starts')) == 2
  assert launcher.said()[-1] == ('launch: error: worker 1 ended with exit code 2; a mistake to '
                                 'correct, which no restart mends.')


# Notes each signal, and leaves half a second after the first one.
PATIENT = '''
signal.signal(signal.SIGTERM, lambda number, _: note('signals', number))
signal.signal(signal.SIGINT, lambda number, _: note('signals', number))
signal.signal(signal.SIGHUP, lambda number, _: note('signals', number))
note('ready')
signal.pause()
time.sleep(0.5)
note('left')
'''


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_forwarded_once_and_all_leave_by_themselves(start, number):
  launcher = start(PATIENT + f'sys.exit(128 + {number})', '--workers=2', '--evaluator',
                   '--restarts=3', '--grace_seconds=0')
  launcher.wait_for('ready', 3)
  launcher.process.send_signal(number)
  assert launcher.end() == 128 + number
  assert launcher.notes('signals') == [str(int(number))] * 3
  assert len(launcher.notes('left')) == 3 and len(launcher.notes('starts')) == 3


@pytest.mark.parametrize('streams', ['>/dev/full 2>&1', '>&- 2>&-'])
def test_workers_end_well_though_the_launcher_can_write_nothing(streams, tmp_path):
  (tmp_path / 'child.py').write_text(
      PRELUDE + 'for line in range(1000): print(line)\nprint(line, file=sys.stderr)\nnote("end")')
  command = [sys.executable, '-m', 'towers.launch', '--workers=2', '--', sys.executable,
             str(tmp_path / 'child.py')]
  done = subprocess.run(['sh', '-c', f'exec "$0" "$@" {streams}', *command], cwd=ROOT, timeout=60,
                        env=clean_environment(NOTES=str(tmp_path)))
  assert done.returncode == 0 and (tmp_path / 'end').read_text() == '\n\n'


def test_a_signal_while_all_are_leaving_is_not_sent_again_and_nothing_starts_again(start):
  launcher = start('if worker == 1:\n  wait_for("ready")\n  sys.exit(3)\n' + PATIENT,
                   '--workers=2', '--restarts=3')
  launcher.wait_for('signals')
  launcher.process.send_signal(signal.SIGTERM)
  assert launcher.end() == 143
  assert launcher.notes('signals') == ['15'] and launcher.notes('left')
  assert len(launcher.notes('starts')) == 2


def test_a_signal_in_the_pause_before_a_restart_ends_it(start):
  launcher = start('note("end")\nsys.exit(3)', '--workers=1', '--restarts=3')
  launcher.wait_for('end')
  time.sleep(0.3)
  launcher.process.send_signal(signal.SIGTERM)
  assert launcher.end() == 143 and launcher.notes('starts') == ['0']


STUBBORN = '''
signal.signal(signal.SIGTERM, signal.SIG_IGN)
note('ready')
'''


def test_a_second_signal_kills_all_at_once(start):
  launcher = start(STUBBORN + SLEEP, '--workers=2')
  launcher.wait_for('ready', 2)
  launcher.process.send_signal(signal.SIGTERM)
  time.sleep(0.3)
  assert launcher.process.poll() is None
  launcher.process.send_signal(signal.SIGINT)
  assert launcher.end() == 143
  assert 'launch: SIGINT: all are killed' in launcher.said()
  assert 'launch: worker 0 was killed by SIGKILL' in launcher.said()


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(start):
  launcher = start('if worker == 1:\n  wait_for("ready")\n  sys.exit(3)\n' + STUBBORN + SLEEP,
                   '--workers=2', '--restarts=0', '--grace_seconds=0.3')
  assert launcher.end() == 3
  assert 'launch: worker 0 has not ended within 0.3 s of SIGTERM, and is killed' in launcher.said()


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


def test_the_evaluator_ends_after_the_workers(start):
  launcher = start('''
if worker == 'evaluator':
  wait_for('0')
  wait_for('1')
  time.sleep(0.5)
note(str(worker))
''', '--workers=2', '--evaluator')
  assert launcher.end() == 0 and launcher.notes('evaluator')
  assert launcher.said() == ['launch: the workers are done; waiting for the evaluator, which ends '
                             'by itself after the last checkpoint']


def test_an_evaluator_that_fails_is_reported_after_training(start):
  launcher = start('''
if worker == 'evaluator':
  note('failed')
  sys.exit(4)
wait_for('failed')
time.sleep(0.5)
note('trained')
''', '--workers=2', '--evaluator')
  assert launcher.end() == 4 and len(launcher.notes('trained')) == 2
  assert launcher.said() == ['launch: evaluator ended with exit code 4',
                             'launch: error: evaluator ended with exit code 4; the workers are '
                             'done.']


def test_the_evaluator_starts_again_with_the_workers(start):
  launcher = start('wait_for_all(2)\nif worker == 0:\n  sys.exit(3)\n' + SLEEP, '--workers=1',
                   '--evaluator', '--restarts=1')
  assert launcher.end() == 3
  assert sorted(launcher.notes('starts')) == ['0', '0', 'evaluator', 'evaluator']


def test_gpus_and_cores_are_shared_out(monkeypatch):
  def gpus(num_workers, **settings):
    return [member.gpus for member in plan_members(num_workers, **settings)]

  def cores(num_workers, **settings):
    return [member.cores for member in plan_members(num_workers, **settings)]

  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: {2, 3, 5, 7, 11, 13})
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  assert gpus(2) == [None, None]
  assert gpus(2, gpus_per_worker=2) == [['0', '1'], ['2', '3']]
  assert gpus(1, gpus_per_worker=0) == [[]]
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '4,GPU-8932f937,6')
  assert gpus(2, gpus_per_worker=1, has_evaluator=True) == [['4'], ['GPU-8932f937'], ['6']]
  assert cores(2, cores_per_worker=2, has_evaluator=True) == [[2, 3], [5, 7], [11, 13]]
  assert cores(2) == [[], []]
  message = ('gpus_per_worker=2 takes 4 for 2 processes, and CUDA_VISIBLE_DEVICES has 3: use at '
             'most 1')
  with pytest.raises(UsageError, match=message):
    plan_members(2, gpus_per_worker=2)
  message = 'cores_per_worker=4 takes 8 for 2 processes, and this process may use 6: use at most 3'
  with pytest.raises(UsageError, match=message):
    plan_members(2, cores_per_worker=4)


def test_a_worker_gets_the_gpus_and_cores_that_are_its_own(start):
  cores = sorted(os.sched_getaffinity(0))[:2]
  launcher = start('''
note('own', '%d %s %s' % (worker, os.environ['CUDA_VISIBLE_DEVICES'], os.sched_getaffinity(0)))
''', f'--workers={len(cores)}', '--gpus_per_worker=1', '--cores_per_worker=1',
                   environment={'CUDA_VISIBLE_DEVICES': '3,4,5'})
  assert launcher.end() == 0
  assert sorted(launcher.notes('own')) == [
      f'{worker} {worker + 3} {{{core}}}' for worker, core in enumerate(cores)]


@pytest.mark.nightly(but='flags0-given0-true')
@pytest.mark.parametrize('flags, given, expected', [
    ([], {}, 'true'), ([], {'TF_FORCE_GPU_ALLOW_GROWTH': 'false'}, 'false'),
    (['--gpus_per_worker=1'], {}, 'None')])
def test_processes_that_share_gpus_leave_memory_to_the_others(start, flags, given, expected):
  launcher = start('''
note('growth', str(os.environ.get('TF_FORCE_GPU_ALLOW_GROWTH')))
''', '--workers=1', '--evaluator', *flags, environment=given)
  assert launcher.end() == 0
  assert launcher.notes('growth') == [expected] * 2


COMMAND = ['--', sys.executable, '-c', '']


@pytest.mark.parametrize('flags, message', [
    (COMMAND, '--workers'),
    (['--workers=0'] + COMMAND, 'workers=0 must be at least 1'),
    (['--workers=two'] + COMMAND, "argument --workers: invalid int value: 'two'"),
    (['--workers=1', '--restarts=-1'] + COMMAND, 'restarts=-1 must be at least 0'),
    (['--workers=1', '--grace_seconds=nan'] + COMMAND, 'grace_seconds=nan must be at least 0'),
    (['--workers=1', '--cores_per_worker=0'] + COMMAND, 'cores_per_worker=0 must be at least 1'),
    (['--workers=1', '--cores_per_worker=99999'] + COMMAND, 'use at most'),
    (['--workers=1'], 'there is no command to start: give it after --'),
    (['--workers=1', '--'], 'there is no command to start: give it after --'),
    (['--workers=1', 'python', 'main.py'],
     'python is no flag of launch: the command and its flags stand after --'),
    (['--workers=1', '--wokers=2'] + COMMAND, '--wokers=2 is no flag of launch'),
    (['--workers=1', '--', 'no-such-program'], 'the command no-such-program is not found'),
    (['--workers=1', '--', './README.md'],
     'the command ./README.md is not found, or is no program'),
])
def test_mistakes_are_one_line_and_exit_code_2(flags, message, monkeypatch, capfd):
  monkeypatch.chdir(ROOT)
  monkeypatch.delenv('TF_CONFIG', raising=False)
  assert main(flags) == 2
  stdout, stderr = capfd.readouterr()
  [line] = stderr.splitlines()
  assert stdout == '' and line.startswith('launch: error: ') and message in line


def test_a_program_that_cannot_be_executed_is_a_mistake(tmp_path):
  program = tmp_path / 'program'
  program.write_bytes(b'\0no program')
  program.chmod(0o755)
  done = subprocess.run([sys.executable, '-m', 'towers.launch', '--workers=2', '--', str(program)],
                        cwd=ROOT, env=clean_environment(), stderr=subprocess.PIPE, text=True)
  assert (done.returncode, done.stderr) == (
      2, f'launch: error: the command {program} cannot be executed: Exec format error.\n')


def test_a_cluster_in_a_cluster_is_refused(start):
  launcher = start('', '--workers=1', environment={'TF_CONFIG': '{}'})
  assert launcher.end() == 2 and 'launch: error: TF_CONFIG is set' in launcher.stderr


def test_nothing_heavy_is_imported():
  code = ('import sys, tests, towers_launch.__main__, towers_launch.tf_config\n'
          'print([name for name in ("tensorflow", "numpy", "absl") if name in sys.modules])')
  assert subprocess.run([sys.executable, '-c', code], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                        timeout=60).stdout == '[]\n'


@pytest.mark.parametrize('flags, message', [
    (['--index=2', '--port=2222', 'a', 'b'], 'index=2, but there are 2 hosts, from 0 to 1'),
    (['--index=-1', '--port=2222', 'a', 'b'], 'index=-1, but there are 2 hosts'),
    (['--index=0', '--port=0', 'a'], 'port=0 is not a port'),
    (['--index=0', '--port=2222', 'a', 'b', 'a'], 'a is twice among the hosts'),
    (['--index=0', '--port=2222'], 'HOST'),
])
def test_mistakes_in_a_tf_config(flags, message, capfd):
  assert tf_config.main(flags) == 2
  stdout, stderr = capfd.readouterr()
  [line] = stderr.splitlines()
  assert stdout == '' and line.startswith('tf_config.py: error: ') and message in line
