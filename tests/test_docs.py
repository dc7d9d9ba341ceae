"""Every command in the docs is run, every file they name exists, and the package installs what they promise."""

import os
import re
import shlex
import subprocess
import sys
import zipfile

import pytest

from data.idx_folder import DEBIAN_FASHION_MNIST_DIR

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOCS = ('README.md', 'BUILD.md', 'docs/speed.md')


def read(name):
  with open(os.path.join(ROOT, name), encoding='utf-8') as file:
    return file.read()


def commands():
  for name in DOCS:
    for block in re.findall(r'```sh\n(.*?)```', read(name), re.DOTALL):
      for line in block.splitlines():
        yield pytest.param(line, id='%s: %s' % (name, line))


def translate(command):
  """Returns what to run for a command of the docs: in this environment, and no longer than it takes to see it work.

  `tests/test_environment.py` shows that the two scripts start main.py and pytest; CI runs both as they are written.
  """
  words = shlex.split(command)
  if words[0] == './test':
    return [sys.executable, '-m', 'pytest', '--collect-only', '-q', '-p', 'no:cacheprovider'] + words[1:]
  if words[0] == './run' or words[:2] == ['python', 'main.py']:
    flags = words[1:] if words[0] == './run' else words[2:]
    if '--help' in flags:
      return [sys.executable, 'main.py'] + flags
    if '--data=fashion_mnist' in flags and not os.path.isdir(DEBIAN_FASHION_MNIST_DIR):
      pytest.skip('the full Fashion-MNIST is not installed')
    if '--autotune' in flags:  # What is chosen is not tried, so that the plain settings alone are.
      flags += ['--xla=off', '--graph_rewriter=off', '--inter_threads=2', '--staging_depth=2', '--num_gpus=1']
    # As many steps as it takes to see it work.
    flags = [flag for flag in flags if not flag.startswith('--epochs=')] + ['--steps=2', '--model=linear']
    return [sys.executable, 'main.py'] + flags
  assert words[0] == 'python', 'No test knows how to run %r.' % command
  return [sys.executable] + words[1:]


@pytest.mark.parametrize('command', commands())
def test_every_command_runs(command, tmp_path):
  done = subprocess.run(translate(command), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
                        text=True, env=dict(os.environ, XDG_CACHE_HOME=str(tmp_path)))
  assert done.returncode == 0, done.stdout


def test_every_flag_and_file_in_the_docs_exists():
  flags = subprocess.run([sys.executable, 'main.py', '--help'], cwd=ROOT, stdout=subprocess.PIPE, timeout=60,
                         text=True).stdout + '--help'
  for name in DOCS:
    text = read(name)
    for flag in re.findall(r'--(\w+)', re.sub(r'`?pip [^`\n]*', '', text)):
      assert '--%s' % flag in flags, '%s: --%s' % (name, flag)
    for path in re.findall(r'`((?:towers|staging|models|data|training|tests|examples|requirements)/[\w/.-]+)`', text):
      assert os.path.exists(os.path.join(ROOT, path)) or path == 'models/name.py', '%s: %s' % (name, path)
    for link in re.findall(r'\]\(([^)#]+)\)', text):
      assert os.path.exists(os.path.join(ROOT, link)), '%s: %s' % (name, link)


def test_the_tour_names_every_room():
  tour = read('BUILD.md')
  for folder in ('towers', 'staging', 'models', 'data', 'training', 'examples', 'tests'):
    assert re.search(r'^%s/' % folder, tour, re.MULTILINE), folder
  for name in os.listdir(os.path.join(ROOT, 'towers')):
    if name.endswith('.py') and name not in ('__init__.py', 'batch.py'):
      assert 'towers/' + name in tour or ' ' + name in tour, name


@pytest.mark.slow
def test_the_package_holds_all_that_a_user_imports(tmp_path):
  subprocess.run([sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps', '--wheel-dir', str(tmp_path), '.'],
                 cwd=ROOT, check=True, timeout=300, stdout=subprocess.DEVNULL)
  [wheel] = tmp_path.glob('towers-*.whl')
  with zipfile.ZipFile(str(wheel)) as archive:
    archive.extractall(str(tmp_path / 'installed'))
  code = ('import data, models, staging, towers\n'
          'assert towers.__file__.startswith(%r)\n'
          'assert data.load("sample").train.num_examples == 4000' % str(tmp_path))
  subprocess.run([sys.executable, '-c', code], cwd=str(tmp_path), check=True, timeout=60,
                 env=dict(os.environ, PYTHONPATH=str(tmp_path / 'installed')))
