"""Checkpoints: the same for any number of towers and placement, moved or not, and mistakes are named."""

import os
import shutil

import numpy as np
import pytest

from tensorflow_v1 import tf
from tests.towers import small
from tests.towers.small import Run, assert_same_weights
from training.checkpoints import Checkpoints
from usage_error import UsageError


def save(run, folder):
  with run.graph.as_default():
    return Checkpoints(str(folder), keep=5).save(run.session)


def restore(run, folder):
  with run.graph.as_default():
    return Checkpoints(str(folder), keep=5).restore(run.session)


@pytest.mark.parametrize('optimizer', ['momentum', 'adam'])
def test_any_number_of_towers_mode_and_placement_goes_on_from_it(tmp_path, optimizer):
  with Run(num_towers=4, optimizer=optimizer) as run:
    for _ in range(3):
      run.steps.train()
    save(run, tmp_path)
    expected = [run.steps.train() for _ in range(3)]
    weights = run.weights()
  for settings in (dict(num_towers=1), dict(num_towers=3, mode='shard', placement='balanced', depth=0),
                   dict(num_towers=2, mode='next', placement='first', depth=2),
                   dict(num_towers=3, validation_tower=True)):
    with Run(optimizer=optimizer, seed=9, **settings) as other:
      restore(other, tmp_path)
      assert other.counters() == [3, 21]
      other.steps.start(3)
      assert [other.steps.train() for _ in range(3)] == pytest.approx(expected, abs=1e-5)
      assert_same_weights(other.weights(), weights)


def test_a_folder_without_a_checkpoint_restores_nothing(tmp_path):
  with Run() as run:
    assert restore(run, tmp_path / 'new' / 'folder') is None
    assert (tmp_path / 'new' / 'folder').is_dir()


def test_a_moved_folder_still_finds_its_checkpoints(tmp_path):
  with Run() as run:
    run.steps.train()
    save(run, tmp_path / 'here')
    expected = run.weights()
  (tmp_path / 'here').rename(tmp_path / 'there')
  with Run(seed=9) as run:
    assert restore(run, tmp_path / 'there')
    assert_same_weights(run.weights(), expected, tolerance=0)


def test_only_the_newest_stay_over_a_resume_too(tmp_path):
  with Run() as run, run.graph.as_default():
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    for _ in range(2):
      run.steps.train()
      checkpoints.save(run.session)
  with Run() as run, run.graph.as_default():
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    checkpoints.restore(run.session)
    run.steps.train()
    checkpoints.save(run.session)
  assert sorted(path.name for path in tmp_path.glob('*.index')) == ['model.ckpt-2.index', 'model.ckpt-3.index']


def test_another_model_is_listed_variable_by_variable(tmp_path):
  def wider(batch, is_training):
    features, labels = batch
    logits = small.dense(tf.tanh(small.dense(features, 6, 'hidden')), small.NUM_CLASSES, 'output')
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

  with Run() as run:
    save(run, tmp_path)
  with Run(model=wider) as run:
    before = run.weights()
    with pytest.raises(UsageError) as error:
      restore(run, tmp_path)
    assert_same_weights(run.weights(), before, tolerance=0)
  for line in ('only in the checkpoint: logits/weights [4, 3]',
               'hidden/weights: [5, 4] in the checkpoint, [5, 6] in the program', '… and', 'another checkpoint_dir'):
    assert line in str(error.value)


@pytest.mark.parametrize('suffix, keep_bytes', [('.index', 10), ('.data-00000-of-00001', 10), ('.index', None)])
def test_a_damaged_checkpoint_is_named(tmp_path, suffix, keep_bytes):
  with Run() as run:
    path = save(run, tmp_path) + suffix
  if keep_bytes is None:
    os.remove(path)
  else:
    with open(path, 'r+b') as file:
      file.truncate(keep_bytes)
  with Run() as run, pytest.raises(UsageError, match='model.ckpt-0'):
    restore(run, tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
  (tmp_path / 'file').write_text('')
  with Run() as run, run.graph.as_default(), pytest.raises(UsageError, match='checkpoint_dir .*file/folder'):
    Checkpoints(str(tmp_path / 'file' / 'folder'), keep=1)


# Written by `python -m tests.training.test_checkpoints` with 4 towers, on each target.
WRITTEN = os.path.join(os.path.dirname(__file__), 'checkpoints')
EXPECTED_LOSSES = 'expected_losses.txt'


def write_fixture(folder):
  """Trains 3 steps on 4 towers, saves, and notes the losses of 3 steps more."""
  shutil.rmtree(folder, ignore_errors=True)
  with Run(num_towers=4, placement='balanced') as run:
    for _ in range(3):
      run.steps.train()
    save(run, folder)
    np.savetxt(os.path.join(folder, EXPECTED_LOSSES), [run.steps.train() for _ in range(3)])


@pytest.mark.parametrize('target', ['tensorflow_1_14', 'tensorflow_2_21'])
def test_a_checkpoint_of_four_towers_on_either_target_goes_on_with_one_tower_here(target, tmp_path):
  shutil.copytree(os.path.join(WRITTEN, target), str(tmp_path / target))
  with Run(num_towers=1, seed=9) as run:
    assert restore(run, tmp_path / target)
    run.steps.start(3)
    losses = [run.steps.train() for _ in range(3)]
  np.testing.assert_allclose(losses, np.loadtxt(os.path.join(WRITTEN, target, EXPECTED_LOSSES)), atol=1e-5)


if __name__ == '__main__':
  write_fixture(os.path.join(WRITTEN, 'tensorflow_' + '_'.join(tf.__version__.split('.')[:2])))
