"""The benchmark for GPUs runs on CPU devices too, so that it works where there is a GPU."""

import json
import time

import pytest

from benchmarks import gpu
from benchmarks.gpu import CASES, format_lines, main, measure
from benchmarks.harness.benchmark_process import BenchmarkProcess
from benchmarks.harness.task import Task
from towers.training.settings.config import Config


def run(tmp_path, *flags):
  """Measures LeNet on two CPU devices; returns the content of the JSON file."""
  path = str(tmp_path / 'gpu.json')
  assert main(['--device=cpu', '--num_gpus=2', '--models=lenet', '--batch_size=8', '--steps=3',
               f'--json={path}', *flags]) == 0
  with open(path, encoding='utf-8') as file:
    return json.load(file)


def test_it_measures_on_cpu_devices(tmp_path, capsys):
  content = run(tmp_path, '--cases=shard,NCHW', '--no_peers')
  assert content['num_towers'] == 2 and not content['peers']
  shard, nchw = content['models']['lenet']
  assert shard['examples_per_second'] > 0 and shard['settings'] == dict(input_mode='shard')
  assert 'needs GPUs' in nchw['error']
  output = capsys.readouterr().out
  assert 'times first' in output and '1.00' in output


@pytest.mark.nightly
def test_peers_take_turns_with_towers_and_compute_the_same(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(gpu, '_PEER_SECONDS', 0.01)
  content = run(tmp_path, '--cases=host')
  line = content['peers']['lenet']
  assert list(line['kinds']) == ['towers', 'by hand', 'mirrored'] and not line['failed']
  assert not line['disagreements']
  assert (line['num_towers'], line['batch_size']) == (2, 4)
  assert 'agree' in capsys.readouterr().out


@pytest.mark.parametrize('kind, given, expected', [
    ('GPU', None, 'true'), ('GPU', 'false', 'false'), ('CPU', None, '')])
def test_processes_that_are_there_at_once_share_a_gpu(kind, given, expected, tmp_path, monkeypatch):
  monkeypatch.delenv('TF_FORCE_GPU_ALLOW_GROWTH', raising=False)
  if given:
    monkeypatch.setenv('TF_FORCE_GPU_ALLOW_GROWTH', given)
  python = tmp_path / 'python'
  python.write_text('#!/bin/sh\necho "{\\"seconds\\": 1, '
                    '\\"mean_loss\\": \\"$TF_FORCE_GPU_ALLOW_GROWTH\\"}"\n')
  python.chmod(0o755)
  process = BenchmarkProcess('towers', Task('linear', 1, 1, kind=kind), python=str(python))
  process.end()
  assert process.mean_losses == [expected]


def test_what_there_is_no_time_for_is_said():
  [line] = measure('lenet', ['host'], steps=2, deadline=time.monotonic(), command=['absent'])
  assert line['error'] == 'left out: no time'
  assert 'left out: no time' in format_lines('lenet', [line])


def test_gpus_that_are_not_there_are_an_error(capsys, monkeypatch):
  monkeypatch.setattr('towers.placement.devices.count_gpus', lambda: 0)
  assert main(['--models=lenet']) == 2
  assert 'sees 0' in capsys.readouterr().err


def test_each_case_is_a_setting_of_main(monkeypatch):
  for case, settings in CASES.items():
    assert Config(device='gpu', **settings), case
  monkeypatch.setattr(gpu, '_PHOTOS', 2)
  assert gpu.load_photos().image_shape == (224, 224, 3)
