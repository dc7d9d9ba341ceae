"""The main job on image files: from the folder to the result, with damage, and after a kill."""

import re
import subprocess
import sys

import pytest

from tests.data.pictures import damage, jpegs, write_tfrecords
from tests.harness.processes import running, wait_until
from tests.test_main import result_here, run
from towers.data.formats.tfrecord import load_index

QUICK = ['--data=tfrecord', '--model=linear', '--image_size=8', '--num_classes=10',
         '--batch_size=6', '--num_gpus=2', '--device=cpu', '--learning_rate=0.001',
         '--augment=imagenet']


@pytest.fixture
def folder(tmp_path):
  images = jpegs(24)
  write_tfrecords(tmp_path, 'train', [[0, 1, 2, 3, 4], list(range(10)), [5, 6, 7, 8, 9]], images)
  write_tfrecords(tmp_path, 'validation', [[3, 1, 4, 1]], images)
  return tmp_path


def test_a_damaged_record_ends_the_run_with_its_name_or_is_left_out(folder, capfd):
  path = folder / 'train-00001-of-00003'
  damage(path, int(load_index(path).offsets[4]) + 100)
  flags = QUICK + [f'--data_dir={folder}', '--epochs=2']
  done = run(*flags)
  assert done.returncode == 2, done.stderr
  [line] = done.stderr.splitlines()
  assert line.startswith(f'towers: error: {path}: record 4 at byte ')
  assert 'on_bad_record=skip' in line
  capfd.readouterr()
  result = result_here(folder, '--on_bad_record=skip', *flags)
  stdout, stderr = capfd.readouterr()
  assert result['global_step'] == 8 and result['examples_seen'] == 38
  assert result['validation_examples'] == 4
  assert 0 <= result['input_wait'] <= 1
  assert re.match(rf'skipped: {path}: record 4 at byte \d+: its payload is damaged', stderr)
  assert f'skipped 1 damaged record in 1 file: {path} (1)' in stdout
  assert '3 + 1 TFRecord files, read by record index' in stdout
  assert 'damaged records: skip' in stdout


@pytest.mark.nightly
@pytest.mark.parametrize('mode', ['split', 'shard'])
def test_a_killed_and_resumed_run_ends_where_the_uninterrupted_one_does(folder, mode, capfd):
  flags = QUICK + [f'--data_dir={folder}', '--input_mode=' + mode, '--steps=40',
                   '--checkpoint_every=1', '--validate_every=40']
  checkpoints = folder / 'checkpoints'
  resumable = flags + [f'--checkpoint_dir={checkpoints}']
  with running(sys.executable, 'main.py', *resumable, stderr=subprocess.DEVNULL) as process:
    wait_until(lambda: process.poll() is not None or any(
        checkpoints.glob('model.ckpt-[3-9]*.index')), seconds=120)
  results = [result_here(folder, *command) for command in (flags, resumable)]
  assert re.search(r'resumed from .*: \d+ of 40 steps are done', capfd.readouterr().out)
  for key in ('global_step', 'examples_seen', 'train_loss', 'validation_loss'):
    assert results[0][key] == results[1][key]


@pytest.mark.nightly
def test_the_input_is_measured_alone(folder, capfd):
  speeds = result_here(folder, '--input_only', f'--data_dir={folder}', *QUICK)
  stdout = capfd.readouterr().out
  assert list(speeds) == ['split', 'next', 'shard'] and min(speeds.values()) > 0
  for mode in speeds:
    assert re.search(rf'{mode} +[\d,]+ examples/s', stdout)
