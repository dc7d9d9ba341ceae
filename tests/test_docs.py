"""Every command in the docs runs, and every flag, file and link in them exists."""

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
from tests.data.tfds import MNIST, digits, first_batch
from tests.data.tfds import write as write_tfds
from tests.harness.loaded_process import run_loaded
from tests.harness.processes import output_of
from tests.test_house import EXTRAS, ROOMS
from towers import data
from towers.tensorflow_v1 import tf
from towers_data.idx.idx_folder import DEBIAN_FASHION_MNIST_DIR

DOCS = sorted(
    os.path.join(folder, name)
    for folder in ('', 'docs')
    for name in os.listdir(os.path.join(ROOT, folder))
    if name.endswith('.md'))


def read(name):
  with open(os.path.join(ROOT, name), encoding='utf-8') as file:
    return file.read()


def python_blocks(name):
  """Returns a document's programs and program fragments, in order."""
  return re.findall(r'```python\n(.*?)```', read(name), re.DOTALL)


def prose(name):
  """Returns a document's text without its code blocks."""
  return re.sub(r'```.*?```', '', read(name), flags=re.DOTALL)


def commands(name):
  """Returns a document's commands, in order."""
  blocks = re.findall(r'```sh\n(.*?)```', read(name), re.DOTALL)
  return [line for block in blocks for line in block.splitlines()]


def translate(command):
  """Returns a command of the docs as a short run in this environment.

  It is None for a command that cannot run here, or that another test runs.

  `tests/test_environment.py` shows that the two scripts start main.py and pytest; CI runs both as
  they are written.
  """
  words = shlex.split(command)
  if words[0] == './test':
    # Collecting one file is enough to check the options.
    named = [] if any(word.startswith('tests/') for word in words) else ['tests/test_house.py']
    collect = ['-m', 'pytest', '--collect-only', '-q', '-p', 'no:cacheprovider']
    return [sys.executable, *collect, *words[1:], *named]
  if words[0] == './run' or words[:2] == ['python', 'main.py']:
    flags = words[1:] if words[0] == './run' else words[2:]
    if '--help' in flags:
      return [sys.executable, 'main.py'] + flags
    if '--check' in flags:
      return None  # test_the_check_of_the_docs_agrees runs it as it is written.
    if '--data=fashion_mnist' in flags and not os.path.isdir(DEBIAN_FASHION_MNIST_DIR):
      return None
    if '--autotune' in flags or '--find_batch' in flags or flags == ['--input_only']:
      # They take time; test_autotune.py and test_find_batch.py of towers_tools and
      # tests/test_main_data.py run them.
      return None
    # Two steps are enough to see it work.
    flags = [flag for flag in flags if not flag.startswith('--epochs=')]
    return [sys.executable, 'main.py', *flags, '--steps=2', '--model=linear']
  if 'pdoc' in words:
    return None  # The test of the reference runs it.
  if words[0] in ('kubectl', 'sbatch'):
    return None  # They need a cluster; tests/test_deploy.py shows what their files start.
  if words[2:4] == ['towers', 'launch'] and '--' in words:
    flags, command = words[1:words.index('--')], words[words.index('--') + 1:]
    launched = translate(' '.join(map(shlex.quote, command)))
    return launched and [sys.executable] + flags + ['--'] + launched
  if words[:2] == ['python', '-m'] and words[2].startswith('examples.'):
    name = re.sub('_(before|after)$', '', words[2].split('.')[-1])
    is_run = re.search(rf"['.]{name}", read('tests/test_examples.py'))
    assert is_run, f'{name}: tests/test_examples.py must run it'
    return None
  if words[:3] == ['python', '-m', 'benchmarks.step']:
    return [sys.executable, *words[1:], '--models=linear', '--towers=1', '--kinds=towers,by hand',
            '--rounds=1', '--seconds=0.01']
  if words[:3] == ['python', '-m', 'tests.gallery']:
    return [sys.executable, *words[1:], 'feature_columns']
  assert words[0] == 'python', f'No test knows how to run {command!r}.'
  return [sys.executable] + words[1:]


# Runs main.py several times over; most of a start is the import of TensorFlow.
RUN_ALL = """
import json, sys, main
for flags in json.loads(sys.argv[1]):
  from towers.tensorflow_v1 import tf
  with tf.Graph().as_default():
    code = main.main(['main.py'] + flags)
  if code:
    sys.exit('%s: exit code %d' % (flags, code))
"""


def share_processes(commands):
  """Returns fewer commands: one process runs consecutive commands that start main.py."""
  shared, open_one = [], None
  for words in commands:
    # Settings that TensorFlow reads while it loads need their own process.
    if words[1] != 'main.py' or any(word.startswith('--xla') for word in words):
      shared.append([os.path.join(ROOT, word) if word == 'main.py' else word for word in words])
      if words[1] != 'main.py' and 'pytest' not in words:
        open_one = None  # It may read files of earlier commands, and write files for later ones.
      continue
    if open_one is None:
      open_one = [sys.executable, '-c', RUN_ALL, '[]']
      shared.append(open_one)
    open_one[3] = json.dumps(json.loads(open_one[3]) + [words[2:]])
  return shared


def test_the_readme_is_a_page_that_begins_with_a_program():
  lines = read('README.md').splitlines()
  assert lines.index('```python') < 25
  assert any('**Not run on several GPUs' in line for line in lines[:50])
  assert len(read('README.md').split()) < 900


def test_the_readmes_program_trains(tmp_path):
  [program] = python_blocks('README.md')
  (tmp_path / 'program.py').write_text(program, encoding='utf-8')
  done = run_loaded(['program.py'], cwd=tmp_path, env=dict(os.environ, PYTHONPATH=ROOT))
  assert done.returncode == 0 and done.stderr == '', done.stderr
  loss = float(re.match(r"loss ([\d.]+) {'loss': .*, 'accuracy': .*}\n$", done.stdout).group(1))
  assert loss < 1  # ln 10 = 2.3 is chance.


def test_the_programs_of_the_questions_run():
  programs = python_blocks(os.path.join('docs', 'questions.md'))
  assert programs
  for program in programs:
    with tf.Graph().as_default():
      exec(program, {})


def test_the_program_of_the_metrics_runs(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  program, bleu = python_blocks(os.path.join('docs', 'metrics.md'))
  names = dict(corpus_bleu=lambda *given: given)
  with tf.Graph().as_default():
    exec(program, names)
  measured, wanted = names['measured'], names['labels'][3500:]
  found = np.argmax(np.loadtxt('predictions.csv', delimiter=','), 1)
  assert measured['accuracy'] > 0.6
  of_class = []
  for index in range(10):
    for other in range(10):
      assert measured['confusion'][index, other] == np.sum((wanted == index) & (found == other))
    right = np.sum((wanted == index) & (found == index))
    precision, recall = right / np.sum(found == index), right / np.sum(wanted == index)
    of_class.append(2 * precision * recall / (precision + recall))
  assert measured['f1'] == pytest.approx(np.mean(of_class))
  exec(bleu, names)
  assert names['bleu']([[1, 2, 0]], [[1, 3, 3]], [2]) == ([[[1, 2]]], [[1, 3]])


def test_the_callback_of_the_docs_stops_its_run(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  program = python_blocks(os.path.join('docs', 'callbacks.md'))[0]

  def draw(rows):
    return tf.reshape(tf.matmul(rows, tf.get_variable('w', [4, 4])), [-1, 2, 2, 1])

  rows = np.random.RandomState(0).uniform(size=[6, 4]).astype(np.float32)
  with tf.Graph().as_default():
    names = dict(towers=towers, samples=rows, draw=draw, program=towers.Program(
        lambda batch, is_training: tf.reduce_sum(draw(batch[0]), [1, 2, 3]), batch_size=6,
        train=towers.from_arrays(rows), validation=towers.from_arrays(-rows), num_towers=2,
        device='cpu', optimizer=tf.train.GradientDescentOptimizer(0.1)))
    # What trains makes the validation's loss larger, so that the first is the best.
    exec(program.replace('towers.train(', 'result = towers.train('), names)
  assert names['result']['stopped'] == 'three validations were no better'
  assert names['result']['global_step'] == 4


@pytest.mark.nightly
def test_every_form_of_your_own_data_gives_a_batch(tmp_path, monkeypatch):
  random = np.random.RandomState(0)
  (tmp_path / 'train.csv').write_text('0.5,1.5,2\n2.5,3.5,4\n')
  with tf.io.TFRecordWriter(str(tmp_path / 'train-0.tfrecord')) as writer:
    example = tf.train.Example()
    example.features.feature['x'].float_list.value.extend([1, 2, 3, 4, 5])
    example.features.feature['y'].int64_list.value.append(7)
    writer.write(example.SerializeToString())
  (tmp_path / 'mnist' / '3.0.1').mkdir(parents=True)
  write_tfds(tmp_path / 'mnist' / '3.0.1', MNIST, {'train': [digits([3])]})
  monkeypatch.chdir(tmp_path)
  names = dict(towers=towers, tf=tf, images=random.rand(3, 4), labels=np.arange(3),
               web=towers.from_arrays(np.zeros(6)), code=towers.from_arrays(np.zeros(2)))
  programs = python_blocks(os.path.join('docs', 'data.md'))
  names['pictures'] = random.randint(256, size=(3, 32, 32, 3)).astype(np.uint8)
  forms = (2, 2, 3, 2, 2, 2, 5)
  for program, num_tensors in zip(programs, forms):
    exec(program, names)
    assert len(tf.nest.flatten(first_batch(names['examples'], 1))) == num_tensors
  for program in programs[len(forms):]:
    exec(program, names)
  assert [part.shape for part in tf.nest.flatten(first_batch(names['train'], 1))] == [
      (1, 32, 32, 3), (1,)]
  assert {'make', 'parse'} <= set(names) and (tmp_path / 'train.count').exists()


@pytest.mark.parametrize('name', DOCS)
def test_prose_is_wrapped(name):
  for line in prose(name).splitlines():
    assert len(line) <= 100 or line.startswith(('|', '!')), line


PROGRAMS = [['main.py']] + [['-m', *words.split()] for words in (
    'towers convert', 'towers report', 'towers launch', 'towers tf_config', 'benchmarks.gpu',
    'benchmarks.workers', 'benchmarks.input', 'benchmarks.step', 'benchmarks.predict',
    'tests.chaos')]


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize('name', [name for name in DOCS if commands(name)])
def test_every_command_runs(name, tmp_path):
  # The folder has the files that the docs assume, and those that earlier commands wrote.
  photos = tmp_path / 'photos'
  for index, image in enumerate(jpegs(4)):
    folder = photos / 'train' / f'class_{index % 2}'
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f'{index}.jpg').write_bytes(image)
  shutil.copytree(str(photos / 'train'), str(photos / 'validation'))
  np.save(str(tmp_path / 'images.npy'), data.load('sample').validation.arrays[0][:10])

  environment = dict(os.environ, PYTHONPATH=ROOT, XDG_CACHE_HOME=str(tmp_path / 'cache'))
  environment.pop('TF_ENABLE_ONEDNN_OPTS', None)
  runs = [words for words in map(translate, commands(name)) if words is not None]
  for words in share_processes(runs):
    folder = ROOT if 'pytest' in words else str(tmp_path)  # pytest gets relative paths of tests.
    done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=240, text=True)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}"


def test_every_flag_and_file_in_the_docs_exists():
  flags = ''.join(run_loaded([*program, '--help']).stdout for program in PROGRAMS)
  flags += '--help --helpshort --version'
  for name in DOCS:
    text = read(name)
    own = re.sub(r'`?(?:pip|tensorboard|kubectl|python -m pdoc) [^`\n]*', '', text)
    for flag in re.findall(r'--(\w+)', own):
      assert f'--{flag}' in flags, f'{name}: --{flag}'
    for module in re.findall(r'python -m ((?:towers|examples|benchmarks|tests)[\w.]*\w)', text):
      path = os.path.join(ROOT, *module.split('.'))
      is_there = os.path.exists(path + '.py') or os.path.exists(os.path.join(path, '__main__.py'))
      assert is_there, f'{name}: python -m {module}'
    folders = 'towers|staging|models|tests|examples|benchmarks|requirements|deploy'
    for path in re.findall(rf'`((?:{folders})/[\w/.-]+)`', text):
      assert os.path.exists(os.path.join(ROOT, path)) or path == 'models/name.py', f'{name}: {path}'
    for link in re.findall(r'\]\(([^)#]+)\)', text):
      assert os.path.exists(os.path.join(ROOT, os.path.dirname(name), link)), f'{name}: {link}'


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_check_of_the_docs_agrees():
  written = {tuple(shlex.split(command)[-4:]) for name in DOCS for command in commands(name)
             if '--check' in shlex.split(command)}
  assert written == {('--check', '--model=resnet20', '--batch_norm=sync', '--num_gpus=3')}
  for flags in written:
    stdout = output_of('main.py', *flags, stderr=subprocess.STDOUT, timeout=800)
    assert '3 towers are one tower' in stdout, stdout


@pytest.mark.nightly
def test_the_reference_has_an_entry_for_every_public_name(tmp_path):
  pytest.importorskip('pdoc')
  # As BUILD.md says, but into another folder.
  [command] = [command for command in commands('BUILD.md') if 'pdoc' in command]
  words = [str(tmp_path) if word == 'build/reference' else word for word in shlex.split(command)]
  assert words[0] == 'python' and str(tmp_path) in words
  output_of(*words[1:], timeout=240)
  for module in (towers, data):
    page = tmp_path / (module.__name__.replace('.', os.sep) + '.html')
    page = page.read_text(encoding='utf-8')
    for name in module.__all__:
      [_, entry] = page.split(f'<section id="{name}">')
      # Without the entries of its attributes.
      entry = entry.split('</section>')[0].split('class="classattr"')[0]
      # An alias of a type has no docstring of its own.
      thing = getattr(module, name)
      is_extra = getattr(thing, '__module__', '').startswith('towers_')
      if (inspect.isclass(thing) or inspect.isfunction(thing)) and not is_extra:
        assert 'class="docstring"' in entry, f'{module.__name__}.{name}'


def read_tour():
  """Returns the rooms in BUILD.md's tour, in its order."""
  [tour] = re.findall(r'```\n(main\.py .*?)```', read('BUILD.md'), re.DOTALL)
  lines = [re.match(r'(\S+) +\S', line) for line in tour.splitlines() if line[0] != ' ']
  assert all(lines)
  return [line.group(1) for line in lines]


def test_the_tour_has_a_line_for_every_room():
  tour = read_tour()
  for name in tour:
    assert os.path.exists(os.path.join(ROOT, name)), name
  for room in ROOMS:
    path = ('extras/' if room in EXTRAS else '') + room.replace('.', '/')
    assert {f'{path}/', f'{path}.py'} & {*tour, 'towers/__main__.py'} or not os.path.exists(
        os.path.join(ROOT, path)), room
  for folder in ('examples', 'benchmarks', 'deploy', 'tests', 'docs'):
    assert folder + '/' in tour


def test_the_tour_goes_through_the_rooms_in_their_order():
  named = [re.sub(r'(/|\.py)$', '', name).replace('/', '.') for name in read_tour()[1:]]
  named = [re.sub(r'^extras\.', '', name) for name in named]
  assert [name for name in named if name in ROOMS] == [name for name in ROOMS if name in named]


def test_decisions_are_numbered():
  numbers = list(map(int, re.findall(r'^(\d+)\. \*\*', read('docs/decisions.md'), re.MULTILINE)))
  assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 8
