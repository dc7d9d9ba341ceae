"""The recipes: each program does what its page says."""

import os
import re

import pytest

from tests import ROOT
from tests.harness.loaded_process import run_loaded

# A line of output, with numbers, and what they must be.
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
  done = run_loaded(['-m', f'examples.recipes.{name}'], timeout=200)
  assert done.returncode == 0, done.stderr
  assert is_right(*map(float, re.search(pattern + r'\n', done.stdout).groups())), done.stdout
