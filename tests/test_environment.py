"""Set-up: which Python is found, whole environments only, and which TensorFlow is refused.

The scripts run against stand-ins for Python that log their arguments, so nothing is downloaded.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import towers.tensorflow_v1.load
from towers.base import installed
from towers.base.usage_error import UsageError

pytestmark = pytest.mark.plain
ROOT = Path(__file__).resolve().parent.parent
TOOLS = ('sh', 'cat', 'cmp', 'cp', 'dirname', 'flock', 'mkdir', 'rm', 'sleep', 'tail')

# Answers like Python, venv and pip; CAN_NOT names the ones that fail.
PYTHON = r'''#!/bin/sh
echo "$*" >>"$LOG"
may() { case " ${CAN_NOT-} " in *" $1 "*) exit 1 ;; esac; }
case "$*" in
  -c*) echo VERSION ;;
  '-m venv '*) may venv; mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  '-m pip install '*) echo "noise of pip"; may install; sleep "${PIP_SECONDS:-0}" ;;
esac
'''


class Machine:
  """A folder with a checkout, and a PATH with only the given programs."""

  def __init__(self, folder: Path) -> None:
    self.bin, self.log, self.folders = folder / 'bin', folder / 'log', folder / 'folders'
    self.checkout = folder / 'check out'
    (self.checkout / 'requirements').mkdir(parents=True)
    self.bin.mkdir()
    for tool in TOOLS:
      (self.bin / tool).symlink_to(str(shutil.which(tool)))
    self.program('uname', 'echo Linux x86_64')
    for name in ('run', 'test', 'environment.sh'):
      shutil.copy(str(ROOT / name), str(self.checkout / name))
    for name in ('tf1', 'tf2'):
      (self.checkout / 'requirements' / (name + '.txt')).write_text(name + '==1\n')
    # The scripts must not find the Pythons of this machine.
    with open(str(self.checkout / 'environment.sh'), 'a') as script:
      script.write(f'python_folders="{folder}/folders/*/bin"\n')

  def program(self, name: str, body: str) -> None:
    path = self.bin / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/sh\n' + body + '\n')
    path.chmod(0o755)

  def pythons(self, **versions: 'str | None') -> None:
    """Makes Pythons by name, `_` for a dot; of no version: one that exits with 127."""
    for name, version in versions.items():
      self.program(name.replace('_', '.'),
                   PYTHON.replace('VERSION', version) if version else 'exit 127')

  def start(self, *arguments: str, **settings: str) -> 'subprocess.Popen[str]':
    return subprocess.Popen(
        arguments or ['./run'], cwd=str(self.checkout), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
        env=dict({'PATH': str(self.bin), 'HOME': str(self.bin), 'LOG': str(self.log)}, **settings))

  def run(self, *arguments: str, **settings: str) -> 'tuple[int, str]':
    """Returns the exit code, and what was said on stderr."""
    process = self.start(*arguments, **settings)
    _, stderr = process.communicate(timeout=30)
    return process.returncode, stderr

  def calls(self) -> 'list[str]':
    """Returns what Pythons were asked since the last call."""
    lines = self.log.read_text().splitlines() if self.log.exists() else []
    self.log.write_text('')
    return [line for line in lines if not line.startswith('-c')]


@pytest.fixture
def machine(tmp_path):
  return Machine(tmp_path)


@pytest.mark.parametrize('pythons, settings, line', [
    (dict(python3_7='3.7', python3_11='3.11'), {}, '1.14 on Python 3.7 (.venv-tf1)'),
    (dict(python='3.7'), {}, '1.14 on Python 3.7'),
    (dict(python3_7=None, python3_11='3.11'), {}, '2.21 on Python 3.11 (.venv-tf2); no Python 3.7'),
    (dict(python3_7='3.8', python3_12='3.12'), {}, '2.21 on Python 3.12'),
    (dict(python3_13=None, python3_10='3.10', python3_12='3.12', python3='3.14', python3_7='3.7'),
     dict(TOWERS_TARGET='tf2'), '2.21 on Python 3.12 (.venv-tf2)\n'),
    (dict(mine='3.7', python3_11='3.11'), dict(PYTHON37='mine'), '1.14 on Python 3.7')])
def test_the_first_python_that_runs_and_fits_is_taken(machine, pythons, settings, line):
  machine.pythons(**pythons)
  code, stderr = machine.run(**settings)
  assert code == 0 and stderr.startswith(f'towers: TensorFlow {line}')


def test_behind_a_dead_shim_the_folders_are_searched(machine):
  machine.pythons(python3_7=None, python3_11='3.11')
  machine.bin = machine.folders / 'with space' / 'bin'
  machine.pythons(python3_7='3.7')
  machine.bin = machine.log.parent / 'bin'
  assert f'{machine.folders}/with space/bin/python3.7' in machine.run()[1]


@pytest.mark.parametrize('pythons, settings, words', [
    ({}, {}, ['no Python was found', 'apt-get install']),
    (dict(python3='3.8', python='3.9'), {}, ['only Python 3.8 3.9 was found', 'needs 3.7', '3.10']),
    (dict(python3_7='3.7'), dict(TOWERS_TARGET='tf3'), ['TOWERS_TARGET=tf3', 'tf1', 'tf2']),
    (dict(python3_11='3.11'), dict(TOWERS_TARGET='tf1'), ['pyenv install 3.7', '=tf2']),
    (dict(mine='3.9'), dict(PYTHON37='mine'), ['PYTHON37=mine is Python 3.9; name']),
    ({}, dict(PYTHON37='mine'), ['PYTHON37=mine does not run; name'])])
def test_what_cannot_be_found_is_said_with_the_fix(machine, pythons, settings, words):
  machine.pythons(**pythons)
  code, stderr = machine.run(**settings)
  assert code == 2 and all(word in stderr for word in words), stderr


def test_tf1_is_for_one_platform(machine):
  machine.program('uname', 'echo Darwin arm64')
  machine.pythons(python3_7='3.7', python3_11='3.11')
  assert 'this is Darwin arm64' in machine.run()[1]
  assert machine.run(TOWERS_TARGET='tf1')[0] == 2


def test_the_first_start_installs_and_the_second_does_nothing(machine):
  machine.pythons(python3_7='3.7')
  code, stderr = machine.run('./run', '--steps=3', 'two words')
  assert code == 0 and 'some minutes' in stderr and len(stderr.splitlines()) == 3
  install = '-m pip install --disable-pip-version-check --require-hashes -r'
  main = f'{machine.checkout}/main.py'
  assert machine.calls() == [f'-m venv {machine.checkout}/.venv-tf1', f'{install} pip.txt',
                             f'{install} tf1.txt', f'{main} --steps=3 two words']
  assert machine.run() == (0, 'towers: TensorFlow 1.14 on Python 3.7 (.venv-tf1)\n')
  assert machine.calls() == [main]
  assert machine.run('./test', '-m', '', '-x')[0] == 0
  assert machine.calls() == ['-m pytest --numprocesses=auto --dist=worksteal -m not nightly -m  -x']

  (machine.checkout / 'requirements' / 'tf1.txt').write_text('tf1==2\n')
  machine.run()
  assert machine.calls() == [f'{install} pip.txt', f'{install} tf1.txt', main]


def test_a_failed_installation_shows_what_pip_said_and_is_repeated(machine):
  machine.pythons(python3_7='3.7')
  code, stderr = machine.run(CAN_NOT='install')
  assert code == 1 and 'noise of pip' in stderr and 'pip could not install' in stderr
  assert not any('main.py' in call for call in machine.calls())
  assert machine.run()[0] == 0 and any('-m venv' in call for call in machine.calls())


def start_until_pip_runs(machine, seconds):
  process = machine.start(PIP_SECONDS=str(seconds))
  deadline = time.time() + 10
  while 'pip install' not in (machine.log.read_text() if machine.log.exists() else ''):
    assert time.time() < deadline and process.poll() is None, 'it ended before pip was called'
    time.sleep(0.02)
  return process


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize('how', [signal.SIGKILL, signal.SIGTERM])
def test_an_interrupted_installation_is_repeated(machine, how):
  machine.pythons(python3_7='3.7')
  process = start_until_pip_runs(machine, seconds=3)
  process.send_signal(how)  # Only to the script: pip's stand-in is its child, and goes on.
  process.communicate()
  machine.calls()
  code, stderr = machine.run()
  assert process.returncode != 0 and code == 0 and 'another start' in stderr
  assert any('-m venv' in call for call in machine.calls())


def test_two_at_once_install_once(machine):
  machine.pythons(python3_7='3.7')
  first = start_until_pip_runs(machine, seconds=1)
  code, stderr = machine.run()
  first.communicate()
  assert code == first.returncode == 0 and 'another start' in stderr
  assert sum('-m venv' in call for call in machine.calls()) == 1


def test_without_venv_uv_is_taken_and_without_both_the_package_is_named(machine):
  machine.pythons(python3_7='3.7')
  code, stderr = machine.run(CAN_NOT='venv')
  assert code == 1 and 'apt-get install python3-venv' in stderr
  machine.program('uv', 'for last; do :; done; mkdir -p "$last/bin"; '
                        f'cp "{machine.bin}/python3.7" "$last/bin/python"')
  assert machine.run(CAN_NOT='venv')[0] == 0


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
  assert len(commands) == 1 and all('--require-hashes' in command for command in commands)
  # Every Python that environment.sh looks for finds its pip.
  assert [re.sub(r'[\w.]+==[\w.]+', '', pin) for pin in pins_of(
      ROOT / 'requirements' / 'pip.txt')] == [" ; python_full_version < '3.8'",
                                              " ; python_full_version >= '3.10'"]


def test_the_package_asks_for_the_pinned_versions():
  asked = re.findall(r"\"([\w-]+==[\w.]+); python_version < '3.8'\"",
                     (ROOT / 'pyproject.toml').read_text())
  assert len(asked) == 5 and set(asked) <= set(pins_of(ROOT / 'requirements' / 'tf1.txt'))


def test_only_one_folder_imports_tensorflow():
  importers = set()
  for path in ROOT.rglob('*.py'):
    path = path.relative_to(ROOT)
    if not path.parts[0].startswith('.') and path.parts[0] not in ('build', 'dist') and re.search(
        r'^ *(import|from) tensorflow\b', (ROOT / path).read_text(encoding='utf-8'), re.MULTILINE):
      importers.add(str(path))
  # The benchmark's MultiWorkerMirroredStrategy of TensorFlow 2 needs eager mode; the audit of
  # devices asks TensorFlow which kernels it has; models of others use what TensorFlow itself has.
  importers -= {'benchmarks/harness/worker_steps.py', 'tests/harness/device_audit.py',
                'tests/coupling/zoo/parts.py', 'tests/placement/test_gpu_memory.py',
                'tests/tensorflow_v1/test_norms.py',
                'tests/tower/batch_norm/test_sync_other_layers.py'}
  # Programs of users take it by its own name.
  importers = {path for path in importers if not path.startswith('examples/')}
  assert {os.path.dirname(path) for path in importers} == {'towers/tensorflow_v1'}


@pytest.fixture
def site(tmp_path):
  def make(*folders):
    for folder in folders:
      (tmp_path / folder).mkdir()
    return installed.find_distributions([str(tmp_path / 'missing'), str(tmp_path)])
  return make


def test_metadata_folders_are_read_by_name(site, tmp_path):
  found = site('tensorflow_gpu-1.14.0.dist-info', 'protobuf-3.20.3-py3.7.egg-info', 'tensorflow',
               'tensorflow_estimator-1.14.0.dist-info', 'Tensorflow_CPU-2.9.0rc1.dist-info')
  assert sorted(found) == sorted([
      ('tensorflow-gpu', '1.14.0', str(tmp_path)), ('protobuf', '3.20.3', str(tmp_path)),
      ('tensorflow-cpu', '2.9.0rc1', str(tmp_path))])


TF1 = 'tensorflow_gpu-1.14.0.dist-info'


@pytest.mark.parametrize('python, folders, said', [
    ((3, 8), ['tensorflow-2.13.0.dist-info'], ['Python 3.8', '3.7', '3.10']),
    ((3, 7), ['tensorflow-1.14.0.dist-info', TF1],
     ['tensorflow 1.14.0', 'tensorflow-gpu 1.14.0',
      'pip uninstall --yes tensorflow tensorflow-gpu']),
    ((3, 7), ['tensorflow_gpu-1.13.2.dist-info'], ['1.13.2', '1.14']),
    ((3, 7), [TF1, 'protobuf-3.21.0.dist-info'], ['3.21.0', 'protobuf==3.20.3']),
    ((3, 7), None, ['not installed in ', 'tensorflow-gpu==1.14.0']),
    ((3, 12), None, ['not installed in ', 'install tensorflow,'])])
def test_the_message_names_what_was_found_and_the_fix(site, python, folders, said):
  with pytest.raises(UsageError) as error:
    installed.check_environment(python, site(*folders or []), folders is not None)
  for part in said + ['./run']:
    assert part in str(error.value)


def test_no_folder_for_temporary_files(site, monkeypatch):
  monkeypatch.setattr(tempfile, 'tempdir', None)
  monkeypatch.setattr(tempfile, '_candidate_tempdir_list', lambda: ['/dev/null/a', '/dev/null/b'])
  with pytest.raises(UsageError, match="No usable .*'/dev/null/b'.*set TMPDIR"):
    installed.check_environment((3, 7), site(), True)


@pytest.mark.parametrize('python, folders, is_tested', [
    ((3, 7), [TF1, 'protobuf-3.20.3.dist-info'], True),
    ((3, 10), ['tensorflow-2.9.0.dist-info', 'tensorflow_cpu-2.9.0.dist-info'], True),
    ((3, 13), ['tensorflow-2.21.0.dist-info', 'protobuf-7.36.2.dist-info'], True),
    ((3, 13), [], True),
    ((3, 8), ['nvidia_tensorflow-1.15.5+nv23.03.dist-info'], False),
    ((3, 7), ['tensorflow-1.15.0.dist-info'], False)])
def test_what_works_is_not_refused(site, python, folders, is_tested):
  said = installed.check_environment(python, site(*folders), True)
  assert said == '' if is_tested else 'is not tested' in said


GRAPH = '''
import tempfile
import numpy as np
from towers.tensorflow_v1 import StagingArea, tf

dataset = tf.data.Dataset.from_tensor_slices(np.zeros([32, 4], np.float32))
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
    saver.save(session, folder + '/model', global_step=step)
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


@pytest.mark.nightly
def test_what_the_user_set_wins_and_last_words_arrive():
  result = run_python(
      'import os, towers.tensorflow_v1.load\n'
      'print(os.environ["TF_CPP_MIN_LOG_LEVEL"], os.environ["TF_GPU_THREAD_MODE"], flush=True)\n'
      'with towers.tensorflow_v1.load._without_load_notices():\n'
      '  os.write(2, b"last words\\n")\n'
      '  os.abort()\n', TF_CPP_MIN_LOG_LEVEL='1', TF_GPU_THREAD_MODE='global')
  assert result.returncode == -signal.SIGABRT
  assert result.stdout == '1 global\n' and 'last words' in result.stderr


def test_only_notices_are_dropped_while_loading(capfd):
  with towers.tensorflow_v1.load._without_load_notices():
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
  assert towers.tensorflow_v1.load.default_log_level(environ, [str(path)]) == level
