"""The examples: short, and they do what they say."""

import os
import re
import subprocess
import sys

import pytest

from tensorflow_v1 import tf
from tests import ROOT


def test_a_model_of_ones_own_trains_in_thirty_lines():
  with open(os.path.join(ROOT, 'examples', 'own_model.py'), encoding='utf-8') as file:
    code = [line for line in file if line.strip()]
  assert len(code) <= 30
  done = subprocess.run([sys.executable, '-m', 'examples.own_model'], cwd=ROOT, capture_output=True,
                        text=True, timeout=120)
  assert done.returncode == 0 and done.stderr == ''
  loss = float(re.match(r'loss after 1200 steps: ([\d.]+)\n$', done.stdout).group(1))
  assert loss < 0.02  # ln 2 = 0.69 is chance.


@pytest.mark.parametrize('num_workers', [1, 2])
def test_it_trains_on_several_workers_to_the_same_loss_in_each(num_workers):
  command = [sys.executable, '-m', 'examples.several_workers']
  if num_workers > 1:
    command = [sys.executable, '-m', 'towers.launch', '--workers=2', '--restarts=0', '--'] + command
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
  assert done.returncode == 0 and done.stderr == ''
  losses = re.findall(r'loss after 1200 steps: ([\d.]+)\n', done.stdout)
  assert len(losses) == num_workers and len(set(losses)) == 1
  assert float(losses[0]) < 0.02


def test_a_keras_model_trains_with_its_batch_norm_dropout_and_penalties():
  done = subprocess.run([sys.executable, '-m', 'examples.keras_model'], cwd=ROOT, capture_output=True, text=True,
                        timeout=120)
  assert done.returncode == 0 and done.stderr == ''
  loss, accuracy = map(float, re.match(r'loss ([\d.]+), accuracy ([\d.]+) in step 200\n$', done.stdout).groups())
  assert loss < 1 and accuracy > 0.8


def run_example(name):
  done = subprocess.run([sys.executable, '-m', 'examples.migrating.' + name], cwd=ROOT, capture_output=True, text=True,
                        timeout=120)
  assert done.returncode == 0, done.stderr
  return done.stdout


@pytest.mark.parametrize('name', ['tower_loop', 'keras'])
def test_what_has_migrated_learns_as_before(name):
  before, after = [float(re.match(r'loss after .*: ([\d.]+)\n$', run_example('%s_%s' % (name, when))).group(1))
                   for when in ('before', 'after')]
  # ln 10 = 2.3 is chance. Initial weights differ, so that the numbers cannot be the same.
  assert before < 1.2 and after < 1.2


def test_what_an_estimator_trained_towers_train():
  def accuracy(name):
    return float(re.search(r'accuracy after 126 steps: ([\d.]+)\n$', run_example(name)).group(1))

  assert accuracy('estimator_after') > 0.75  # 0.1 is chance.
  if hasattr(tf, 'estimator'):
    assert accuracy('estimator_before') > 0.7


def test_the_switch_takes_every_example_once_instead_of_the_same_ones_in_all_towers():
  before, after = run_example('switch_before'), run_example('switch_after')
  with open(os.path.join(ROOT, 'docs', 'migrating.md'), encoding='utf-8') as file:
    docs = file.read()
  assert '```\n%s```' % before in docs and '```\n%s```' % after in docs
  assert 'tower 0 takes [8, 9, 10, 11], tower 1 takes [8, 9, 10, 11]' in before
  assert 'validation: tower 0 takes [0, 1], tower 1 takes [2, 3]' in after
  # What is wrong is told: each split loses batches while the other is asked for, and both towers do the same.
  assert before.count('the batch is lost') == 2 and before.count('compute on the same examples') == 1
  assert 'no batch is lost' in after
