"""--model and --data name functions of one's own, and a script of one's own has all flags."""

import json
import os
import sys
import types

import pytest
from absl import flags

from tests import ROOT
from tests.harness.loaded_process import run_loaded
from towers.base.usage_error import UsageError
from towers.cli import command_line
from towers.cli.user_functions import give_function, load_function
from towers.settings.config import Config
from towers_tools.trials.timed_trial import run_trial

NETS = """
import numpy as np
import towers
from absl import flags
from towers.tensorflow_v1 import tf
if 'classes' not in flags.FLAGS:  # A module and a file are imported apart.
  flags.DEFINE_integer('classes', 2, 'of labels')
features = np.random.RandomState(0).uniform(size=[60, 4]).astype(np.float32)
labels = (features.sum(1) > 2).astype(np.int32)

def load():
  return (towers.from_arrays(features[:50], labels[:50]),
          towers.from_arrays(features[50:], labels[50:], name='validation'))

def load_one():
  return towers.from_arrays(features, labels)

def load_nothing():
  return features, labels

def model(batch, is_training):
  x, y = batch
  logits = tf.matmul(x, tf.get_variable('weights', [4, flags.FLAGS.classes]))
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
"""
SCRIPT = """
import towers
from absl import flags
from nets import load, model
flags.DEFINE_integer('width', 1, 'of the model')

if __name__ == '__main__':
  towers.main(model=model, data=load)
  print('width', flags.FLAGS.width)
"""
QUICK = ['--steps=6', '--batch_size=10', '--device=cpu', '--num_gpus=2', '--schedule=constant']


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'nets.py').write_text(NETS)
  (tmp_path / 'train.py').write_text(SCRIPT)
  return tmp_path


def run(folder, *arguments):
  return run_loaded(arguments, cwd=folder, env=dict(os.environ, PYTHONPATH=ROOT))


def test_the_command_line_trains_a_model_and_data_of_ones_own(folder):
  losses = []
  for arguments in (['-m', 'towers', '--model=nets:model', '--data=nets.py:load'],
                    ['train.py', '--width=7']):
    done = run(folder, *arguments, *QUICK, '--result_file=result.json')
    assert done.returncode == 0, done.stderr
    assert 'data: nets' in done.stdout and 'model: nets:model, 8 weights' in done.stdout
    losses.append(json.loads((folder / 'result.json').read_text())['first_losses'])
  assert done.stdout.endswith('width 7\n')
  assert len(losses[0]) == 5 and losses[0] == losses[1]


@pytest.mark.parametrize('job, text', [
    ('--check', '2 towers are one tower'),
    pytest.param('--input_only', 'shard', marks=pytest.mark.nightly)])
def test_other_jobs_take_them_too(job, text, folder):
  done = run(folder, 'train.py', *QUICK, job)
  assert done.returncode == 0 and text in done.stdout, done.stderr


@pytest.mark.parametrize('arguments, message', [
    (['--model=nets:modl'], 'nets has no function modl'),
    (['--model=missing:model'], 'missing cannot be imported: No module named'),
    (['--data=missing.py:load'], 'there is no file missing.py'),
    (['--data=nets:model'], 'is called with (): give its parameters defaults'),
    (['--data=nets:load_nothing'], 'return towers.Examples'),
    (['--data=nets:load_one'], 'model=convnet must know the number of classes')])
def test_functions_that_do_not_fit_are_refused_by_name(arguments, message, folder):
  done = run(folder, '-m', 'towers', *QUICK, *arguments)
  assert done.returncode == 2 and message in done.stderr and 'Traceback' not in done.stderr


def test_a_script_has_its_own_model_and_names_unknown_flags(folder):
  done = run(folder, 'train.py', '--model=linear')
  assert done.returncode == 2 and 'this program has its own model' in done.stderr
  done = run(folder, 'train.py', '--widht=3')
  assert done.returncode == 2 and 'did you mean --width?' in done.stderr


@pytest.mark.parametrize('settings, message', [
    (dict(data='nets:load', augment='cifar'), 'augment=cifar has no effect on data=nets:load'),
    (dict(model='nets:model', data_format='NCHW'), 'data_format=NCHW has no effect'),
    (dict(model='nets'), 'or write module:function for your own')])
def test_flags_without_effect_are_refused(settings, message):
  with pytest.raises(UsageError, match=message):
    Config(**settings)


@pytest.mark.parametrize('spec, start', [
    (None, [os.path.abspath('train.py')]), ('my_package.train', ['-m', 'my_package.train'])])
def test_trials_of_a_script_get_its_own_flags(spec, start, monkeypatch):
  program = types.ModuleType('__main__')
  program.__spec__ = spec and types.SimpleNamespace(name=spec)
  monkeypatch.setitem(sys.modules, '__main__', program)
  own = flags.FlagValues()
  flags.DEFINE_integer('width', 1, 'of the model', flag_values=own)
  flags.DEFINE_multi_string('layer', [], 'kinds of layers', flag_values=own)
  flags.DEFINE_string('unused', 'x', 'at its default', flag_values=own)
  own(['train.py', '--width=7', '--layer=a b', '--layer=c'])
  monkeypatch.setattr(command_line.flags, 'FLAGS', own)
  assert command_line._find_command('train.py') == [
      sys.executable, *start, '--width=7', '--layer=a b', '--layer=c']


@pytest.mark.nightly
def test_a_trial_runs_a_script_with_its_own_model_and_data(folder):
  def model():
    raise AssertionError

  config = Config(model=give_function(model), data=give_function(model), batch_size=10,
                  device='cpu', num_towers=2)
  trial = run_trial(config, {}, command=[sys.executable, str(folder / 'train.py'), '--width=3'],
                    steps=3)
  assert trial.error == '' and len(trial.losses) == 3


def test_a_function_of_this_process_is_found_again():
  def function():
    return None

  assert load_function('model', give_function(function)) is function
