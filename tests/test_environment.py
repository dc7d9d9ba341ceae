"""Set-up: which Python is found, whole environments only, and what `import tensorflow_v1` refuses.

The scripts run against stand-ins for Python that log their arguments, so nothing is downloaded.
"""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import tensorflow_v1.load
from towers.base import installed
from towers.base.usage_error import UsageError

if sys.version_info >= (3, 8):
  from importlib import metadata
else:
  import importlib_metadata as metadata

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ('sh', 'cat', 'cmp', 'cp', 'dirname', 'grep', 'mkdir', 'mv', 'rm', 'rmdir', 'sleep',
         'uname')

# Answers like Python, venv, pip and virtualenv; CAN_NOT names the ones that fail.
PYTHON = r'''#!/bin/sh
echo "$*" >>"$LOG"
may() { case " ${CAN_NOT-} " in *" $1 "*) exit 1 ;; esac; }
make() { mkdir -p "$1/bin" && cp "$0" "$1/bin/python"; }
case "$*" in
  -c*) echo VERSION ;;
  '-m venv '*) may venv; make "$3" ;;
  '-m pip install --target '*) may pip; mkdir "$5" ;;
  '-m virtualenv '*) make "$3" ;;
  '-m pip install '*) may install; sleep "${PIP_SECONDS:-0}" ;;
esac
'''


class Machine:
  """A folder with a checkout, and a PATH with only the given programs."""

  def __init__(self, folder: Path) -> None:
    self.bin = folder / 'bin'
    self.checkout = folder / 'check out'
    self.log = folder / 'log'
    (self.checkout / 'requirements').mkdir(parents=True)
    self.bin.mkdir()
    for tool in TOOLS:
      (self.bin / tool).symlink_to(str(shutil.which(tool)))
    self.program('uname', 'case $1 in -sm) echo Linux x86_64 ;; *) echo host ;; esac')
    for name in ('run', 'test', 'environment.sh'):
      shutil.copy(str(ROOT / name), str(self.checkout / name))
    for name in ('tf1', 'tf2'):
      (self.checkout / 'requirements' / (name + '.txt')).write_text(name + '==1\n')
    # The scripts must not find the Pythons of this machine.
    with open(str(self.checkout / 'environment.sh'), 'a') as script:
      script.write(f'python_folders="{folder}/folders/*/bin"\n')
    self.folders = folder / 'folders'

  def program(self, name: str, body: str) -> None:
    path = self.bin / name
    if path.exists():
      path.unlink()
    path.write_text('#!/bin/sh\n' + body + '\n')
    path.chmod(0o755)

  def python(self, name: str, version: str) -> None:
    self.program(name, PYTHON.replace('VERSION', version))

  def environment(self, settings: dict) -> dict:
    return dict({'PATH': str(self.bin), 'HOME': str(self.bin), 'LOG': str(self.log)}, **settings)

  def choose(self, **settings: str) -> 'subprocess.CompletedProcess[str]':
    commands = 'root=$PWD; . ./environment.sh; choose_target; echo "$target|$python|$line|$why_not"'
    return subprocess.run(['/bin/sh', '-euc', commands], cwd=str(self.checkout),
                          env=self.environment(settings), capture_output=True, text=True)

  def start(self, *arguments: str, script: str = './run',
            **settings: str) -> 'subprocess.Popen[str]':
    # A background process ignores SIGINT, and a shell cannot trap a signal that it ignores from
    # the start.
    return subprocess.Popen(
        [script] + list(arguments), cwd=str(self.checkout), env=self.environment(settings),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

  def run(self, *arguments: str, script: str = './run', **settings: str) -> 'tuple[int, str]':
    process = self.start(*arguments, script=script, **settings)
    _, stderr = process.communicate(timeout=30)
    return process.returncode, stderr

  def calls(self) -> 'list[str]':
    return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path):
  return Machine(tmp_path)


class TestPythonIsFound:

  def test_a_shim_that_exits_127_does_not_count(self, machine):
    machine.program('python3.7', 'exit 127')
    machine.python('python3.11', '3.11')
    chosen = machine.choose().stdout.strip().split('|')
    assert chosen[0] == 'tf2' and chosen[1].endswith('python3.11')
    assert chosen[2] == 'TensorFlow 2.21 on Python 3.11 (.venv-tf2)'
    assert 'no Python 3.7 was found' in chosen[3]

  def test_a_name_proves_nothing(self, machine):
    machine.python('python3.7', '3.8')
    machine.python('python3.12', '3.12')
    assert machine.choose().stdout.startswith('tf2|')

  def test_behind_a_dead_shim_the_folders_are_searched(self, machine):
    machine.program('python3.7', 'exit 127')
    machine.python('python3.11', '3.11')
    machine.python('hidden', '3.7')
    (machine.folders / 'with space' / 'bin').mkdir(parents=True)
    hidden = machine.folders / 'with space' / 'bin' / 'python3.7'
    (machine.bin / 'hidden').rename(hidden)
    assert machine.choose().stdout.startswith(f'tf1|{hidden}|')

  def test_python_of_an_active_environment_counts_by_its_version(self, machine):
    machine.python('python', '3.7')
    assert machine.choose().stdout.startswith('tf1|')

  def test_the_newest_that_runs_is_taken_for_tf2(self, machine):
    machine.program('python3.13', 'exit 127')
    machine.python('python3.10', '3.10')
    machine.python('python3.12', '3.12')
    machine.python('python3', '3.14')
    assert machine.choose(TOWERS_TARGET='tf2').stdout.split('|')[1].endswith('python3.12')

  def test_python37_names_one(self, machine):
    machine.python('mine', '3.7')
    mine = str(machine.bin / 'mine')
    assert machine.choose(PYTHON37=mine).stdout.startswith(f'tf1|{mine}|')

  @pytest.mark.parametrize('version, said', [('3.9', 'is Python 3.9'), (None, 'does not run')])
  def test_a_wrong_python37_is_refused(self, machine, version, said):
    machine.python('python3.11', '3.11')
    if version:
      machine.python('mine', version)
    result = machine.choose(PYTHON37=str(machine.bin / 'mine'))
    assert result.returncode == 2 and said in result.stderr

  def test_only_38_and_39_are_refused_by_name(self, machine):
    machine.python('python3', '3.8')
    machine.python('python', '3.9')
    code, stderr = machine.run()
    assert code == 2 and 'only Python 3.8 3.9 was found' in stderr
    assert 'needs 3.7' in stderr and '3.10' in stderr

  def test_no_python_is_said(self, machine):
    code, stderr = machine.run()
    assert code == 2 and 'no Python was found' in stderr and 'apt-get install' in stderr

  def test_a_wrong_target_is_refused(self, machine):
    machine.python('python3.7', '3.7')
    code, stderr = machine.run(TOWERS_TARGET='tf3')
    assert code == 2 and 'TOWERS_TARGET=tf3' in stderr and 'tf1' in stderr and 'tf2' in stderr

  def test_tf1_without_37_says_how_to_get_it(self, machine):
    machine.python('python3.11', '3.11')
    code, stderr = machine.run(TOWERS_TARGET='tf1')
    assert code == 2 and 'pyenv install 3.7' in stderr and 'TOWERS_TARGET=tf2' in stderr

  def test_tf1_is_for_one_platform(self, machine):
    machine.program('uname', 'echo Darwin arm64')
    machine.python('python3.7', '3.7')
    machine.python('python3.11', '3.11')
    assert 'this is Darwin arm64' in machine.choose().stdout
    assert machine.choose(TOWERS_TARGET='tf1').returncode == 2


class TestEnvironmentIsMade:

  def test_arguments_pass_through_and_the_first_start_installs_the_pins(self, machine):
    machine.python('python3.7', '3.7')
    code, stderr = machine.run('--steps=3', 'two words')
    assert code == 0
    assert stderr.startswith('towers: TensorFlow 1.14 on Python 3.7 (.venv-tf1)\n')
    assert 'some minutes' in stderr
    install = '-m pip install --disable-pip-version-check --require-hashes -r'
    assert f'{install} pip.txt' in machine.calls() and f'{install} tf1.txt' in machine.calls()
    assert machine.calls()[-1] == f'{machine.checkout}/main.py --steps=3 two words'

  def test_tests_take_arguments(self, machine):
    machine.python('python3.7', '3.7')
    assert machine.run('-m', '', '-x', script='./test')[0] == 0
    assert machine.calls()[-1] == (
        '-m pytest --numprocesses=auto --dist=worksteal -m not nightly -m  -x')

  def test_the_second_start_runs_nothing_but_main(self, machine):
    machine.python('python3.7', '3.7')
    machine.run()
    machine.log.unlink()
    code, stderr = machine.run()
    assert code == 0 and stderr == 'towers: TensorFlow 1.14 on Python 3.7 (.venv-tf1)\n'
    assert machine.calls() == [f'{machine.checkout}/main.py']

  def test_tf2_for_want_of_37_is_remembered_with_its_reason(self, machine):
    machine.python('python3.11', '3.11')
    first = machine.run()[1]
    machine.log.unlink()
    second = machine.run()[1]
    assert second == first.splitlines()[0] + '\n' and 'no Python 3.7 was found' in second
    assert len(machine.calls()) == 1

  def test_tf2_that_was_asked_for_once_is_not_the_default(self, machine):
    machine.python('python3.11', '3.11')
    machine.python('python3.7', '3.7')
    assert machine.run(TOWERS_TARGET='tf2')[1].startswith('towers: TensorFlow 2.21')
    assert machine.run()[1].startswith('towers: TensorFlow 1.14')
    assert machine.run(TOWERS_TARGET='tf2')[1] == (
        'towers: TensorFlow 2.21 on Python 3.11 (.venv-tf2)\n')

  def test_changed_pins_are_installed(self, machine):
    machine.python('python3.7', '3.7')
    machine.run()
    (machine.checkout / 'requirements' / 'tf1.txt').write_text('tf1==2\n')
    machine.log.unlink()
    machine.run()
    assert sum('-r tf1.txt' in call for call in machine.calls()) == 1
    assert not any('-m venv' in call for call in machine.calls())

  def test_a_failed_installation_does_not_count(self, machine):
    machine.python('python3.7', '3.7')
    code, stderr = machine.run(CAN_NOT='install')
    assert code == 1 and 'pip could not install' in stderr and 'from the network' in stderr
    assert not any('main.py' in call for call in machine.calls())
    machine.log.unlink()
    assert machine.run()[0] == 0
    assert any('-m venv' in call for call in machine.calls())

  @pytest.mark.parametrize('how', [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
  def test_an_interrupted_one_is_made_anew(self, machine, how):
    machine.python('python3.7', '3.7')
    process = self._start_until_pip_runs(machine, seconds=3)
    # Only to the script: pip's stand-in is its child.
    process.send_signal(how)
    process.communicate()
    assert process.returncode != 0
    machine.log.unlink()
    code, _ = machine.run()
    assert code == 0 and any('-m venv' in call for call in machine.calls())
    assert not (machine.checkout / '.venv-tf1.lock').exists()

  def test_two_at_once_install_once(self, machine):
    machine.python('python3.7', '3.7')
    first = self._start_until_pip_runs(machine)
    code, stderr = machine.run()
    first.communicate()
    assert code == first.returncode == 0
    assert 'another start' in stderr and '.venv-tf1.lock' in stderr
    assert sum('-m venv' in call for call in machine.calls()) == 1

  def test_a_lock_of_another_host_is_left_alone(self, machine):
    lock = machine.checkout / '.venv-tf1.lock'
    lock.mkdir()
    (lock / 'owner').write_text('999999999 elsewhere\n')
    machine.python('python3.7', '3.7')
    process = machine.start()
    line = process.stderr.readline() + process.stderr.readline()
    process.terminate()
    process.communicate()
    assert '999999999 on elsewhere' in line and lock.exists()

  @pytest.mark.parametrize('can_not, others, way', [
      ('venv', ['uv', 'virtualenv'], 'uv venv'),
      ('venv', ['virtualenv'], 'virtualenv --python'),
      ('venv', [], '-m virtualenv'),
  ])
  def test_without_venv_the_next_way_is_taken(self, machine, can_not, others, way):
    machine.python('python3.7', '3.7')
    for other in others:
      machine.program(other, f'echo {other} "$*" >>"$LOG"; for last; do :; done; mkdir -p '
                             f'"$last/bin"; cp "{machine.bin}/python3.7" "$last/bin/python"')
    assert machine.run(CAN_NOT=can_not)[0] == 0
    assert any(way in call for call in machine.calls())

  def test_no_way_at_all_names_the_package(self, machine):
    machine.python('python3.7', '3.7')
    code, stderr = machine.run(CAN_NOT='venv pip')
    assert code == 1 and 'apt-get install python3-venv' in stderr

  @staticmethod
  def _start_until_pip_runs(machine, seconds=1):
    process = machine.start(PIP_SECONDS=str(seconds))
    deadline = time.time() + 10
    while not any('pip install' in call for call in machine.calls()):
      assert time.time() < deadline and process.poll() is None, 'it ended before pip was called'
      time.sleep(0.02)
    return process


def lines_of(path: Path) -> 'list[str]':
  """Returns the requirements of a file, each on one line with its hashes."""
  text = path.read_text().replace('\\\n', ' ')
  return [line for line in text.splitlines() if line and not line.startswith('#')]


def pins_of(path: Path) -> 'list[str]':
  """Returns the requirements of a file without their hashes: 'name==version ; marker'."""
  return [line.split(' --hash=')[0].strip() for line in lines_of(path)]


@pytest.mark.parametrize('name', sorted(
    path.name for path in (ROOT / 'requirements').glob('*.txt')))
def test_every_requirement_is_pinned_exactly_and_has_hashes(name):
  lines = lines_of(ROOT / 'requirements' / name)
  assert lines
  for line in lines:
    assert re.match(r'[\w.-]+==[\w.]+( ; [^#]+?)?( +--hash=sha256:[0-9a-f]{64})+$', line), line


def test_pip_takes_only_files_with_these_hashes():
  script = (ROOT / 'environment.sh').read_text()
  commands = re.findall(r'^[^#\n]*-m pip install (?:[^\n]*\\\n)*[^\n]*', script, re.MULTILINE)
  assert len(commands) == 2 and all('--require-hashes' in command for command in commands)
  # Every Python that environment.sh looks for finds its pip.
  assert [re.sub(r'[\w.]+==[\w.]+', '', pin) for pin in pins_of(
      ROOT / 'requirements' / 'pip.txt')] == [" ; python_full_version < '3.8'",
                                              " ; python_full_version >= '3.10'"]


@pytest.mark.parametrize('name, target', [('tf1.txt', '3.7'), ('tf2.txt', '3')])
def test_every_installed_package_is_locked(name, target):
  """A package that is installed and not locked would have come without a hash."""
  if not f'{sys.version_info[0]}.{sys.version_info[1]}'.startswith(target) or (
      target == '3' and sys.version_info < (3, 10)):
    pytest.skip('of the other target')
  locked = {re.sub('[-_.]+', '-', pin.split('==')[0].lower())
            for file in (name, 'tf2-cuda.txt', 'pip.txt') for pin in pins_of(
                ROOT / 'requirements' / file)}
  needed, known = list(locked - {'pip'}), set()
  while needed:
    package = needed.pop()
    if package in known:
      continue
    known.add(package)
    try:
      requires = metadata.requires(package) or []
    except metadata.PackageNotFoundError:  # Of another platform or version of Python.
      continue
    for requirement in map(Requirement, requires):
      if requirement.marker is None or requirement.marker.evaluate({'extra': ''}):
        needed.append(re.sub('[-_.]+', '-', requirement.name.lower()))
  assert known <= locked, known - locked


def test_the_package_asks_for_the_pinned_versions():
  asked = re.findall(r"\"([\w-]+==[\w.]+); python_version < '3.8'\"",
                     (ROOT / 'pyproject.toml').read_text())
  assert len(asked) == 5 and set(asked) <= set(pins_of(ROOT / 'requirements' / 'tf1.txt'))


def test_only_one_folder_imports_tensorflow():
  importers = set()
  for path in ROOT.rglob('*.py'):
    top = path.relative_to(ROOT).parts[0]
    if top in ('build', 'dist') or top.startswith('.'):
      continue
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
      names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
      if isinstance(node, ast.ImportFrom):
        names = [node.module or '']
      if any(name.split('.')[0] == 'tensorflow' for name in names):
        importers.add(str(path.relative_to(ROOT)))
  # The benchmark's MultiWorkerMirroredStrategy of TensorFlow 2 needs eager mode; the audit of
  # devices asks TensorFlow which kernels it has.
  importers -= {'benchmarks/harness/worker_steps.py', 'tests/harness/device_audit.py'}
  assert {os.path.dirname(path) for path in importers} == {'tensorflow_v1'}


class TestWhatIsRefused:

  @pytest.fixture
  def site(self, tmp_path):
    def make(*folders):
      for folder in folders:
        (tmp_path / folder).mkdir()
      return installed.find_distributions([str(tmp_path / 'missing'), str(tmp_path)])
    return make

  def test_metadata_folders_are_read_by_name(self, site, tmp_path):
    found = site('tensorflow_gpu-1.14.0.dist-info', 'protobuf-3.20.3-py3.7.egg-info', 'tensorflow',
                 'tensorflow_estimator-1.14.0.dist-info', 'tensorflow_probability-0.7.0.dist-info',
                 'Tensorflow_CPU-2.9.0rc1.dist-info')
    assert sorted(found) == sorted([
        ('tensorflow-gpu', '1.14.0', str(tmp_path)), ('protobuf', '3.20.3', str(tmp_path)),
        ('tensorflow-cpu', '2.9.0rc1', str(tmp_path))])

  def test_it_is_quick(self):
    seconds = []
    for _ in range(5):
      started = time.perf_counter()
      found = installed.find_distributions(sys.path)
      seconds.append(time.perf_counter() - started)
    assert {'protobuf'} < {distribution.name for distribution in found}
    assert min(seconds) < 0.01

  @pytest.mark.parametrize('python, folders, said', [
      ((3, 8), ['tensorflow-2.13.0.dist-info'], ['Python 3.8', '3.7', '3.10']),
      ((3, 9), ['tensorflow-2.20.0.dist-info'], ['Python 3.9', '3.7', '3.10']),
      ((3, 7), ['tensorflow-1.14.0.dist-info', 'tensorflow_gpu-1.14.0.dist-info'],
       ['tensorflow 1.14.0', 'tensorflow-gpu 1.14.0',
        'pip uninstall --yes tensorflow tensorflow-gpu']),
      ((3, 11), ['tensorflow-2.21.0.dist-info', 'tensorflow_gpu-1.14.0.dist-info'],
       ['pip uninstall']),
      ((3, 7), ['tensorflow_gpu-1.13.2.dist-info'], ['1.13.2', '1.14']),
      ((3, 7), ['tensorflow_gpu-1.14.0.dist-info', 'protobuf-4.21.0.dist-info'],
       ['4.21.0', 'protobuf==3.20.3']),
      ((3, 7), ['tensorflow_gpu-1.14.0.dist-info', 'protobuf-3.21.0.dist-info'], ['3.21.0']),
  ])
  def test_the_message_names_what_was_found_and_the_fix(self, site, python, folders, said):
    with pytest.raises(UsageError) as error:
      installed.check_environment(python, site(*folders), True)
    for part in said + ['./run']:
      assert part in str(error.value)

  def test_no_tensorflow(self, site):
    for python, package in [((3, 7), 'tensorflow-gpu==1.14.0'), ((3, 12), 'install tensorflow,')]:
      with pytest.raises(UsageError, match='not installed in .*' + package):
        installed.check_environment(python, site(), False)

  @pytest.mark.parametrize('python, folders', [
      ((3, 7), ['tensorflow_gpu-1.14.0.dist-info', 'protobuf-3.20.3.dist-info']),
      ((3, 7), ['tensorflow-1.15.5.dist-info']),
      ((3, 10), ['tensorflow-2.9.0.dist-info', 'tensorflow_cpu-2.9.0.dist-info']),
      ((3, 13), ['tensorflow-2.21.0.dist-info', 'protobuf-7.36.2.dist-info']),
      ((3, 13), []),
  ])
  def test_what_works_is_not_refused(self, site, python, folders):
    installed.check_environment(python, site(*folders), True)

  def test_the_first_folder_of_the_path_wins(self, site, tmp_path):
    for folder, version in [('b', '1.13.0'), ('a', '1.14.0')]:
      (tmp_path / folder / (f'tensorflow-{version}.dist-info')).mkdir(parents=True)
    found = installed.find_distributions([str(tmp_path / 'a'), str(tmp_path / 'b')])
    installed.check_environment((3, 7), found, True)


GRAPH = '''
import os, tempfile
import numpy as np
from tensorflow_v1 import StagingArea, tf

images = np.zeros([32, 4], np.float32)
dataset = tf.data.Dataset.from_tensor_slices(images)
dataset = dataset.shuffle(32, seed=tf.constant(3, tf.int64)).repeat().batch(8)
iterator = tf.data.make_initializable_iterator(dataset)
area = StagingArea([tf.float32], [[8, 4]])
put = area.put([iterator.get_next()])
losses = []
for reuse in (False, True):
  with tf.device('/cpu:0'), tf.variable_scope('tower', reuse=reuse):
    weights = tf.get_variable('weights', [4, 2])
    assert type(weights).__name__ == 'ResourceVariable'
    losses.append(tf.reduce_mean(tf.square(tf.matmul(tf.reshape(area.get(), [8, 4]), weights))))
predicate = tf.placeholder(tf.bool, [])
loss = tf.cond(predicate, lambda: tf.add_n(losses), lambda: losses[0])
ops = tf.get_default_graph().get_operations()
assert any(op.type == 'Switch' for op in ops), 'control flow v2 is on'
step = tf.train.get_or_create_global_step()
train_ops = [tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, step),
             tf.train.AdamOptimizer(0.1).minimize(loss)]
saver = tf.train.Saver(max_to_keep=1)
config = tf.ConfigProto(device_count={'CPU': 2}, allow_soft_placement=True)
with tempfile.TemporaryDirectory() as folder, tf.Session(config=config) as session:
  session.run([tf.global_variables_initializer(), iterator.initializer])
  for _ in range(3):
    session.run(put)
    session.run(put)
    session.run(train_ops, {predicate: True})
    saver.save(session, os.path.join(folder, 'model'), global_step=step)
  saver.restore(session, tf.train.latest_checkpoint(folder))
  tf.summary.FileWriter(folder, session.graph).close()
'''


def run_python(source: str, **settings: str) -> 'subprocess.CompletedProcess[str]':
  environ = {name: value for name, value in os.environ.items()
             if not name.startswith(('TF_', 'PYTHON', 'CUDA_'))}
  environ.update(settings)
  return subprocess.run([sys.executable, '-c', source], cwd=str(ROOT), env=environ,
                        capture_output=True, text=True, timeout=60)


def test_a_normal_program_prints_nothing():
  result = run_python(GRAPH)
  assert (result.returncode, result.stdout, result.stderr) == (0, '', '')


def test_what_the_user_set_wins_and_last_words_arrive():
  result = run_python(
      'import os, tensorflow_v1.load\n'
      'print(os.environ["TF_CPP_MIN_LOG_LEVEL"], os.environ["TF_GPU_THREAD_MODE"], flush=True)\n'
      'with tensorflow_v1.load._without_load_notices():\n'
      '  os.write(2, b"last words\\n")\n'
      '  os.abort()\n', TF_CPP_MIN_LOG_LEVEL='1', TF_GPU_THREAD_MODE='global')
  assert result.returncode == -signal.SIGABRT
  assert result.stdout == '1 global\n' and 'last words' in result.stderr


def test_only_notices_are_dropped_while_loading(capfd):
  with tensorflow_v1.load._without_load_notices():
    os.write(2, b'WARNING: All log messages before absl::InitializeLog() is called are written to '
                b'STDERR\n'
                b'I0000 00:00:17 port.cc:153] oneDNN custom operations are on\n'
                b'F0000 00:00:17 a.cc:1] no AVX\n')
  os.write(2, b'I0000 later\n')
  assert capfd.readouterr().err == 'F0000 00:00:17 a.cc:1] no AVX\nI0000 later\n'


@pytest.mark.parametrize('visible, driver, level', [
    (None, True, '2'), ('0,1', True, '2'), ('', True, '3'), ('-1', True, '3'), (None, False, '3')])
def test_errors_of_a_gpu_are_shown_where_one_may_be(tmp_path, visible, driver, level):
  environ = {} if visible is None else {'CUDA_VISIBLE_DEVICES': visible}
  path = tmp_path if driver else tmp_path / 'missing'
  assert tensorflow_v1.load.default_log_level(environ, [str(path)]) == level
