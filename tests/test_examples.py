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
