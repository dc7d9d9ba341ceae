"""The examples: short, and they do what they say."""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def test_a_model_of_ones_own_trains_in_thirty_lines():
  with open(os.path.join(ROOT, 'examples', 'own_model.py'), encoding='utf-8') as file:
    code = [line for line in file if line.strip()]
  assert len(code) <= 30
  done = subprocess.run([sys.executable, '-m', 'examples.own_model'], cwd=ROOT, capture_output=True,
                        text=True, timeout=120)
  assert done.returncode == 0 and done.stderr == ''
  loss = float(re.match(r'loss after 1200 steps: ([\d.]+)\n$', done.stdout).group(1))
  assert loss < 0.02  # ln 2 = 0.69 is chance.


def test_a_keras_model_trains_with_its_batch_norm_dropout_and_penalties():
  done = subprocess.run([sys.executable, '-m', 'examples.keras_model'], cwd=ROOT, capture_output=True, text=True,
                        timeout=120)
  assert done.returncode == 0 and done.stderr == ''
  loss, accuracy = map(float, re.match(r'loss ([\d.]+), accuracy ([\d.]+) in step 200\n$', done.stdout).groups())
  assert loss < 1 and accuracy > 0.8
