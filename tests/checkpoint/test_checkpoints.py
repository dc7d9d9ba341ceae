"""Checkpoints are equal for any number of towers and placement, and messages name what is wrong."""

import errno
import functools
import os
import shutil

import numpy as np
import pytest

from tests.harness import faults, small
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import Checkpoints, Snapshot
from towers.input.resume_point import ResumePoint
from towers.placement.counters import get_global_step
from towers.tensorflow_v1 import tf

# In whatever shape a checkpoint is read, `test_shapes` shows.
Run = functools.partial(small.Run, num_towers=1)


def save(run, folder):
  with run.graph.as_default():
    return Checkpoints(str(folder), keep=5).save(run.opened.snapshot())


def restore(run, folder):
  with run.graph.as_default():
    restored = Checkpoints(str(folder), keep=5).restore(run.session)
    return restored and restored[0]


def test_a_folder_without_a_checkpoint_restores_nothing(tmp_path):
  with Run() as run:
    assert restore(run, tmp_path / 'new' / 'folder') is None
    assert (tmp_path / 'new' / 'folder').is_dir()


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
    small.assert_same_weights(run.weights(), before, tolerance=0)
  for line in ('only in the checkpoint: logits/weights [4, 3]',
               'hidden/weights: [5, 4] in the checkpoint, [5, 6] in the program', '… and',
               'another checkpoint_dir'):
    assert line in str(error.value)


@pytest.mark.parametrize('folder, words', [
    ('file/folder', 'checkpoint_dir=file/folder cannot be made'),
    ('gs://bucket/run', 'checkpoint_dir=gs://bucket/run names another file system')])
def test_a_folder_that_cannot_be_made_is_named(folder, words, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'file').write_text('')
  with Run() as run, run.graph.as_default(), pytest.raises(UsageError, match=words):
    run.opened.save(folder)
  assert os.listdir() == ['file']


def trained(folder, steps, keep=5, warn=pytest.fail):
  """Trains from the newest checkpoint, saves after each step; returns the weights of each."""
  weights = []
  with Run() as run, run.graph.as_default():
    checkpoints = Checkpoints(str(folder), keep=keep, warn=warn, data=small.data_of(run.program))
    run.opened.resume(checkpoints)
    run.opened.start()
    for _ in range(steps):
      run.train()
      checkpoints.save(run.opened.snapshot())
      weights.append(run.weights())
    checkpoints.close()
  return weights


def test_only_the_newest_stay_over_a_resume_too(tmp_path):
  trained(tmp_path, 2, keep=2)
  trained(tmp_path, 1, keep=2)
  assert sorted(path.name for path in tmp_path.glob('*.index')) == [
      'model.ckpt-2.index', 'model.ckpt-3.index']


DAMAGES = {
    'data cut': lambda path: faults.truncate(path + DATA, 100),
    'data gone': lambda path: os.remove(path + DATA),
    'data empty': lambda path: faults.truncate(path + DATA, 0),
    'a byte of the data': lambda path: faults.flip_a_byte(path + DATA, 60),
    'sums of another': lambda path: shutil.copy(path[:-1] + '2.sums', path + '.sums'),
    'index cut': lambda path: faults.truncate(path + '.index', 50),
    'index empty': lambda path: faults.truncate(path + '.index', 0),
    'index gone': lambda path: os.remove(path + '.index'),
    'a byte of the index': lambda path: faults.flip_a_byte(path + '.index', 40),
    'the end of the index': lambda path: faults.flip_a_byte(path + '.index', -3),
    'an index without an end': lambda path: faults.be_special(path + '.index', 'a device'),
    'a FIFO of data': lambda path: faults.be_special(path + DATA, 'a FIFO'),
    'a FIFO of sums': lambda path: faults.be_special(path + '.sums', 'a FIFO'),
    'a FIFO and no sums': lambda path: (os.remove(path + '.sums'), faults.be_special(
        path + '.index', 'a FIFO'))}
DATA = '.data-00000-of-00001'


def test_a_damaged_newest_checkpoint_falls_back_with_a_warning(tmp_path):
  weights = trained(tmp_path / 'whole', 3)
  with Run(seed=9) as run, run.graph.as_default():
    for damage, act in DAMAGES.items():
      folder = tmp_path / damage.replace(' ', '_')
      shutil.copytree(str(tmp_path / 'whole'), str(folder))
      act(str(folder / 'model.ckpt-3'))
      warnings = []
      checkpoints = Checkpoints(str(folder), keep=1, warn=warnings.append,
                                data=small.data_of(run.program))
      assert run.opened.resume(checkpoints) == str(folder / 'model.ckpt-2'), damage
      small.assert_same_weights(run.weights(), weights[1], tolerance=0)
      [warning] = warnings
      assert 'model.ckpt-3 cannot be read' in warning, damage
      assert 'resumes from the one before' in warning, damage
      # The next checkpoint stays, although a newer, damaged one lies beside it.
      run.opened.start()
      run.train()
      checkpoints.save(run.opened.snapshot())
      small.assert_same_weights(run.weights(), weights[2], tolerance=0)
      assert checkpoints.restore(run.session)[0] == str(folder / 'model.ckpt-3'), damage
      checkpoints.close()


@pytest.mark.nightly
def test_any_damage_of_the_newest_index_falls_back(tmp_path):
  """TensorFlow 1.14 would end the process over some of it, and 2.21 raise an IndexError."""
  trained(tmp_path, 2)
  index = tmp_path / 'model.ckpt-2.index'
  whole, random = index.read_bytes(), np.random.RandomState(0)
  places = [(-place, flip) for place in range(1, 49) for flip in (1, 72, 201)]
  places += [(random.randint(len(whole)), random.randint(1, 256)) for _ in range(60)]
  with Run(seed=9) as run:
    for place, flip in places:
      damaged = bytearray(whole)
      damaged[place] ^= flip
      index.write_bytes(bytes(damaged))
      assert restore(run, tmp_path) == str(tmp_path / 'model.ckpt-1')


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize('of', ['folder', 'state file'])
def test_a_sync_that_fails_once_leaves_no_older_checkpoint_as_the_newest(of, tmp_path, monkeypatch):
  sync, failed = os.fsync, []

  def fail_once(handle):
    path = os.readlink(f'/proc/self/fd/{handle}')
    if not failed and str(tmp_path) == (path if of == 'folder' else os.path.dirname(path)):
      failed.append(path)
      raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(handle)

  trained(tmp_path, 1)
  monkeypatch.setattr(os, 'fsync', fail_once)
  trained(tmp_path, 1)
  assert failed and tf.train.latest_checkpoint(str(tmp_path)).endswith('model.ckpt-2')


def test_a_whole_folder_of_damaged_checkpoints_never_starts_anew(tmp_path):
  trained(tmp_path, 3)
  for step in (2, 3):
    faults.flip_a_byte(tmp_path / (f'model.ckpt-{step}{DATA}'), 60)
  # The next checkpoint stays, although newer, damaged ones lie beside it.
  trained(tmp_path, 1, keep=1, warn=lambda line: None)
  with Run() as run:
    assert restore(run, tmp_path) == str(tmp_path / 'model.ckpt-2')
  faults.flip_a_byte(tmp_path / (f'model.ckpt-2{DATA}'), 60)
  with Run() as run, pytest.raises(UsageError) as error:
    restore(run, tmp_path)
  for words in ('No checkpoint in', 'model.ckpt-2 cannot be read'):
    assert words in str(error.value)
  # Of one that is asked for, no word of the others.
  chosen = str(tmp_path / 'model.ckpt-2')
  with Run() as run, pytest.raises(UsageError, match=f'^{chosen} cannot be read: .* name another'):
    run.opened.restore(chosen)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize('content', [
    b'model_checkpoint_path: "model.ckpt-1"\n', None, b'', b'\xff{{ nonsense',
    b'model_checkpoint_path: "/etc/model.ckpt-9"\n'])
def test_the_state_file_is_not_needed(content, tmp_path):
  trained(tmp_path, 2)
  (tmp_path / 'checkpoint').unlink()
  if content is not None:
    (tmp_path / 'checkpoint').write_bytes(content)
  with Run() as run:
    assert restore(run, tmp_path) == str(tmp_path / 'model.ckpt-2')


def test_what_a_killed_run_left_half_written_is_removed_and_never_followed(tmp_path):
  weights = trained(tmp_path / 'folder', 2)
  (tmp_path / 'folder' / '.writing-abc').mkdir()
  (tmp_path / 'folder' / '.writing-abc' / ('model.ckpt' + DATA)).write_bytes(b'half')
  (tmp_path / 'folder' / '.writing-def').write_text('half')
  (tmp_path / 'precious').mkdir()
  (tmp_path / 'precious' / 'file').write_text('precious')
  (tmp_path / 'folder' / '.writing-link').symlink_to(tmp_path / 'precious')
  (tmp_path / 'folder' / ('model.ckpt-3' + DATA)).write_bytes(b'no index')
  warnings = []
  with Run(seed=9) as run, run.graph.as_default():
    assert Checkpoints(str(tmp_path / 'folder'), keep=1, warn=warnings.append).restore(run.session)
    small.assert_same_weights(run.weights(), weights[1], tolerance=0)
  assert not list((tmp_path / 'folder').glob('.writing-*'))
  assert (tmp_path / 'precious' / 'file').read_text() == 'precious'
  assert not warnings


def test_a_checkpoint_is_there_once_its_last_file_is(tmp_path, monkeypatch):
  rename, renamed = os.replace, []
  monkeypatch.setattr(os, 'replace', lambda path, to: (renamed.append(to), rename(path, to)))
  trained(tmp_path, 1)
  assert [os.path.basename(to) for to in renamed if os.path.dirname(to) == str(tmp_path)] == [
      f'model.ckpt-1{DATA}', 'model.ckpt-1.sums', 'model.ckpt-1.index', 'checkpoint']


def test_what_is_written_in_the_background_is_what_was_taken(tmp_path):
  with Run(optimizer='adam') as run, run.graph.as_default():
    checkpoints = Checkpoints(str(tmp_path), keep=9)
    taken = []
    for _ in range(3):
      run.train()
      snapshot = run.opened.snapshot()
      taken.append({name: np.copy(value) for name, value in snapshot.values.items()})
      checkpoints.write(snapshot)
      assert checkpoints.has_saved(snapshot.step)
    assert set(snapshot.values) == {variable.op.name for variable in tf.global_variables()}
    checkpoints.close()
  for step, values in enumerate(taken, 1):
    written = small.read_checkpoint(tmp_path / f'model.ckpt-{step}')
    small.assert_same_weights(values, {name: written[name] for name in values}, tolerance=0)
  assert not list(tmp_path.glob('.writing-*'))


def test_another_dtype_is_another_model(tmp_path):
  with tf.Graph().as_default(), tf.Session() as session:
    tf.get_variable('weights', [2])
    get_global_step()
    session.run(tf.global_variables_initializer())
    values = session.run({variable.op.name: variable for variable in tf.global_variables()})
    Checkpoints(str(tmp_path), keep=1).save(Snapshot(ResumePoint(0, 0), values))
  with tf.Graph().as_default(), tf.Session() as session:
    tf.get_variable('weights', [2], tf.float64)
    with pytest.raises(UsageError, match=r'weights: \[2\] float32 in the checkpoint, \[2\] float64 '
                                         r'in the program'):
      Checkpoints(str(tmp_path), keep=1).restore(session)


# Written by `python -m tests.checkpoint.test_checkpoints` with 4 towers, on each target.
WRITTEN = os.path.join(os.path.dirname(__file__), 'checkpoints')
EXPECTED_LOSSES = 'expected_losses.txt'


def write_fixture(folder):
  """Trains 3 steps on 4 towers, saves, and notes the losses of 3 steps more."""
  shutil.rmtree(folder, ignore_errors=True)
  with small.Run(num_towers=4, placement='balanced') as run:
    run.train(3)
    save(run, folder)
    np.savetxt(os.path.join(folder, EXPECTED_LOSSES), [run.train() for _ in range(3)])


@pytest.mark.parametrize('target', ['tensorflow_1_14', 'tensorflow_2_21'])
def test_a_checkpoint_of_four_towers_on_either_target_goes_on_with_one_tower_here(target, tmp_path):
  shutil.copytree(os.path.join(WRITTEN, target), str(tmp_path / target))
  with Run(seed=9) as run:
    with run.graph.as_default():
      assert run.opened.resume(Checkpoints(
          str(tmp_path / target), keep=5, data=small.data_of(run.program)))
    run.opened.start()
    losses = [run.train() for _ in range(3)]
  np.testing.assert_allclose(losses, np.loadtxt(os.path.join(WRITTEN, target, EXPECTED_LOSSES)),
                             atol=1e-5)


if __name__ == '__main__':
  write_fixture(os.path.join(WRITTEN, 'tensorflow_' + '_'.join(tf.__version__.split('.')[:2])))
