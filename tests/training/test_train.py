"""`towers.train`: the loop of main.py for any program."""

import json
import re
import signal
import sys

import numpy as np
import pytest

import towers
from tests import ROOT
from tests.data.pictures import damage
from tests.data.test_records import write_texts
from tests.harness import small
from tests.harness.processes import clean_environment, run_python
from towers.cli.command_line import main as command_line
from towers.data.formats.tfrecord import load_index
from towers.tensorflow_v1 import tf

# A program of fifteen lines, as a user writes it: its own model, and two arrays of its own.
SCRIPT = """
import sys
import numpy as np
import towers
from towers.tensorflow_v1 import tf
features = np.random.RandomState(0).uniform(size=[50, 4]).astype(np.float32)
labels = (features.sum(1) > 2).astype(np.int32)
def model(batch, is_training):
  x, y = batch
  logits = tf.matmul(x, tf.get_variable('weights', [4, 2]))
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
program = towers.Program(model, train=towers.from_arrays(features, labels), batch_size=8,
                         optimizer=tf.train.AdamOptimizer(0.01), num_towers=2, device='cpu')
towers.train(program, epochs=6, checkpoint_dir=sys.argv[1], checkpoint_every='3steps',
             result_file=sys.argv[2], report=sys.argv[3], callbacks=CALLBACKS)
"""
KILL = '[lambda step, loss: step == 20 and __import__("os").kill(__import__("os").getpid(), 9)]'


def build(**settings):
  return small.program(**{**dict(train=small.random_examples(50), shuffle=True), **settings})


def run(script, *arguments, workers=1):
  command = ['-c', script, *map(str, arguments)]
  if workers > 1:
    command = ['-m', 'towers', 'launch', f'--workers={workers}', '--restarts=0', '--',
               sys.executable, *command]
  return run_python(*command, env=clean_environment(PYTHONPATH=ROOT))


def test_it_takes_the_steps_of_a_session(tmp_path, capsys):
  with build().session() as session:
    expected = [session.train() for _ in range(14)]
    means = session.validate()
  recorder, seen = small.Recorder(), []
  result = towers.train(build(), steps=14, callbacks=[recorder, lambda *args: seen.append(args)],
                        result_file=str(tmp_path / 'result.json'))
  assert recorder.losses == expected == [loss for _, loss in seen]
  assert [step for step, _ in seen] == list(range(1, 15))
  assert [(step, set(metrics)) for step, metrics in recorder.validations] == [
      (7, {'accuracy', 'loss'}), (14, {'accuracy', 'loss'})]
  assert recorder.calls == [14, 'close']
  assert (result['validation_loss'], result['validation_accuracy']) == (
      means['loss'], means['accuracy'])
  assert json.loads((tmp_path / 'result.json').read_text()) == result
  printed = capsys.readouterr().out
  assert 'model: model, 39 weights' in printed and 'done: 14 steps' in printed


def test_a_run_in_a_folder_whose_steps_are_done_says_that_none_is_left(tmp_path, capsys):
  for steps, is_over in (3, False), (3, True), (4, False):
    result = towers.train(build(), steps=steps, checkpoint_dir=str(tmp_path), quiet=True)
    assert (result['train_loss'] is None) == is_over
    assert ('WARNING: no step is left to take' in capsys.readouterr().err) == is_over


def test_a_run_that_stopped_early_and_is_started_again_says_how_it_goes_on(tmp_path, capsys):
  def model(batch, is_training):
    losses, _ = small.model(batch, is_training)
    return losses, {'same': 0 * losses}

  taken = []
  for early_stopping, is_over in (2, False), (2, True), (3, False), (None, False):
    program = build(model=model, optimizer=tf.train.GradientDescentOptimizer(0.1))
    result = towers.train(program, steps=9, validate_every='1steps', early_stopping=early_stopping,
                          best_metric='min:validation_same', checkpoint_dir=str(tmp_path),
                          quiet=True)
    assert result['best']['step'] == 1 and (result['train_loss'] is None) == is_over
    told = capsys.readouterr().err
    assert told == is_over * ('WARNING: no step is left to take: give a larger early_stopping, or '
                              'none, to go on, or another checkpoint_dir to begin another run\n')
    taken.append(result['global_step'])
  assert taken == [3, 3, 4, 9]


def test_a_quiet_run_that_nothing_keeps_warns_that_its_weights_are_lost(tmp_path, capsys):
  kept = [dict(checkpoint_dir=str(tmp_path / 'saved')), dict(callbacks=[towers.Callback()]),
          dict(result_file=str(tmp_path / 'result.json'))]
  for settings in [{}, *kept]:
    towers.train(build(), steps=1, quiet=True, **settings)
    assert ''.join(capsys.readouterr()) == (not settings) * (
        'WARNING: no checkpoint_dir: the weights are gone when the run ends\n')


@pytest.mark.parametrize('door', ['train', 'main'])
def test_quiet_writes_warnings_alone_and_names_what_was_skipped(door, tmp_path, capsys):
  paths = {name: tmp_path / name for name in ('train', 'validation')}
  for number, path in enumerate(paths.values()):
    write_texts(path, [np.float32([row, 1]).tobytes() for row in range(20)])
    damage(path, int(load_index(path).offsets[number + 2]) + 13)

  def load():
    return tuple(towers.from_tfrecords(path, lambda record: tf.reshape(
        tf.decode_raw(record, tf.float32), [2]), name=name, on_bad_record='skip')
                 for name, path in paths.items())

  def model(batch, is_training):
    del is_training
    loss = tf.reduce_mean(tf.square(batch * tf.get_variable('weight', [2])), 1)
    return loss / tf.cast(tf.not_equal(batch[:, 0], 17), tf.float32)  # A step is not finite.

  lines = {}
  for is_quiet in (False, True):
    settings = dict(steps=8, checkpoint_dir=str(tmp_path / f'run_{is_quiet}'), on_nan='skip')
    with tf.Graph().as_default():
      if door == 'train':
        train, validation = load()
        program = small.program(model, train=train, validation=validation, batch_size=5)
        capsys.readouterr()
        towers.train(program, quiet=is_quiet, **settings)
      else:
        flags = [f'--{name}={value}' for name, value in settings.items()] + ['--quiet'] * is_quiet
        assert command_line(['main.py', '--batch_size=5', '--device=cpu', '--num_gpus=2',
                             '--noshuffle', '--last_batch=keep', *flags], model, load) == 0
    lines[is_quiet] = sum(map(str.splitlines, capsys.readouterr()), [])
  assert lines[True] == [line for line in lines[False] if line.startswith('WARNING')]
  assert len(lines[False]) > len(lines[True]) == 4
  for name, number in (('train', 2), ('validation', 3)):
    assert any(line.startswith(f'skipped: {name}: {paths[name]}: record {number} at')
               for line in lines[False])
    assert f'WARNING: {name}: skipped 1 damaged record in 1 file: {paths[name]} (1)' in lines[True]


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize('settings', [
    dict(variables='replicated', input_mode='shard'), dict(), dict(validation=None, accumulate=2),
    dict(precision='mixed'), dict(input_mode='next', staging_depth=2)], ids='-'.join)
def test_a_run_that_is_resumed_ends_to_the_bit_as_one_that_was_not(settings, tmp_path):
  def train(steps, folder):
    recorder = small.Recorder()
    towers.train(build(**settings), steps=steps, checkpoint_dir=str(folder), quiet=True,
                 callbacks=[recorder])
    return recorder.losses

  whole = train(17, tmp_path / 'whole')
  first = train(9, tmp_path / 'parts')
  assert first + train(17, tmp_path / 'parts') == whole
  small.assert_same_weights(small.read_checkpoint(tmp_path / 'whole'),
                            small.read_checkpoint(tmp_path / 'parts'), tolerance=0)


@pytest.mark.nightly
@pytest.mark.parametrize('workers', [1, 2])
def test_a_script_of_fifteen_lines_survives_a_kill(workers, tmp_path):
  assert len([line for line in SCRIPT.splitlines() if line]) <= 15
  whole, killed = tmp_path / 'whole.json', tmp_path / 'killed.json'
  done = run(SCRIPT.replace('CALLBACKS', '[]'), tmp_path / 'a', whole, tmp_path / 'a.html',
             workers=workers)
  assert done.returncode == 0 and done.stderr == '', done.stderr
  arguments = tmp_path / 'b', killed, tmp_path / 'b.html'
  first = run(SCRIPT.replace('CALLBACKS', KILL), *arguments, workers=workers)
  assert first.returncode not in (0, 2) and not killed.exists()
  assert workers > 1 or first.returncode == -signal.SIGKILL
  again = run(SCRIPT.replace('CALLBACKS', '[]'), *arguments, workers=workers)
  assert again.returncode == 0, again.stderr
  resumed_at = int(re.search(r'resumed from .*model.ckpt-(\d+): \1 of 42 steps', again.stdout)[1])
  assert 15 <= resumed_at <= 20
  expected, found = [json.loads(path.read_text()) for path in (whole, killed)]
  assert found['train_loss'] == expected['train_loss'] and found['global_step'] == 42
  assert 'batch_size' in (tmp_path / 'b.html').read_text()
  assert 'convnet' not in (tmp_path / 'b.html').read_text()


@pytest.mark.nightly(but=['settings5-keep_checkpoints=0',
                             'settings3-measures loss, accuracy; did you mean accuracy'])
@pytest.mark.parametrize('settings, message', [
    (dict(epochs=1, steps=2), 'both set the length'),
    (dict(validate_every='often'), 'validate_every=often'),
    (dict(on_nan='rollback', checkpoint_dir='x'), 'on_nan=rollback lowers the learning rate'),
    (dict(best_metric='acuracy'), 'measures loss, accuracy; did you mean accuracy'),
    (dict(callbacks=['print']), 'give a towers.Callback, or a function'),
    (dict(keep_checkpoints=0), 'keep_checkpoints=0'),
    (dict(early_stopping=2), 'early_stopping=2 needs validation')])
def test_what_does_not_fit_is_refused(settings, message, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(towers.UsageError, match=message):
    towers.train(build(**{'validation': None} if 'early_stopping' in settings else {}), **settings)
