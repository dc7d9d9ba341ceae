"""The benchmark for GPUs runs on CPU devices too, so that it works where there is a GPU."""

import json
import time

from benchmarks import gpu
from benchmarks.gpu import CASES, format_lines, main, measure
from towers.training.settings.config import Config


def test_it_measures_on_cpu_devices(tmp_path, capsys):
  path = str(tmp_path / 'gpu.json')
  assert main(['--device=cpu', '--num_gpus=2', '--models=lenet', '--cases=host,NCHW,shard',
               '--batch_size=8', '--steps=3', '--no_peers', f'--json={path}']) == 0
  with open(path, encoding='utf-8') as file:
    content = json.load(file)
  assert content['num_towers'] == 2 and not content['peers']
  host, nchw, shard = content['models']['lenet']
  assert host['examples_per_second'] > 0 and shard['examples_per_second'] > 0
  assert 'needs GPUs' in nchw['error'] and shard['settings'] == dict(input_mode='shard')
  output = capsys.readouterr().out
  assert 'times host' in output and '1.00' in output


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
