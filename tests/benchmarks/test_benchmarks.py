"""Each benchmark starts, measures and prints its table; no test asks how fast anything is."""

import subprocess
import sys

import pytest

from tests import ROOT

SMALLEST = {
    'step': ['--models=linear', '--towers=2', '--kinds=towers,one tower,by hand,recipe,mirrored',
             '--rounds=1', '--seconds=0.01'],
    'setup': ['--models=lenet', '--towers=2'],
    'predict': ['--towers=1,2', '--calls=3'],
    'input': ['--towers=1', '--seconds=0.1'],
    'workers': ['--nets=mlp', '--rounds=1', '--seconds=0.1'],
    'gpu': ['--device=cpu', '--models=convnet', '--cases=host,XLA', '--steps=3', '--num_gpus=2']}


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize('name', SMALLEST)
def test_it_measures(name):
  done = subprocess.run([sys.executable, '-m', f'benchmarks.{name}', *SMALLEST[name]], cwd=ROOT,
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500)
  assert done.returncode == 0, done.stdout
  for failure in ('FAILED', 'DISAGREES', 'Error'):
    assert failure not in done.stdout, done.stdout
