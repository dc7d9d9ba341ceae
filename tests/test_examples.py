"""The examples and recipes: short, and they do what they say."""

import functools
import os
import re
import sys

import numpy as np
import pytest

from tests import ROOT
from tests.harness.loaded_process import run_loaded
from tests.harness.processes import output_of
from towers import data
from towers.tensorflow_v1 import tf


@functools.lru_cache(maxsize=None)
def run_example(name):
  """Returns what an example writes to stdout, with nothing on stderr but by TensorFlow's own."""
  done = run_loaded(['-m', f'examples.{name}'], timeout=200)
  # On 2.x layers of TensorFlow 1 warn that they are deprecated.
  may_warn = name.startswith(('migrating', 'recipes'))
  assert done.returncode == 0 and (may_warn or not done.stderr), done.stderr
  return done.stdout


@pytest.mark.nightly
def test_a_model_of_ones_own_trains_in_thirty_lines():
  with open(os.path.join(ROOT, 'examples', 'own_model.py'), encoding='utf-8') as file:
    code = [line for line in file if line.strip()]
  assert len(code) <= 30
  loss = float(re.match(r'loss after 1200 steps: ([\d.]+)\n$', run_example('own_model')).group(1))
  assert loss < 0.02  # ln 2 = 0.69 is chance.


@pytest.mark.nightly
def test_by_hand_is_the_same_program():
  assert run_example('by_hand') == run_example('own_model')


@pytest.mark.nightly
def test_a_whole_run_resumes_and_reports(tmp_path):
  outputs = []
  for _ in range(2):  # The second run finds that nothing is left to do.
    outputs.append(output_of('-m', 'examples.whole_run', str(tmp_path)))
  losses = [float(re.search(r'\nvalidation loss ([\d.]+)\n$', output)[1]) for output in outputs]
  assert losses[0] == losses[1] < 0.04
  assert 'resumed from' not in outputs[0] and '140 of 140 steps are done' in outputs[1]
  assert '<svg' in (tmp_path / 'run.html').read_text(encoding='utf-8')


def launch_two(module):
  """Returns what two workers write to stdout."""
  return output_of('-m', 'towers', 'launch', '--workers=2', '--restarts=0', '--', sys.executable,
                   '-m', module, timeout=200)


@pytest.mark.nightly
def test_it_trains_on_two_workers_to_the_same_loss_in_each():
  losses = re.findall(r'loss after 1200 steps: ([\d.]+)\n', launch_two('examples.own_model'))
  assert len(losses) == 2 and len(set(losses)) == 1 and float(losses[0]) < 0.02


@pytest.mark.nightly
def test_a_keras_model_trains_with_its_batch_norm_dropout_and_penalties():
  found = re.match(r'loss ([\d.]+) in step 200, accuracy ([\d.]+)\n$', run_example('keras_model'))
  loss, accuracy = map(float, found.groups())
  assert loss < 1 and accuracy > 0.8


def test_examples_are_short():
  folder = os.path.join(ROOT, 'examples')
  for name in [name for name in os.listdir(folder) if name.endswith('.py')]:
    with open(os.path.join(folder, name), encoding='utf-8') as file:
      assert len(file.readlines()) < 60, name


@pytest.mark.nightly
def test_sentences_are_told_apart_by_pairs_of_words():
  assert float(re.match(r'accuracy ([\d.]+): ', run_example('text_classification'))[1]) > 0.95


@pytest.mark.nightly
def test_networks_train_against_each_other():
  before, after = map(float, re.search(r': ([\d.]+), after 1000 steps ([\d.]+);',
                                       run_example('gan')).groups())
  assert abs(after - 2) < 0.25 < abs(before - 2)


def test_fine_tuning_starts_from_what_was_learned():
  stdout = run_example('fine_tuning')
  assert re.search(r'matched +2 +body/weights_0, body/weights_1', stdout)
  tuned, scratch = map(float, re.search(r': ([\d.]+) fine-tuned, ([\d.]+) from', stdout).groups())
  assert tuned > 0.85 and tuned > scratch


@pytest.mark.nightly
def test_images_train_are_exported_and_classified_by_one_script(tmp_path):
  images, labels = data.load('sample').validation.arrays
  np.save(str(tmp_path / 'images.npy'), images[:200])
  script = ['-m', 'examples.images', f"--export_dir={tmp_path / 'served'}"]
  output_of(*script, '--steps=60', f"--checkpoint_dir={tmp_path / 'saved'}", '--device=cpu',
            f"--report={tmp_path / 'run.html'}")
  lines = output_of(*script, f"--predict={tmp_path / 'images.npy'}").splitlines()
  assert lines[0] == 'example,class,probability' and len(lines) == 201
  classes = [int(line.split(',')[1]) for line in lines[1:]]
  assert np.mean(classes == labels[:200]) > 0.6  # 0.1 is chance.
  assert (tmp_path / 'run.html').exists()


@pytest.mark.nightly
def test_several_workers_reach_the_loss_that_they_reached_with_estimator():
  losses = {}
  for name in ['workers_after'] + ['workers_before'] * (tf.__version__ < '1.15'):
    losses[name] = re.findall(r'validation loss after 60 steps: ([\d.]+)\n',
                              launch_two(f'examples.migrating.{name}'))
    assert len(losses[name]) == 1
  assert all(loss == losses['workers_after'] for loss in losses.values())
  assert float(losses['workers_after'][0]) < 1  # ln 10 = 2.3 is chance.


@pytest.mark.nightly
@pytest.mark.parametrize('name', ['tower_loop', 'keras'])
def test_what_has_migrated_learns_as_before(name):
  before, after = [float(re.match(r'loss after .*: ([\d.]+)\n$', text).group(1)) for text in (
      run_example(f'migrating.{name}_{when}') for when in ('before', 'after'))]
  # ln 10 = 2.3 is chance. Initial weights differ, so the losses cannot be equal.
  assert before < 1.2 and after < 1.2


@pytest.mark.nightly
def test_what_an_estimator_trained_towers_train():
  def accuracy(name):
    text = run_example(f'migrating.{name}')
    return float(re.search(r'accuracy after 126 steps: ([\d.]+)\n$', text).group(1))

  assert accuracy('estimator_after') > 0.75  # 0.1 is chance.
  if hasattr(tf, 'estimator'):
    assert accuracy('estimator_before') > 0.7


@pytest.mark.nightly
def test_the_switch_takes_every_example_once_instead_of_the_same_ones_in_all_towers():
  before, after = [run_example(f'migrating.switch_{when}') for when in ('before', 'after')]
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


# Of each recipe a line of output, with numbers, and what they must be.
RECIPES = {
    'state': (r'loss ([\d.]+)', lambda loss: loss < 0.6),
    'distillation': (r'accuracy ([\d.]+)', lambda accuracy: accuracy > 0.7),
    'average_checkpoints': (r'validation loss ([\d.]+), of the mean ([\d.]+)',
                            lambda each, mean: mean < each),
    'stream': (r'weights \[([-\d.]+), ([-\d.]+), ([-\d.]+)\]',
               lambda *weights: weights == (2, -1, 0.5)),
    'policy': (r'machine (\d) in (\d+)% of plays', lambda best, share: best == 2 and share > 90),
    'class_balance': (r'rare ones found: ([\d.]+), balanced ([\d.]+)',
                      lambda plain, balanced: balanced > plain + 0.2),
    'notebook': (r'kernel \[([\d.]+), ([\d.]+), ([\d.]+)\]', lambda *kernel: kernel == (1, 1, 1)),
    'plateau': (r'rate ([\d.]+)', lambda rate: rate == 0.1),
    # 1 - 0.1 (the clipped gradient + 0.5)
    'decay_after_clipping': (r'weight ([\d.]+)', lambda weight: weight == 0.8793)}


def test_each_recipe_has_a_test_and_a_line():
  names = {name[:-3] for name in os.listdir(os.path.join(ROOT, 'examples', 'recipes'))
           if name.endswith('.py') and name != '__init__.py'}
  with open(os.path.join(ROOT, 'docs', 'recipes.md'), encoding='utf-8') as file:
    assert names == set(RECIPES) == set(re.findall(r'examples\.recipes\.(\w+)', file.read()))


@pytest.mark.nightly(but=['policy'])
@pytest.mark.parametrize('name', list(RECIPES))
def test_a_recipe_does_what_it_says(name):
  pattern, is_right = RECIPES[name]
  output = run_example(f'recipes.{name}')
  assert is_right(*map(float, re.search(pattern + r'\n', output).groups())), output
