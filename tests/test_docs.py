"""Every command in the docs is run, every file they name exists, and the package installs what they promise."""

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

import towers
from tests import ROOT
from tests.data.pictures import jpegs
from towers import data
from towers.data.folders.idx_folder import DEBIAN_FASHION_MNIST_DIR

DOCS = sorted(os.path.join(folder, name) for folder in ('', 'docs') for name in os.listdir(os.path.join(ROOT, folder))
              if name.endswith('.md'))
# Whose commands take ten seconds and more.
LONG = {os.path.join('docs', name) for name in ('seeing.md', 'speed.md', 'workers.md')}


def read(name):
  with open(os.path.join(ROOT, name), encoding='utf-8') as file:
    return file.read()


def commands(name):
  """Returns a document's commands, in order."""
  blocks = re.findall(r'```sh\n(.*?)```', read(name), re.DOTALL)
  return [line for block in blocks for line in block.splitlines()]


def translate(command):
  """Returns what to run for a command of the docs: in this environment, and no longer than it takes to see it work.

  None for what cannot run here, or is run by a test of its own.

  `tests/test_environment.py` shows that the two scripts start main.py and pytest; CI runs both as they are written.
  """
  words = shlex.split(command)
  if words[0] == './test':
    # Of all tests those of one file do, which shows what the options come to.
    named = [] if any(word.startswith('tests/') for word in words) else ['tests/test_house.py']
    return [sys.executable, '-m', 'pytest', '--collect-only', '-q', '-p', 'no:cacheprovider'] + words[1:] + named
  if words[0] == './run' or words[:2] == ['python', 'main.py']:
    flags = words[1:] if words[0] == './run' else words[2:]
    if '--help' in flags:
      return [sys.executable, 'main.py'] + flags
    if '--data=fashion_mnist' in flags and not os.path.isdir(DEBIAN_FASHION_MNIST_DIR):
      return None
    if flags == ['--autotune'] or flags == ['--input_only']:
      return None  # They take their time: tests/training/tools/test_autotune.py and tests/test_main_data.py run them.
    # As many steps as it takes to see it work.
    flags = [flag for flag in flags if not flag.startswith('--epochs=')] + ['--steps=2', '--model=linear']
    return [sys.executable, 'main.py'] + flags
  if 'pdoc' in words:
    return None  # The test of the reference runs it.
  if words[0] in ('kubectl', 'sbatch'):
    return None  # They need a cluster; tests/test_deploy.py shows what their files start.
  if words[:3] == ['python', '-m', 'towers.launch'] and '--' in words:
    flags, command = words[1:words.index('--')], words[words.index('--') + 1:]
    launched = translate(' '.join(map(shlex.quote, command)))
    return launched and [sys.executable] + flags + ['--'] + launched
  if words[:2] == ['python', '-m'] and words[2].startswith('examples.'):
    name = re.sub('_(before|after)$', '', words[2].split('.')[-1])
    assert re.search(r"['.]%s" % name, read('tests/test_examples.py')), '%s: tests/test_examples.py must run it' % name
    return None
  if words[:3] == ['python', '-m', 'benchmarks.step']:
    return [sys.executable] + words[1:] + ['--models=linear', '--towers=1', '--kinds=towers,by hand',
                                           '--rounds=1', '--seconds=0.01']
  if words[:3] == ['python', '-m', 'benchmarks.mnist']:
    return [sys.executable] + words[1:] + ['--model=linear', '--steps=2', '--rounds=1']
  assert words[0] == 'python', 'No test knows how to run %r.' % command
  return [sys.executable] + words[1:]


# Runs main.py several times over; most of a start is the import of TensorFlow.
RUN_ALL = """
import json, sys, main
for flags in json.loads(sys.argv[1]):
  from tensorflow_v1 import tf
  with tf.Graph().as_default():
    code = main.main(['main.py'] + flags)
  if code:
    sys.exit('%s: exit code %d' % (flags, code))
"""


def share_processes(commands):
  """Returns commands of which one runs all that follow on each other and start main.py alone."""
  shared = []
  for words in commands:
    # What is set before TensorFlow is loaded needs a process of its own.
    if words[1] != 'main.py' or any(word.startswith('--xla') for word in words):
      shared.append([os.path.join(ROOT, word) if word == 'main.py' else word for word in words])
      continue
    if not (shared and shared[-1][:3] == [sys.executable, '-c', RUN_ALL]):
      shared.append([sys.executable, '-c', RUN_ALL, '[]'])
    shared[-1][3] = json.dumps(json.loads(shared[-1][3]) + [words[2:]])
  return shared


@pytest.mark.timeout(600)
@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in DOCS if commands(name)])
def test_every_command_runs(name, tmp_path):
  # In a folder with what the docs presume to be there; a command also finds what those before it have left.
  for number, image in enumerate(jpegs(4)):
    (tmp_path / 'photos' / 'train' / ('class_%d' % (number % 2))).mkdir(parents=True, exist_ok=True)
    (tmp_path / 'photos' / 'train' / ('class_%d' % (number % 2)) / ('%d.jpg' % number)).write_bytes(image)
  shutil.copytree(str(tmp_path / 'photos' / 'train'), str(tmp_path / 'photos' / 'validation'))
  np.save(str(tmp_path / 'images.npy'), data.load('sample').validation.arrays[0][:10])
  for words in share_processes([words for words in map(translate, commands(name)) if words is not None]):
    # Tests are found by their paths.
    done = subprocess.run(words, cwd=ROOT if 'pytest' in words else str(tmp_path), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=240, text=True,
                          env=dict(os.environ, PYTHONPATH=ROOT, XDG_CACHE_HOME=str(tmp_path / 'cache')))
    assert done.returncode == 0, '%s\n%s' % (' '.join(words), done.stdout)


def test_every_flag_and_file_in_the_docs_exists():
  flags = ''.join(subprocess.run([sys.executable] + program + ['--help'], cwd=ROOT, stdout=subprocess.PIPE, timeout=60,
                                 text=True).stdout
                  for program in (['main.py'], ['-m', 'towers.data.convert'], ['-m', 'towers.training.reporting'],
                                  ['-m', 'towers.launch'], ['-m', 'towers.launch.tf_config'],
                                  ['-m', 'benchmarks.workers'], ['-m', 'benchmarks.input'],
                                  ['-m', 'benchmarks.step'], ['-m', 'benchmarks.mnist'],
                                  ['-m', 'tests.mutants']))
  flags += '--help --helpshort'
  for name in DOCS:
    text = read(name)
    for flag in re.findall(r'--(\w+)', re.sub(r'`?(?:pip|tensorboard|python -m pdoc) [^`\n]*', '', text)):
      assert '--%s' % flag in flags, '%s: --%s' % (name, flag)
    for path in re.findall(r'`((?:towers|staging|models|data|training|tests|examples|requirements|deploy)/[\w/.-]+)`',
                           text):
      assert os.path.exists(os.path.join(ROOT, path)) or path == 'models/name.py', '%s: %s' % (name, path)
    for link in re.findall(r'\]\(([^)#]+)\)', text):
      assert os.path.exists(os.path.join(ROOT, os.path.dirname(name), link)), '%s: %s' % (name, link)


def test_the_reference_has_an_entry_for_every_public_name(tmp_path):
  pytest.importorskip('pdoc')
  # As BUILD.md says, into another folder.
  [command] = [command for command in commands('BUILD.md') if 'pdoc' in command]
  words = [str(tmp_path) if word == 'build/reference' else word for word in shlex.split(command)]
  assert words[0] == 'python' and str(tmp_path) in words
  subprocess.run([sys.executable] + words[1:], cwd=ROOT, check=True, timeout=240, stderr=subprocess.DEVNULL)
  for module in (towers, data):
    page = (tmp_path / ('%s.html' % module.__name__)).read_text(encoding='utf-8')
    for name in module.__all__:
      [_, entry] = page.split('<section id="%s">' % name)
      # Up to what belongs to its attributes.
      entry = entry.split('</section>')[0].split('class="classattr"')[0]
      # An alias of a type keeps its text where it is made.
      thing = getattr(module, name)
      if inspect.isclass(thing) or inspect.isfunction(thing):
        assert 'class="docstring"' in entry, '%s.%s' % (module.__name__, name)


def test_the_tour_names_every_room():
  tour = read('BUILD.md')
  for room in ('tensorflow_v1', 'staging', 'models', 'examples', 'benchmarks', 'tests'):
    assert re.search(r'^%s/' % room, tour, re.MULTILINE), room
  for path, _, names in os.walk(os.path.join(ROOT, 'towers')):
    if '__init__.py' in names and path != os.path.join(ROOT, 'towers'):
      room = os.path.basename(path) + '/'
      assert re.search(r'^ +%s|^towers/%s' % (room, room), tour, re.MULTILINE), room
