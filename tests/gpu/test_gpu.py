"""The laws on a GPU: `python -m pytest tests/gpu -m gpu`, which ends within ten minutes.

Each run is a process of its own, since a process divides its GPU once. What there is no time for is
skipped and says so; TOWERS_GPU_SECONDS is the time for all. TOWERS_GPU_TESTS=cpu puts the same runs
on virtual CPU devices, and `test_without_a_gpu` does so with some of them.
"""

import functools
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from tests import ROOT
from tests.gpu.small_program import STEPS
from tests.harness import small
from towers import data
from towers.placement.devices import count_gpus

KIND = os.environ.get('TOWERS_GPU_TESTS', 'gpu')
_SECONDS = float(os.environ.get('TOWERS_GPU_SECONDS', 560))
_STARTED = time.monotonic()
# A process needs as long to start TensorFlow and its GPU, so that none begins that cannot end.
_LEAST_SECONDS = 20
pytestmark = [
    pytest.mark.gpu, pytest.mark.nightly, pytest.mark.timeout(_SECONDS + 30),
    pytest.mark.skipif(KIND == 'gpu' and not count_gpus(), reason='TensorFlow sees no GPU')]
only_on_gpus = pytest.mark.skipif(KIND != 'gpu', reason='CPU devices have no memory of their own')

SETTINGS = [
    dict(input_mode=mode, staging_depth=depth, variables=placement, last_batch=last_batch)
    for mode, depth, placement, last_batch in small.diagonal(
        small.MODES, small.DEPTHS, small.PLACEMENTS, ('keep', 'pad'))]
TOO_LARGE = ('--num_gpus=1', '--gpu_memory=1500', '--model=resnet50',
             '--data=benchmarks.gpu:load_photos', '--batch_size=256', '--steps=2',
             '--validation=none')


def run(*command, **environment):
  """Runs a module; returns its exit code, stdout and stderr."""
  left = _STARTED + _SECONDS - time.monotonic()
  if left < _LEAST_SECONDS:
    pytest.skip(f'left out: no time in {_SECONDS:.0f} seconds')
  done = subprocess.run(
      [sys.executable, '-m', *command], cwd=ROOT, env=dict(os.environ, **environment), timeout=left,
      capture_output=True, text=True)
  return done.returncode, done.stdout, done.stderr


def run_main(*flags, device=KIND, **environment):
  code, stdout, stderr = run('towers', f'--device={device}', *flags, **environment)
  assert code == 0, stderr
  return stdout


def train(path, *flags, **environment):
  """Returns the result of some steps of ResNet-20."""
  run_main('--data=synthetic', '--model=resnet20', '--batch_size=32', '--steps=10', '--num_gpus=1',
           '--validation=none', f'--result_file={path}', *flags, **environment)
  with open(str(path), encoding='utf-8') as file:
    return json.load(file)


@functools.lru_cache(maxsize=None)
def train_small(settings):
  code, stdout, stderr = run('tests.gpu.small_program', settings)
  assert code == 0, stderr
  return json.loads(stdout.splitlines()[-1])


def share_gpu(num_towers, kind=KIND):
  """Returns the settings of towers that share one GPU."""
  if kind == 'gpu' and num_towers > 1:
    return dict(device='gpu', num_towers=num_towers, logical_gpus=num_towers, gpu_memory='1000')
  return dict(device=kind, num_towers=num_towers)


@pytest.mark.parametrize('num_towers', [1, 8])
@pytest.mark.parametrize('settings', SETTINGS, ids=lambda settings: '-'.join(
    str(value) for value in settings.values()))
def test_towers_on_a_gpu_are_one_tower_on_a_cpu(num_towers, settings):
  expected = train_small(json.dumps(dict(device='cpu', num_towers=1)))
  found = train_small(json.dumps(dict(share_gpu(num_towers), **settings)))
  assert len(found['losses']) == STEPS
  np.testing.assert_allclose(found['losses'], expected['losses'], rtol=0, atol=1e-5)
  assert found['means'] == pytest.approx(expected['means'], abs=1e-5)
  for name, values in expected['weights'].items():
    np.testing.assert_allclose(found['weights'][name], values, rtol=0, atol=1e-5, err_msg=name)


def test_deterministic_runs_repeat_to_the_bit(tmp_path):
  one, other = [train(tmp_path / name, '--deterministic') for name in 'ab']
  assert one['first_losses'] and one['first_losses'] == other['first_losses']


def test_mixed_precision_is_near_float32(tmp_path):
  whole, mixed = train(tmp_path / 'whole'), train(tmp_path / 'mixed', '--precision=mixed')
  assert mixed['first_losses'] == pytest.approx(whole['first_losses'], rel=0.05)


def test_persistent_batch_norm_is_near_the_plain_mode(tmp_path):
  name = 'TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT'
  plain, persistent = [train(tmp_path / value, **{name: value}) for value in '01']
  assert persistent['first_losses'] == pytest.approx(plain['first_losses'], rel=1e-3)


def test_xla_with_validation_by_the_switch_is_near_plain_kernels(tmp_path):
  plain, compiled = [train(tmp_path / xla, f'--xla={xla}', '--validation=switch',
                           '--last_batch=drop') for xla in ('off', 'on')]
  assert compiled['first_losses'] == pytest.approx(plain['first_losses'], rel=1e-2)


def test_batches_are_staged_while_towers_compute_and_streams_have_lanes(tmp_path):
  trace = tmp_path / 'trace.json'
  train(tmp_path / 'result', '--trace_steps=5:7', f'--trace_file={trace}')
  events = json.loads(trace.read_text())['traceEvents']
  lanes = {event['pid']: event['args']['name'] for event in events
           if event['name'] == 'process_name'}
  bars = [event for event in events if event['ph'] == 'X']
  if KIND == 'gpu':
    assert 'tower 0 on its GPU' in lanes.values()
  computing = [bar for bar in bars if lanes[bar['pid']] == 'tower 0']
  puts = [bar for bar in bars if bar['args'].get('op', '').endswith('StagingArea_put')]
  start = min(bar['ts'] for bar in computing)
  end = max(bar['ts'] + bar['dur'] for bar in computing)
  assert puts and any(start < bar['ts'] < end for bar in puts)


def test_check_and_doctor_run_on_the_device():
  output = run_main('--check', '--model=lenet', '--num_gpus=1' if KIND == 'gpu' else '--num_gpus=2')
  assert 'agree' in output
  code, stdout, stderr = run('towers', '--doctor')
  assert code == 0, stdout + stderr


@only_on_gpus
def test_out_of_memory_ends_with_the_device_and_the_fix():
  code, _, stderr = run('towers', '--device=gpu', *TOO_LARGE)
  assert code == 3 and 'Out of memory' in stderr and 'Try ' in stderr


def test_what_a_gpu_has_trained_is_exported_and_predicts_on_a_cpu(tmp_path):
  images = tmp_path / 'images.npy'
  np.save(str(images), data.load('sample').validation.arrays[0][:10])
  run_main('--model=lenet', '--steps=20', '--num_gpus=1', f"--checkpoint_dir={tmp_path / 'saved'}")
  run_main('--model=lenet', f"--checkpoint_dir={tmp_path / 'saved'}",
           f"--export_dir={tmp_path / 'served'}")
  output = run_main(f'--predict={images}', f"--export_dir={tmp_path / 'served'}", device='cpu',
                    CUDA_VISIBLE_DEVICES='')
  assert len(output.splitlines()) >= 10
