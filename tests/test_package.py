"""The wheel as a user has it: installed elsewhere, in a folder with modules of common names."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests import ROOT

# Modules that a user's own folder may hold; the library must import none of them.
USERS_OWN = ['data.py', 'launch.py', 'cores.py', 'garbage.py', 'main.py', 'usage_error.py',
             'base.py', 'staging.py', 'models/__init__.py', 'training/__init__.py',
             'reduce/__init__.py']
PLAIN_RUN = ['--data=synthetic', '--model=linear', '--device=cpu', '--num_gpus=2', '--steps=3',
             '--quiet']


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
  """Returns the folder that the wheel is installed in."""
  folder = tmp_path_factory.mktemp('wheel')
  # From a copy, because a build leaves files in the tree and includes those of an earlier one.
  for name in ('towers', 'staging', 'models', 'tensorflow_v1'):
    shutil.copytree(os.path.join(ROOT, name), str(folder / 'source' / name))
  for name in ('pyproject.toml', 'README.md', 'LICENSE'):
    shutil.copy(os.path.join(ROOT, name), str(folder / 'source'))
  command = [sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps', '--no-build-isolation',
             '--wheel-dir', str(folder), '.']
  subprocess.run(command, cwd=str(folder / 'source'), check=True, timeout=300,
                 stdout=subprocess.DEVNULL)
  [wheel] = folder.glob('towers-*.whl')
  with zipfile.ZipFile(str(wheel)) as archive:
    archive.extractall(str(folder / 'installed'))
  return folder / 'installed'


@pytest.fixture
def python(installed, tmp_path):
  """Returns a function that runs Python in a folder with modules that fail when imported."""
  for name in USERS_OWN:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'raise AssertionError("the user\'s own {name}")\n')

  def run(*arguments):
    return subprocess.run([sys.executable, *arguments], cwd=str(tmp_path), timeout=200, text=True,
                          capture_output=True, env=dict(os.environ, PYTHONPATH=str(installed)))

  return run


@pytest.mark.nightly
@pytest.mark.nightly
def test_few_names_are_installed(installed):
  names = {path.name for path in installed.iterdir() if not path.name.endswith('.dist-info')}
  assert names == {'towers', 'tensorflow_v1'}


@pytest.mark.nightly
@pytest.mark.nightly
def test_every_module_is_imported_beside_a_users_own(python, installed):
  modules = sorted(str(path.relative_to(installed))[:-len('.py')].replace(os.sep, '.')
                   for path in (installed / 'towers').rglob('*.py') if path.name != '__main__.py')
  assert len(modules) > 100
  done = python('-c', 'import importlib, towers\n'
                      f'for name in {modules!r}: importlib.import_module(name)\n'
                      f'assert towers.__file__.startswith({str(installed)!r})\n'
                      'assert all(getattr(towers, name) for name in towers.__all__)\n'
                      'from towers import data\n'
                      'assert data.load("sample").train.num_examples == 4000')
  assert done.returncode == 0, done.stderr


@pytest.mark.nightly
@pytest.mark.nightly
def test_the_command_line_trains_beside_a_users_own(python, tmp_path):
  done = python('-m', 'towers', *PLAIN_RUN, '--result_file=result.json')
  assert done.returncode == 0 and (tmp_path / 'result.json').exists(), done.stderr
  for module in ('towers.launch', 'towers.launch.tf_config', 'towers.data.convert',
                 'towers.training.reporting'):
    assert python('-m', module, '--help').returncode == 0, module


@pytest.mark.nightly
@pytest.mark.nightly
def test_a_users_own_modules_stay_theirs(python, tmp_path):
  (tmp_path / 'data.py').write_text('MINE = 7\n')
  (tmp_path / 'models' / '__init__.py').write_text('MINE = 8\n')
  (tmp_path / 'staging.py').write_text('MINE = 9\n')
  (tmp_path / 'job.py').write_text(
      'import data, models, staging, towers\n'
      'from towers.command_line import main\n'
      f'assert main(["job.py"] + {PLAIN_RUN!r}) == 0\n'
      'assert (data.MINE, models.MINE, staging.MINE) == (7, 8, 9)\n')
  done = python('job.py')
  assert done.returncode == 0, done.stderr


def test_the_library_is_imported_without_tensorflow():
  code = ('import sys, towers\n'
          'towers.UsageError, towers.build_plan, towers.from_arrays\n'
          'assert "tensorflow" not in sys.modules')
  subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=True, timeout=60)
