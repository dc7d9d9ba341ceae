"""Callbacks look and stop: a run that one ends goes on as if it had not, and loses no step."""

import contextlib
import glob
import json
import os
import shutil
import time

import numpy as np
import pytest

import towers
from main import main
from tests.harness import small
from towers.checkpoint.checkpoints import list_steps
from towers.tensorflow_v1 import tf

STEPS = 12
PLACES = [dict(), dict(validation_tower=True, num_towers=3),
          dict(variables='replicated', num_towers=2),
          dict(accumulate=2, input_mode='next', num_towers=2)]


def model(batch, is_training):
  tf.summary.histogram('seen', batch[0])
  tf.summary.scalar('largest', tf.reduce_max(batch[0]))
  return small.model(batch, is_training)


def build(num_towers=1, **settings):
  return small.program(model, num_towers=num_towers, batch_size=6, shuffle=True, **settings)


class Acts(towers.Callback):
  """Acts at a step or at its validation, and writes down how it is called."""

  def __init__(self, act=lambda run: None, at=None, when='on_step'):
    self.act, self.at, self.when, self.losses, self.calls = act, at, when, [], []
    self.acted = None

  def _called(self, name, run):
    self.calls.append((name, run.step))
    # A validation tower is done with the weights of a step some steps later.
    if name == self.when and self.at and run.step >= self.at and self.acted is None:
      self.acted = run.step
      self.act(run)

  def on_step(self, run):
    self.losses.append(run.loss)
    self._called('on_step', run)

  def on_validation(self, run):
    self._called('on_validation', run)

  def on_end(self, run):
    assert run.result['global_step'] == run.step
    self._called('on_end', run)


def train(folder, callback=None, settings=None, **others):
  callback = callback or Acts()
  result = towers.train(build(**(settings or {})), quiet=True, checkpoint_dir=str(folder),
                        validate_every='4steps', callbacks=[callback], **{'steps': STEPS, **others})
  return result, callback


def read(folder):
  return (small.read_checkpoint(folder),
          json.loads((folder / 'history.json').read_text())['validations'])


def assert_same(one, other):
  small.assert_same_weights(one[0], other[0], tolerance=0)
  assert one[1] == other[1]


@pytest.mark.nightly(but='on_validation-8-validation_tower-num_towers')
@pytest.mark.parametrize('settings', PLACES, ids=lambda settings: '-'.join(settings) or 'plain')
@pytest.mark.parametrize('when, at', [('on_step', 6), ('on_validation', 8)])
def test_a_run_that_is_stopped_ends_as_a_run_ends_and_goes_on(settings, when, at, tmp_path):
  whole, of_whole = train(tmp_path / 'whole', settings=settings)
  assert whole['stopped'] is None
  why = ['seen enough'] if when == 'on_step' else []
  stops = Acts(lambda run: run.stop(*why), at, when)
  result, _ = train(tmp_path / 'parts', stops, settings)
  stopped = result['global_step']
  assert stopped == stops.acted < STEPS and stops.calls[-1] == ('on_end', stopped)
  assert result['stopped'] == ('seen enough' if when == 'on_step' else 'a callback ended it')
  assert result['validation_examples'] == 11 and list_steps(str(tmp_path / 'parts'))[0] == stopped
  [*_, last] = validations = read(tmp_path / 'parts')[1]
  assert last['step'] == stopped and last['loss'] == result['validation_loss']
  assert result['best'] == min(validations, key=lambda validation: validation['loss'])
  resumed, rest = train(tmp_path / 'parts', settings=settings)
  assert stops.losses + rest.losses == of_whole.losses
  assert_same(read(tmp_path / 'parts'), read(tmp_path / 'whole'))
  assert resumed['best'] == whole['best'] == min(
      read(tmp_path / 'whole')[1], key=lambda validation: validation['loss'])


class Rows(towers.Callback):
  """Writes a row for each call into a file of its own, as docs/callbacks.md says."""

  def __init__(self, folder):
    self.folder, self.fresh = folder, set()

  def _write(self, run, name, step, value):
    path = self.folder / name
    rows = path.read_text().splitlines() if path.exists() else []
    if name not in self.fresh:
      rows = [row for row in rows if int(row.split()[0]) < step]
    self.fresh.add(name)
    path.write_text('\n'.join([*rows, f'{step} {value!r}']))

  def on_step(self, run):
    self._write(run, 'steps', run.step, run.loss)

  def on_validation(self, run):
    self._write(run, 'validations', run.validation_step, run.validation)

  def on_rewind(self, run):
    self.fresh.clear()


@pytest.mark.nightly(but='on_validation-8-validation_tower-num_towers')
@pytest.mark.parametrize('settings', PLACES, ids=lambda settings: '-'.join(settings) or 'plain')
@pytest.mark.parametrize('when, at', [('on_step', 7), ('on_validation', 8)])
def test_rows_that_a_callback_writes_come_once_whatever_ends_the_run(when, at, settings, tmp_path):
  def read_rows(folder):
    return [(folder / name).read_text() for name in ('steps', 'validations')]

  def copy(run):  # What a kill would leave.
    while not list_steps(str(tmp_path / 'whole' / 'saved')):
      time.sleep(0.01)
    shutil.copytree(str(tmp_path / 'whole'), str(tmp_path / 'killed'),
                    ignore=shutil.ignore_patterns('.writing-*'))

  def start(folder, *others):
    folder.mkdir(exist_ok=True)
    counts = Acts()
    towers.train(build(**settings), quiet=True, checkpoint_dir=str(folder / 'saved'), steps=STEPS,
                 validate_every='4steps', callbacks=[Rows(folder), counts, *others])
    return [name for name, _ in counts.calls]

  start(tmp_path / 'whole', Acts(copy, at, when))
  killed, whole = read_rows(tmp_path / 'killed'), read_rows(tmp_path / 'whole')
  assert killed != whole
  again = start(tmp_path / 'killed')
  assert again.count('on_step') + len(killed[0].splitlines()) > STEPS  # Some came twice.
  assert read_rows(tmp_path / 'killed') == whole
  assert start(tmp_path / 'killed') == ['on_validation', 'on_end']
  assert read_rows(tmp_path / 'killed') == whole


def test_it_looks_at_anything_and_changes_nothing(tmp_path):
  _, expected = train(tmp_path / 'plain')
  looked = []

  class Looks(Acts):
    def on_step(self, run):
      super().on_step(run)
      looked.append(run.session.run([run.program.towers[-1].loss, run.program.batches[0].tensors]))
      if run.step % 5 == 0:
        looked.append(run.session.validate())

    def on_validation(self, run):
      super().on_validation(run)
      assert run.session.validate() == {name[len('validation_'):]: mean for name, mean in
                                        run.metrics.items() if name.startswith('validation_')}

  _, found = train(tmp_path / 'looks', Looks())
  assert found.losses == expected.losses and found.calls == expected.calls
  assert len(looked) == STEPS + 2
  assert_same(read(tmp_path / 'looks'), read(tmp_path / 'plain'))


def test_metrics_are_those_since_the_validation_before():
  trained = []

  class Keeps(towers.Callback):
    def on_validation(self, run):
      trained.append(run.metrics)

  losses = Acts()
  result = towers.train(build(), steps=STEPS, validate_every='4steps', quiet=True,
                        callbacks=[Keeps(), losses])
  assert len(trained) == 3
  for index, metrics in enumerate(trained):
    # Three batches in an epoch of thirteen: six, six and one.
    sizes = [(6, 6, 1)[step % 3] for step in range(4 * index, 4 * index + 4)]
    assert metrics['loss'] == pytest.approx(np.average(
        losses.losses[4 * index:4 * index + 4], weights=sizes))
  assert result['train_accuracy'] == trained[-1]['accuracy']
  assert result['validation_accuracy'] == trained[-1]['validation_accuracy']
  assert result['train_loss'] == losses.losses[-1]


def fail(*_):
  raise KeyError('mine')


@pytest.mark.nightly(but='metric-settings3')
@pytest.mark.parametrize('what, settings', [
    ('on_step', dict()), ('on_validation', dict()),
    ('on_step', dict(validation_tower=True, num_towers=3)),
    ('metric', dict()), ('metric', dict(validation_tower=True, num_towers=3))])
def test_what_fails_of_the_users_ends_the_run_once_the_step_is_saved(
    what, settings, tmp_path, monkeypatch):
  def measure_by(function):
    if what == 'metric':
      monkeypatch.setitem(globals(), 'model', lambda batch, is_training: (
          small.model(batch, is_training)[0], {'whole': towers.Whole(function, [batch[1]])}))

  measure_by(np.sum)
  _, of_whole = train(tmp_path / 'whole', settings=settings)
  measure_by(fail)
  fails = None if what == 'metric' else Acts(fail, 8 if what == 'on_validation' else 7, what)
  with pytest.raises(KeyError, match='mine'):
    train(tmp_path / 'parts', fails, settings)
  # A pass of a validation tower begins again where it began.
  saved = list_steps(str(tmp_path / 'parts'))[0]
  assert saved == 4 if what == 'metric' else saved in (7, 8)
  measure_by(np.sum)
  _, rest = train(tmp_path / 'parts', settings=settings)
  count = len(rest.losses)
  assert count <= STEPS - saved + 1 and rest.losses == of_whole.losses[-count:]
  assert_same(read(tmp_path / 'parts'), read(tmp_path / 'whole'))


class LikeKeras(towers.Callback):
  def on_epoch_end(self, epoch, logs=None):
    pass


class OwnParameters(towers.Callback):
  def on_step(self, step, loss):
    pass


class Former(towers.Callback):
  def step(self, *, step, loss, train_seconds):
    pass


class FormerValidation(towers.Callback):
  def validation(self, step, metrics):
    pass


class Helpers(towers.Callback):
  """Names of its own that no run calls and that look like nothing that it ever called."""
  step, validation = 3, None

  def close(self):
    raise AssertionError

  def warning(self, *parts):
    raise AssertionError

  def on_step(self, run, scale=1):
    self.step = run.step * scale


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize('callback, message', [
    (OwnParameters(), r'OwnParameters.on_step of callbacks takes \(step, loss\), and is called '
     r'with \(run\): write def on_step\(self, run\); run.step, run.loss'),
    (Former(), r'Former with step, which no run calls: write def on_step\(self, run\)'),
    (FormerValidation(), r'validation, which no run calls: write def on_validation\(self, run\)'),
    (LikeKeras(), 'LikeKeras with on_epoch_end, which no run calls: write one of on_step'),
    (Acts, 'give an object of it, as callbacks=.Acts..'), (3, 'give a towers.Callback')],
                         ids=['other parameters', 'a former method', 'the former validation',
                              'another method', 'a class', 'a number'])
def test_one_that_nothing_would_call_is_refused(callback, message):
  with pytest.raises(towers.UsageError, match=message):
    towers.train(build(), steps=1, callbacks=[callback])


def test_attributes_and_helpers_of_its_own_are_let_be():
  helpers = Helpers()
  towers.train(build(), steps=2, quiet=True, callbacks=[helpers])
  assert helpers.step == 2


@pytest.mark.parametrize('settings', small.nightly_but(
    [dict(validation_tower=True, num_towers=3)], PLACES))
def test_a_callback_sees_the_weights_that_were_measured_and_its_warnings(settings):
  seen, warned, order = [], [], []

  class Sees(towers.Callback):
    def on_step(self, run):
      assert run.train_seconds >= 0 and run.loss == run.loss
      if run.step == 3:
        run.warn('WARNING: three')
      order.append('step')

    def on_validation(self, run):
      seen.append((run.validation_step, run.metrics['validation_loss']))

    def on_warning(self, run, text):
      warned.append((run.step, text))

    def on_end(self, run):
      order.append('end')

    def on_close(self, run):
      order.append('close')

  result = towers.train(build(**settings), steps=STEPS, validate_every='4steps', quiet=True,
                        callbacks=[Sees()])
  assert [step for step, _ in seen] == [4, 8, 12] and warned == [(3, 'WARNING: three')]
  assert seen[-1][1] == result['validation_loss']
  assert order == ['step'] * STEPS + ['end', 'close']
  # The same numbers as where the session stops at each of these steps.
  with build(**settings).session() as session:
    for step, loss in seen:
      while session.step < step:
        session.train()
      assert session.validate()['loss'] == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize('raises, step, settings', [
    (None, STEPS, {}), ('a callback', 5, {}),
    ('a start', 0, dict(optimizer=tf.train.AdamOptimizer())), ('on_close', STEPS, {})])
def test_on_close_comes_last_in_order_and_replaces_no_error(
    raises, step, settings, tmp_path, capsys):
  closed, folder = [], str(tmp_path) if raises == 'a start' else None
  if folder:
    towers.train(build(), steps=1, quiet=True, checkpoint_dir=folder)

  class Closes(towers.Callback):
    def on_step(self, run):
      if raises == 'a callback' and run.step == 5:
        raise KeyError('of a callback')

    def on_close(self, run):
      closed.append((self, run.step, 'loss' in run.metrics))
      if raises is not None and self is first:
        raise ValueError('of on_close')

  first, second = Closes(), Closes()
  error = {None: None, 'a callback': KeyError, 'a start': towers.UsageError,
           'on_close': ValueError}[raises]
  with pytest.raises(error) if error else contextlib.nullcontext():
    towers.train(build(**settings), steps=STEPS, quiet=True, callbacks=[first, second],
                 checkpoint_dir=folder)
  assert closed == [(each, step, step > 0) for each in (first, second)]
  assert ('WARNING: Closes.on_close has failed: ValueError: of on_close' in capsys.readouterr().out
          ) == (raises in ('a callback', 'a start'))


def read_values(folder):
  values = {}
  for path in glob.glob(os.path.join(str(folder), 'events*')):
    for event in tf.train.summary_iterator(path):
      for value in event.summary.value:
        values.setdefault(value.tag, []).append((event.step, value))
  return values


@pytest.mark.nightly(but='one')
@pytest.mark.parametrize('settings', [
    dict(num_towers=2), dict(), dict(num_towers=3, tower_build='clone'),
    dict(num_towers=3, validation_tower=True)], ids=['two', 'one', 'cloned', 'aside'])
def test_summaries_have_one_set_of_tags_for_any_towers(settings, tmp_path):
  image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)

  def write(run):
    run.writer.image('picture', image)
    run.writer.image('several', np.zeros([2, 3, 3, 1]))
    run.writer.histogram('numbers', [1, 2, np.nan, 2])
    run.writer.histogram('nothing', [np.inf])
    run.writer.text('words', '*none*')
    run.writer.scalar('one', 1)

  program = build(**settings)
  with program.graph.as_default():
    assert {tag.op.name for tag in tf.get_collection(tf.GraphKeys.SUMMARIES)} == {
        'tower_0/seen', 'tower_0/largest'}
  towers.train(program, steps=6, summary_dir=str(tmp_path), summary_every='2steps', quiet=True,
               validate_every='3steps', callbacks=[Acts(write, 4)])
  values = read_values(tmp_path)
  assert {tag for tag in values if not tag.startswith(('train/', 'validation/'))} == {
      'seen', 'largest', 'picture', 'several/0', 'several/1', 'numbers', 'words', 'one',
      'configuration', 'run'}
  assert {tag for tag in values if tag.startswith('train/')} >= {'train/loss', 'train/accuracy'}
  for tag in ('seen', 'largest', 'train/accuracy'):
    assert [step for step, _ in values[tag]] == [2, 4, 6]
  [(step, picture)] = values['picture']
  with tf.Graph().as_default(), tf.Session() as session:
    np.testing.assert_array_equal(
        session.run(tf.image.decode_png(picture.image.encoded_image_string)), image)
  assert step == 4 and values['numbers'][0][1].histo.num == 3


def test_a_run_takes_the_steps_itself():
  with pytest.raises(towers.UsageError, match='takes all steps itself: give towers.train more by'):
    towers.train(build(), steps=2, quiet=True, callbacks=[Acts(lambda run: run.session.train(), 1)])


def test_a_writer_without_a_folder_writes_nothing_and_says_so_once(capsys):
  def write(run):
    run.writer.text('words', 'to nobody')
    run.writer.scalar('one', 1)
    with pytest.raises(towers.UsageError, match=r'has the shape \[2, 2\]'):
      run.writer.image('picture', np.zeros([2, 2]))
    with pytest.raises(towers.UsageError, match=r'histogram got a NumPy array of shape \[3\] as '
                                                r"its tag, which comes first: write .*\('tag', va"):
      run.writer.histogram(np.zeros(3), 'numbers')

  towers.train(build(), steps=1, quiet=True, callbacks=[Acts(write, 1)])
  assert ''.join(capsys.readouterr()).count('by run.writer is lost without summary_dir') == 1


def test_a_run_ends_in_time_and_exits_with_0(tmp_path, capsys):
  flags = ['main.py', '--data=synthetic', '--model=linear', '--device=cpu', '--num_gpus=2',
           '--validate_every=20steps', f'--checkpoint_dir={tmp_path}']
  with tf.Graph().as_default():
    assert main(flags + ['--steps=1000000', '--max_seconds=0.3']) == 0
  step = list_steps(str(tmp_path))[0]
  said = capsys.readouterr().out
  assert f'stopped after step {step}: max_seconds are over' in said
  assert f'validation after step {step:,}:' in said
  with tf.Graph().as_default():
    assert main(flags + [f'--steps={step + 1}']) == 0
  assert f'{step} of {step + 1} steps are done' in capsys.readouterr().out
