"""The wheels as a user has them: elsewhere, beside modules of common names, with extras or not."""

import os
import re
import shutil
import sys
import zipfile

import pytest

import towers
from tests import ROOT
from tests.harness.processes import output_of, run_python
from towers import extras
from towers.cli.command_line import main
from towers.extras import FUNCTIONS

# Modules that a user's own folder may hold; the library must import none of them.
USERS_OWN = ['data.py', 'launch.py', 'cores.py', 'garbage.py', 'main.py', 'usage_error.py',
             'base.py', 'staging.py', 'models/__init__.py', 'training/__init__.py',
             'reduce/__init__.py']
PLAIN_RUN = ['--data=sample', '--model=linear', '--device=cpu', '--num_gpus=2', '--steps=3',
             '--quiet']


# Packages of the clone, and what is in the wheel of each.
WHEELS = {'.': {'towers'}, 'extras/towers_data': {'towers_data'},
          'extras/towers_launch': {'towers_launch'}, 'extras/towers_tools': {'towers_tools'}}


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
  """Returns a folder of folders: `towers`, `towers_data` …, each with a wheel's content."""
  folder = tmp_path_factory.mktemp('wheels')
  # From a copy, because a build leaves files in the tree and includes those of an earlier one.
  shutil.copytree(ROOT, str(folder / 'clone'), ignore=lambda _, names: [
      name for name in names if name.startswith('.') or name in ('tests', 'docs', 'build')])
  with open(os.path.join(ROOT, 'README.md'), encoding='utf-8') as file:
    [command] = re.findall(r'`pip (wheel [^`]+)`', file.read())
  words = [name for word in command.split() for name in (
      map(str, (folder / 'clone').glob(word)) if '*' in word else [word])]
  output_of('-m', 'pip', *words, '--quiet', '--no-build-isolation', '--wheel-dir', str(folder),
            cwd=str(folder / 'clone'), timeout=300)
  for wheel in folder.glob('*.whl'):
    with zipfile.ZipFile(str(wheel)) as archive:
      archive.extractall(str(folder / 'installed' / wheel.name.split('-')[0]))
  return folder / 'installed'


@pytest.fixture
def python(installed, tmp_path):
  """Returns a function that runs Python in a folder with modules that fail when imported."""
  for name in USERS_OWN:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'raise AssertionError("the user\'s own {name}")\n')

  def run(*arguments, with_extras=False):
    folders = [installed / 'towers', *(installed.glob('towers_*') if with_extras else ())]
    return run_python(*arguments, cwd=str(tmp_path), timeout=200,
                      env=dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, folders))))

  return run


@pytest.mark.nightly
def test_few_names_are_installed(installed):
  for source, expected in WHEELS.items():
    folder = installed / os.path.basename(source.replace('.', 'towers'))
    names = {path.name for path in folder.iterdir() if not path.name.endswith('.dist-info')}
    assert names == expected


@pytest.mark.nightly
def test_every_module_is_imported_beside_a_users_own(python, installed):
  modules = sorted('.'.join(path.relative_to(installed).with_suffix('').parts[1:])
                   for path in installed.glob('towers*/towers*/**/*.py')
                   if path.name != '__main__.py')
  assert len(modules) > 100
  done = python('-c', 'import importlib, towers\n'
                      f'for name in {modules!r}: importlib.import_module(name)\n'
                      f'assert towers.__file__.startswith({str(installed)!r})\n'
                      'assert all(getattr(towers, name) for name in towers.__all__)\n'
                      'from towers import data\n'
                      'assert data.load("sample").train.num_examples == 4000', with_extras=True)
  assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_the_command_line_trains_beside_a_users_own(python, tmp_path):
  done = python('-m', 'towers', *PLAIN_RUN, '--result_file=result.json')
  assert done.returncode == 0 and (tmp_path / 'result.json').exists(), done.stderr


@pytest.mark.nightly
def test_commands_of_extras_run_with_them_and_say_what_to_install_without(python):
  for command in ('launch', 'tf_config', 'convert', 'make_sample', 'report'):
    done = python('-m', 'towers', command, '--help')
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(
        f'towers: error: python -m towers {command} needs the package towers-')
    assert python('-m', 'towers', command, '--help', with_extras=True).returncode == 0, command
  assert python('-m', 'towers', '--doctor').returncode == 2
  assert 'Python 3.' in python('-m', 'towers', '--doctor', with_extras=True).stdout


@pytest.mark.nightly
def test_a_users_own_modules_stay_theirs(python, tmp_path):
  (tmp_path / 'data.py').write_text('MINE = 7\n')
  (tmp_path / 'models' / '__init__.py').write_text('MINE = 8\n')
  (tmp_path / 'staging.py').write_text('MINE = 9\n')
  (tmp_path / 'job.py').write_text(
      'import data, models, staging, towers\n'
      'from towers.cli.command_line import main\n'
      f'assert main(["job.py"] + {PLAIN_RUN!r}) == 0\n'
      'assert (data.MINE, models.MINE, staging.MINE) == (7, 8, 9)\n')
  done = python('job.py')
  assert done.returncode == 0, done.stderr


@pytest.mark.parametrize('name', ['optimizers.AdamWOptimizer', 'data.load'])
def test_what_the_docs_name_in_a_package_needs_no_import_of_its_own(name):
  output_of('-c', f'import sys, towers\nassert "towers.{name.split(".")[0]}" not in sys.modules\n'
                  f'towers.{name}')


@pytest.mark.parametrize('first, second', [
    ('staging.area', 'towers.staging.area'), ('towers.models.layers', 'models.layers')])
def test_a_package_of_a_checkout_is_one_module_under_both_names(first, second):
  output_of('-W', 'error::ImportWarning', '-c',
            f'import {first} as first, {second} as second, staging, models, towers\n'
            'from towers import models as inner, staging as area\n'
            'assert first is second and first.__spec__.name == first.__name__\n'
            'assert staging is area and models is inner')


def test_a_users_own_modules_are_not_those_of_a_checkout(tmp_path):
  (tmp_path / 'staging.py').write_text('MINE = 1\n')
  (tmp_path / 'models').mkdir()
  (tmp_path / 'models' / '__init__.py').write_text('')
  (tmp_path / 'models' / 'layers.py').write_text('MINE = 2\n')
  output_of('-c', 'import staging, towers, towers.staging, towers.models.layers, models.layers\n'
                  'assert (staging.MINE, models.layers.MINE) == (1, 2)\n'
                  'assert towers.staging.Stage and towers.models.layers.Layers',
            cwd=str(tmp_path), env=dict(os.environ, PYTHONPATH=ROOT))


def test_the_library_is_imported_without_tensorflow():
  code = ('import sys, towers\n'
          'towers.UsageError, towers.padded, towers.from_arrays\n'
          'assert "tensorflow" not in sys.modules')
  output_of('-c', code)


def test_tensorflow_loads_without_keras_and_setuptools_and_each_is_there_when_asked_for():
  code = ('import sys, towers\n'
          'from towers.tensorflow_v1 import tf\n'
          'unused = {"keras", "tf_keras", "setuptools", "distutils"} & set(sys.modules)\n'
          'assert not unused, unused\n'
          'import warnings\n'
          'with warnings.catch_warnings(record=True) as caught:\n'
          '  import setuptools\n'
          'assert not [each for each in caught if "istutils was" in str(each.message)]\n'
          'tf.keras.optimizers.Adam, tf.keras.layers.Dense, setuptools.Extension')
  output_of('-c', code)


@pytest.mark.parametrize('asked', sorted(FUNCTIONS))
def test_a_clone_has_all_that_can_be_asked_for(asked):
  assert callable(extras.load_extra(asked))


@pytest.fixture
def bare(monkeypatch, tmp_path):
  """Makes this process that of a wheel without extras."""
  monkeypatch.setattr(extras, 'FOLDER', str(tmp_path))
  monkeypatch.setattr(sys, 'path', [
      folder for folder in sys.path if not os.path.basename(folder).startswith('towers_')])
  for name in [name for name in sys.modules if name.startswith('towers_')]:
    monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize('flags, package', [
    (['--doctor'], 'tools'), (['--autotune', *PLAIN_RUN], 'tools'),
    (['--find_batch', *PLAIN_RUN], 'tools'), (['--input_only', *PLAIN_RUN], 'tools'),
    (['--report=page.html', *PLAIN_RUN], 'tools'),
    (['--trace_steps=1:1', *PLAIN_RUN], 'tools'), (['--data=cifar10', '--data_dir=.'], 'data'),
    *(([f'--data={name}', '--data_dir=.'], 'data')
      for name in ('images', 'npy', 'tfds', 'tfrecord'))])
def test_a_flag_without_its_package_says_what_to_install(
    bare, monkeypatch, tmp_path, capsys, flags, package):
  monkeypatch.chdir(tmp_path)
  assert main(['main.py', *flags]) == 2
  [line] = capsys.readouterr().err.splitlines()
  asked = flags[0].split('=')[0] if package == 'tools' else flags[0].lstrip('-')
  asked = asked.lstrip('-') if asked in ('--report', '--trace_steps') else asked
  assert line == (f'towers: error: {asked} needs the package towers-{package}, which is not '
                  f'installed: install its wheel as that of towers, pip install towers_{package}-'
                  f'{towers.__version__}-py3-none-any.whl; in a clone, pip wheel --no-deps '
                  f'extras/towers_{package} makes it.')


def test_an_evaluator_without_its_package_says_what_to_install(bare, monkeypatch, tmp_path, capsys):
  monkeypatch.setenv('TF_CONFIG', '{"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator"}}')
  assert main(['main.py', *PLAIN_RUN, f'--checkpoint_dir={tmp_path}']) == 2
  assert 'an evaluator needs the package towers-tools' in capsys.readouterr().err


def test_the_run_itself_needs_none(bare, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  assert main(['main.py', *PLAIN_RUN]) == 0
  assert not any(name.startswith('towers_') for name in sys.modules)
