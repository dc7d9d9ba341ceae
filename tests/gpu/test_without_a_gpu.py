"""The tests of GPUs without one: no slip in the tests is to end a run on a GPU."""

import os
import re
import subprocess
import sys

import pytest

from tests import ROOT
from tests.gpu import test_gpu
from tests.gpu.small_program import build_program
from towers.cli.flags import parse_flags
from towers.placement import devices
from towers.tensorflow_v1 import tf


@pytest.mark.nightly(but=[
    "{'input_mode': 'split', 'staging_depth': 0, 'variables': 'host', 'last_batch': 'keep'}"])
@pytest.mark.parametrize('settings', test_gpu.SETTINGS, ids=str)
def test_each_program_is_built_for_a_gpu(settings, monkeypatch):
  asked = []
  monkeypatch.setattr(devices, 'count_gpus', lambda: 1)
  monkeypatch.setattr(devices.native, 'set_gpu_memory',
                      lambda **memory: asked.append(memory['limits']))
  for num_towers in (1, 2):
    with tf.Graph().as_default():
      program = build_program(dict(test_gpu.share_gpu(num_towers, 'gpu'), **settings))
      assert program.devices.names == [f'/device:GPU:{tower}' for tower in range(num_towers)]
  assert asked == [[], [1000] * 2]


def test_flags_of_what_only_a_gpu_runs_are_valid():
  config = parse_flags(['main.py', '--device=gpu', *test_gpu.TOO_LARGE])
  assert config.gpu_memory == '1500' and config.batch_size == 256


def test_what_there_is_no_time_for_is_skipped(monkeypatch):
  monkeypatch.setattr(test_gpu, '_SECONDS', 1.0)
  with pytest.raises(pytest.skip.Exception, match='left out: no time in 1 seconds'):
    test_gpu.run('towers')


@pytest.mark.nightly
def test_they_run_on_cpu_devices():
  done = subprocess.run(
      [sys.executable, '-m', 'pytest', 'tests/gpu/test_gpu.py', '-m', 'gpu', '-n', '0', '-q',
       '-p', 'no:cacheprovider', '-k', 'host-keep-8'], cwd=ROOT, stdout=subprocess.PIPE, text=True,
      env=dict(os.environ, TOWERS_GPU_TESTS='cpu'), timeout=280)
  # Both tower counts of all settings are there, though TensorFlows share slow points otherwise.
  assert re.search(r'^1 passed, \d+ deselected', done.stdout, re.M), done.stdout
