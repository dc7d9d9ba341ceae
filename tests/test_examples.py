"""The examples: short, and they do what they say."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tensorflow_v1 import tf
from tests import ROOT
from towers import data

BY_THEMSELVES = ['own_model', 'by_hand', 'keras_model', 'whole_run', 'text_classification',
                 'fine_tuning', 'gan']
MIGRATING = ['tower_loop_before', 'tower_loop_after', 'keras_before', 'keras_after',
             'switch_before', 'switch_after', 'estimator_after']
if hasattr(tf, 'estimator'):
  MIGRATING.append('estimator_before')
# As `python -m` does, one after another: most of a start is the import of TensorFlow.
RUN_ALL = """
import runpy, sys, traceback
from tensorflow_v1 import tf
for name in sys.argv[1:]:
  print('==== ' + name, flush=True)
  print('==== ' + name, file=sys.stderr, flush=True)
  try:
    with tf.Graph().as_default():
      runpy.run_module(name, run_name='__main__')
  except Exception:
    traceback.print_exc()
  sys.stdout.flush()
"""


def run_examples(names):
  """Runs examples in one process; returns stdout and stderr of each, by name."""
  done = subprocess.run([sys.executable, '-c', RUN_ALL] + names, cwd=ROOT, capture_output=True,
                        text=True, timeout=200)
  assert done.returncode == 0, done.stderr
  streams = [dict(re.findall(r'==== (.*)\n((?:(?!====).*\n)*)', stream))
             for stream in (done.stdout, done.stderr)]
  assert list(streams[0]) == list(streams[1]) == names
  return {name: tuple(stream[name] for stream in streams) for name in names}


@pytest.fixture(scope='module')
def by_themselves():
  return run_examples(['examples.' + name for name in BY_THEMSELVES])


@pytest.fixture(scope='module')
def migrating():
  """Returns the stdout of each example, by name."""
  ran = run_examples(['examples.migrating.' + name for name in MIGRATING])
  for name, (_, stderr) in ran.items():
    assert 'Traceback' not in stderr, f'{name}: {stderr}'
  return {name.split('.')[-1]: stdout for name, (stdout, _) in ran.items()}


@pytest.mark.nightly
def test_a_model_of_ones_own_trains_in_thirty_lines(by_themselves):
  with open(os.path.join(ROOT, 'examples', 'own_model.py'), encoding='utf-8') as file:
    code = [line for line in file if line.strip()]
  assert len(code) <= 30
  stdout, stderr = by_themselves['examples.own_model']
  assert stderr == ''
  loss = float(re.match(r'loss after 1200 steps: ([\d.]+)\n$', stdout).group(1))
  assert loss < 0.02  # ln 2 = 0.69 is chance.


@pytest.mark.nightly
def test_by_hand_is_the_same_program(by_themselves):
  assert by_themselves['examples.by_hand'] == by_themselves['examples.own_model']


@pytest.mark.nightly
def test_a_whole_run_resumes_and_reports(tmp_path):
  outputs = []
  for _ in range(2):  # The second run finds that nothing is left to do.
    done = subprocess.run([sys.executable, '-m', 'examples.whole_run', str(tmp_path)], cwd=ROOT,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    outputs.append(done.stdout)
  losses = [float(re.search(r'\nvalidation loss ([\d.]+)\n$', output)[1]) for output in outputs]
  assert losses[0] == losses[1] < 0.04
  assert 'resumed from' not in outputs[0] and '140 of 140 steps are done' in outputs[1]
  assert '<svg' in (tmp_path / 'run.html').read_text(encoding='utf-8')


@pytest.mark.nightly
@pytest.mark.parametrize('num_workers', [1, 2])
def test_it_trains_on_several_workers_to_the_same_loss_in_each(num_workers, by_themselves):
  stdout, stderr = by_themselves['examples.own_model']
  if num_workers > 1:
    command = [sys.executable, '-m', 'towers.launch', '--workers=2', '--restarts=0', '--',
               sys.executable, '-m', 'examples.own_model']
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    stdout, stderr = done.stdout, done.stderr
  assert stderr == ''
  losses = re.findall(r'loss after 1200 steps: ([\d.]+)\n', stdout)
  assert len(losses) == num_workers and len(set(losses)) == 1
  assert float(losses[0]) < 0.02


@pytest.mark.nightly
def test_a_keras_model_trains_with_its_batch_norm_dropout_and_penalties(by_themselves):
  stdout, stderr = by_themselves['examples.keras_model']
  assert stderr == ''
  found = re.match(r'loss ([\d.]+) in step 200, accuracy ([\d.]+)\n$', stdout)
  loss, accuracy = map(float, found.groups())
  assert loss < 1 and accuracy > 0.8


def test_examples_are_short():
  for name in [*BY_THEMSELVES, 'images']:
    with open(os.path.join(ROOT, 'examples', f'{name}.py'), encoding='utf-8') as file:
      assert len(file.readlines()) < 60, name


def test_sentences_are_told_apart_by_pairs_of_words(by_themselves):
  stdout, stderr = by_themselves['examples.text_classification']
  assert stderr == '' and float(re.match(r'accuracy ([\d.]+): ', stdout)[1]) > 0.95


def test_networks_train_against_each_other(by_themselves):
  stdout, stderr = by_themselves['examples.gan']
  before, after = map(float, re.search(r': ([\d.]+), after 1000 steps ([\d.]+);', stdout).groups())
  assert stderr == '' and abs(after - 2) < 0.25 < abs(before - 2)


def test_fine_tuning_starts_from_what_was_learned(by_themselves):
  stdout, stderr = by_themselves['examples.fine_tuning']
  assert stderr == '' and re.search(r'matched +2 +body/weights_0, body/weights_1', stdout)
  tuned, scratch = map(float, re.search(r': ([\d.]+) fine-tuned, ([\d.]+) from', stdout).groups())
  assert tuned > 0.85 and tuned > scratch


@pytest.mark.nightly
def test_images_train_are_exported_and_classified_by_one_script(tmp_path):
  def run(*flags):
    done = subprocess.run([sys.executable, '-m', 'examples.images', *flags], cwd=ROOT,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout

  images, labels = data.load('sample').validation.arrays
  np.save(str(tmp_path / 'images.npy'), images[:200])
  run('--steps=60', f"--checkpoint_dir={tmp_path / 'saved'}", '--device=cpu',
      f"--export_dir={tmp_path / 'served'}", f"--report={tmp_path / 'run.html'}")
  lines = run(f"--predict={tmp_path / 'images.npy'}",
              f"--export_dir={tmp_path / 'served'}").splitlines()
  assert lines[0] == 'example,class,probability' and len(lines) == 201
  classes = [int(line.split(',')[1]) for line in lines[1:]]
  assert np.mean(classes == labels[:200]) > 0.6  # 0.1 is chance.
  assert (tmp_path / 'run.html').exists()


@pytest.mark.nightly
def test_several_workers_reach_the_loss_that_they_reached_with_estimator():
  losses = {}
  names = ['workers_after'] + ['workers_before'] * (tf.__version__ < '1.15')
  for name in names:
    done = subprocess.run(
        [sys.executable, '-m', 'towers.launch', '--workers=2', '--restarts=0', '--',
         sys.executable, '-m', f'examples.migrating.{name}'],
        cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    losses[name] = re.findall(r'validation loss after 60 steps: ([\d.]+)\n', done.stdout)
    assert len(losses[name]) == 1
  assert all(loss == losses['workers_after'] for loss in losses.values())
  assert float(losses['workers_after'][0]) < 1  # ln 10 = 2.3 is chance.


@pytest.mark.nightly
@pytest.mark.parametrize('name', ['tower_loop', 'keras'])
def test_what_has_migrated_learns_as_before(name, migrating):
  before, after = [
      float(re.match(r'loss after .*: ([\d.]+)\n$', migrating[f'{name}_{when}']).group(1))
      for when in ('before', 'after')]
  # ln 10 = 2.3 is chance. Initial weights differ, so the losses cannot be equal.
  assert before < 1.2 and after < 1.2


@pytest.mark.nightly
def test_what_an_estimator_trained_towers_train(migrating):
  def accuracy(name):
    return float(re.search(r'accuracy after 126 steps: ([\d.]+)\n$', migrating[name]).group(1))

  assert accuracy('estimator_after') > 0.75  # 0.1 is chance.
  if hasattr(tf, 'estimator'):
    assert accuracy('estimator_before') > 0.7


@pytest.mark.nightly
def test_the_switch_takes_every_example_once_instead_of_the_same_ones_in_all_towers(migrating):
  before, after = migrating['switch_before'], migrating['switch_after']
  with open(os.path.join(ROOT, 'docs', 'migrating.md'), encoding='utf-8') as file:
    docs = file.read()
  assert f'```\n{before}```' in docs and f'```\n{after}```' in docs
  assert 'tower 0 takes [8, 9, 10, 11], tower 1 takes [8, 9, 10, 11]' in before
  assert 'validation: tower 0 takes [0, 1], tower 1 takes [2, 3]' in after
  # The check finds both faults: each split loses batches while the other is used, and both towers
  # compute on the same examples.
  assert before.count('the batch is lost') == 2
  assert before.count('compute on the same examples') == 1
  assert 'no batch is lost' in after
