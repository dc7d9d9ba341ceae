"""The main job as a user runs it: one process, its exit code and its output."""

import contextlib
import json
import os
import re
import runpy
import subprocess
import sys

import pytest

import main
from tests import ROOT
from tests.harness.loaded_process import run_loaded
from tests.harness.processes import output_of, run_python
from towers import extras
from towers.cli import command_line

RESULT_KEYS = [
    'global_step', 'examples_seen', 'num_towers', 'global_batch_size', 'train_loss',
    'train_accuracy', 'train_top_5', 'validation_loss', 'validation_accuracy', 'validation_top_5',
    'validation_examples', 'best', 'stopped', 'examples_per_second', 'input_wait',
    'first_losses', 'all_reduce_bytes', 'setup_seconds', 'xla_compilations',
    'tensorflow_version']
QUICK = ['--model=linear', '--batch_size=100', '--steps=45', '--seed=3', '--schedule=constant']


def run(*flags):
  return run_loaded(['main.py', *flags])


def run_with_result(folder, *flags):
  path = os.path.join(str(folder), 'result.json')
  done = run_python('main.py', f'--result_file={path}', *flags)
  assert done.returncode == 0, done.stderr
  with open(path) as file:
    return json.load(file), done


@pytest.mark.nightly
@pytest.mark.parametrize('streams', ['>/dev/full 2>&1', '>&- 2>&-', '2>&1 | true'])
def test_results_are_made_whatever_becomes_of_the_log(streams, tmp_path):
  command = [sys.executable, 'main.py', *QUICK, f'--result_file={tmp_path}/result.json',
             f'--checkpoint_dir={tmp_path}/run', f'--export_dir={tmp_path}/served']
  done = subprocess.run(['bash', '-c', f'set -o pipefail; "$0" "$@" {streams}', *command],
                        cwd=ROOT, timeout=120)
  assert done.returncode == 0 and (tmp_path / 'run' / 'model.ckpt-45.index').exists()
  assert json.loads((tmp_path / 'result.json').read_text())['global_step'] == 45
  assert list((tmp_path / 'served').glob('*/saved_model.pb'))


def result_here(folder, *flags):
  """Runs in this process: most of a start is the import of TensorFlow."""
  path = os.path.join(str(folder), 'result.json')
  assert main.main(['main.py', '--result_file=' + path, *flags]) == 0
  with open(path) as file:
    return json.load(file)


@pytest.fixture(scope='module')
def one(tmp_path_factory):
  """The result of one tower."""
  return result_here(tmp_path_factory.mktemp('one'), '--num_gpus=1', '--noshuffle',
                     '--staging_depth=0', *QUICK)


@pytest.mark.parametrize('mode', [
    'split', pytest.param('next', marks=pytest.mark.nightly),
    pytest.param('shard', marks=pytest.mark.nightly)])
def test_eight_towers_run_as_written_and_equal_one(mode, one, tmp_path, capfd):
  flags = ['--input_mode=' + mode, '--num_gpus=8', '--noshuffle'] + QUICK
  if mode == 'split':  # One of them in a process of its own.
    result, done = run_with_result(tmp_path, *flags)
    stdout, stderr = done.stdout, done.stderr
  else:
    result = result_here(tmp_path, *flags)
    stdout, stderr = capfd.readouterr()
  assert list(result) == RESULT_KEYS
  assert result['num_towers'] == 8 and result['global_batch_size'] == 100
  assert result['global_step'] == 45 and result['examples_seen'] == 4500
  assert result['validation_examples'] == 1000
  for key in ('train_loss', 'validation_loss', 'validation_accuracy'):
    assert result[key] == pytest.approx(one[key], abs=1e-5)
  assert result['validation_accuracy'] > 0.7  # A linear model after 45 steps; chance is 0.1.
  # One plain line of warning, and nothing of TensorFlow's.
  assert re.match(r'towers: no GPU is visible to TensorFlow [\d.]+: the 8 towers stand on virtual '
                  r'CPU devices\n$', stderr)
  for words in ('8 towers', '4,000 training and 1,000 validation',
                '13 + 13 + 13 + 13 + 12 + 12 + 12 + 12 on 8 towers', '7,850 weights', 'tower 7',
                'step 45/45', 'validation after step 40', 'done: 45 steps, 4,500 examples'):
    assert words in stdout


def test_a_package_that_is_not_there_is_named():
  """Python without its site-packages."""
  done = run_python('-S', 'main.py')
  assert done.returncode == 2 and done.stdout == ''
  assert re.match(r'towers: error: (numpy|absl) is not installed in \S+: .* `pip install .`.*\n$',
                  done.stderr)


def test_ctrl_c_while_a_package_loads_leaves_no_trace(tmp_path):
  (tmp_path / 'absl.py').write_text('raise KeyboardInterrupt')
  for start in (['main.py'], ['-m', 'towers']):
    done = subprocess.run([sys.executable, *start], cwd=ROOT, capture_output=True,
                          env=dict(os.environ, PYTHONPATH=str(tmp_path)))
    assert (done.returncode, done.stdout, done.stderr) == (130, b'', b'')


@pytest.mark.parametrize('is_main', [False, True], ids=['child', 'command'])
def test_a_process_that_a_command_starts_runs_no_command(is_main, monkeypatch):
  """Python imports the main module again in a spawned child, as those of `convert` are."""
  calls = []
  monkeypatch.setattr(sys, 'argv', ['towers', 'convert', '--to=here'])
  monkeypatch.setattr(extras, 'run', lambda *words: calls.append(words))
  monkeypatch.setattr(command_line, 'main', pytest.fail)
  with pytest.raises(SystemExit) if is_main else contextlib.nullcontext():
    runpy.run_module('towers.__main__', run_name='__main__' if is_main else '__mp_main__')
  assert calls == [('python -m towers convert', ['--to=here'])] * is_main


@pytest.mark.nightly
def test_two_deterministic_runs_are_equal_to_the_bit(tmp_path):
  flags = ['--deterministic', '--input_mode=next', '--num_gpus=3', '--model=lenet', '--steps=10']
  first, _ = run_with_result(tmp_path, *flags)
  second, _ = run_with_result(tmp_path, *flags)
  for key in ('train_loss', 'validation_loss'):
    assert first[key] == second[key]


@pytest.mark.parametrize('flags, words', [
    (['--batch_sise=3'], ['batch_sise', 'batch_size']),
    (['--learning_rate=quick'], ['learning_rate', 'quick']),
    (['--learning_rate=nan'], ['learning_rate=nan', 'finite']),
    (['--input_mode=splt'], ['input_mode=splt', 'split, next, shard']),
    (['--steps=10', '--epochs=1'], ['steps=10', 'epochs=1']),
    (['--data=mnist'], ['mnist', 'data_dir']),
    (['--data=mnist', '--data_dir=/nowhere'], ['/nowhere']),
    (['--data=synthetic', '--data_dir=/tmp'], ['synthetic', 'data_dir']),
    (['--result_file=/sys/nowhere/result.json'], ['/sys/nowhere/result.json']),
    (['--batch_size=3', '--num_gpus=4', '--device=cpu'],
     ['3 examples', '4 towers', 'batch_size of at least 4']),
    (['--device=gpu', '--num_gpus=2'], ['device=gpu', 'sees 0', 'device=cpu']),
    (['--num_gpus=1', '--validation=tower', '--device=cpu'], ['validation_tower', 'num_towers=1']),
    (['--checkpoint_dir=/dev/null/folder', '--device=cpu', '--model=linear'],
     ['checkpoint_dir', '/dev/null/folder']),
    (['--data=tfrecord'], ["'tfrecord' needs a data_dir", 'train-00000-of-01024']),
    (['--data=cifar10', '--data_dir=/tmp', '--image_size=3'],
     ["'cifar10' has no use for image_size"]),
    (['--data=sample', '--augment=imagenet'], ['sample_train', 'augment=cifar'])])
def test_mistakes_end_with_code_2_one_message_and_no_stack_trace(flags, words):
  done = run(*flags)
  assert done.returncode == 2
  assert done.stderr.startswith('towers: error: ') and 'Traceback' not in done.stderr
  assert len(done.stderr.splitlines()) <= 2
  for word in words:
    assert word in done.stderr


def test_help_mistakes_and_paths_on_another_file_system_need_no_tensorflow(tmp_path):
  code = ('import sys\n'
          'import main\n'
          'from towers.settings.table import SETTINGS, Path\n'
          'assert main.main(["main.py", "--batch_size=0"]) == 2\n'
          'assert main.main(["main.py", "--help"]) == 0\n'
          'names = [name for name, setting in SETTINGS.items() if setting.kind is Path]\n'
          'for name in names:\n'
          '  for extra in ([], ["--doctor"]):\n'
          '    assert main.main(["main.py", "--%s=hdfs://nn/x" % name] + extra) == 2, name\n'
          'assert "tensorflow" not in sys.modules\n'
          'print(len(names))')
  environment = dict(os.environ, PYTHONPATH=ROOT, PYTHONDONTWRITEBYTECODE='1')
  done = run_python('-c', code, cwd=str(tmp_path), env=environment)
  assert done.returncode == 0, done.stderr
  count = int(done.stdout.splitlines()[-1])
  assert count >= 8 and done.stderr.count('names another file system') == 2 * count
  assert os.listdir(str(tmp_path)) == []


@pytest.mark.nightly
@pytest.mark.skipif(not os.path.isdir('/proc/self/task'), reason='no list of threads')
def test_an_op_takes_as_many_threads_as_were_asked_for():
  """2.x starts the threads of the process before the session, without the session's config."""
  program = ('import main, os, threading\n'
             'most, ended = 0, threading.Event()\n'
             'def watch():\n'
             '  global most\n'
             '  while not ended.wait(0.005):\n'
             '    most = max(most, len(os.listdir("/proc/self/task")))\n'
             'watcher = threading.Thread(target=watch)\n'
             'watcher.start()\n'
             'code = main.main(["main.py", "--num_gpus=1", "--device=cpu", "--steps=3", "--quiet", '
             '"--model=linear", "--validation=none", "--intra_threads=%d"])\n'
             'ended.set()\n'
             'watcher.join()\n'
             'print(code, most)')
  counts = []
  for num_threads in (1, 41):
    code, count = output_of('-c', program % num_threads).split()[-2:]
    assert code == '0'
    counts.append(int(count))
  # Some of the others may just be there for a moment.
  assert counts[1] - counts[0] == pytest.approx(40, abs=5)
