"""The loop validates and saves when due, and a resumed run ends as the uninterrupted one does."""

import contextlib
import functools
import importlib
import io
import itertools
import json
import math
import os
import re
import signal
import sys
import types
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np
import pytest

import towers
from tests import ROOT
from tests.harness import faults, small
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import Checkpoints
from towers.checkpoint.history import MOST_ROLLBACKS, History
from towers.data import BadRecords
from towers.process.run_error import RunError
from towers.process.signals import Interrupted
from towers.session.engine import StepResult
from towers.session.not_finite import Retried
from towers.settings.timetable import Interval, Timetable
from towers.tensorflow_v1 import tf
from towers.training import loop as training_loop
from towers.training import run as training_run
from towers.training.loop import MOST_SKIPPED_IN_A_ROW, Loop
from towers.training.run import watch_records
from towers.update.nan_guard import Diagnosis

Run = functools.partial(small.Run, validates=True, num_towers=1)


class Recorder:
  """A fake of run, progress and signals that interrupts or kills the run after a given step."""

  def __init__(self, interrupt_after=None, kill_after=None):
    self.losses, self.validations, self.lines = [], [], []
    self.received = self.validation_step = None
    self.answers = []
    self._interrupt_after = interrupt_after
    self._kill_after = kill_after

  def report_step(self, loss):
    step = self.session.step
    self.losses.append((step, float(loss)))
    if step == self._kill_after:
      raise small.Killed
    if step == self._interrupt_after:
      self.received = signal.SIGTERM

  def answer(self):
    self.answers.append('answer')

  def has_saved(self):
    self.answers.append('has saved')

  def report_rewind(self):
    self.lines.append(f'back to {self.session.step}')

  def report_validation(self, measured, means):
    self.validation_step = measured.step
    self.validations.append((measured.step, means['loss'], measured.num_examples))

  def write(self, text):
    self.lines.append(text)

  warn = write

  def paused(self):
    return contextlib.nullcontext()


class Outcome(NamedTuple):
  """What a run has come to: its step, the loop's result, and the last validation."""
  step: int
  train_loss: Optional[float]
  stopped: Optional[str]
  validation: Sequence[Any]


def loop(run, *, total_steps=9, validate_every=4, save_every=100, save_seconds=math.inf,
         on_nan='stop', folder=None, interrupt_after=None, kill_after=None, keep=3, metric='loss',
         patience=None, stop_on_full_disk=False, recorder=None):
  """Runs to the end from the newest checkpoint in `folder`; returns outcome and recorder."""
  recorder = recorder or Recorder(interrupt_after, kill_after)
  recorder.session = run.opened
  history = History(metric=metric, patience=patience)
  with run.graph.as_default():
    checkpoints = Checkpoints(
        folder and str(folder), keep=keep, stop_on_full_disk=stop_on_full_disk,
        warn=recorder.write, data=small.data_of(run.program))
    run.opened.resume(checkpoints, history)
    run.opened.scale_learning_rate(history.rate_factor)
    run.opened.start()
    outcome = None
    timetable = Timetable(total_steps, Interval(validate_every), Interval(save_every), save_seconds)
    with contextlib.suppress(Interrupted, small.Killed):
      ran = Loop(recorder, checkpoints=checkpoints, history=history, progress=recorder,
                 timetable=timetable, signals=recorder, on_nan=on_nan)
      ran.run()
      outcome = Outcome(run.opened.step, ran.loss, ran.stopped, recorder.validations[-1:])
  return outcome, recorder


def saved_steps(folder):
  return sorted(int(path.stem.split('-')[1]) for path in folder.glob('*.index'))


@pytest.mark.nightly(but='2')
@pytest.mark.parametrize('depth', small.DEPTHS)
def test_validation_is_when_due_and_at_the_end(depth):
  with Run(depth=depth) as run:
    outcome, recorder = loop(run)
  assert [(step, examples) for step, _, examples in recorder.validations] == [
      (4, 11), (8, 11), (9, 11)]
  assert [step for step, _ in recorder.losses] == list(range(1, 10))
  assert outcome.step == 9 and outcome.validation[0][2] == 11
  assert outcome.train_loss == recorder.losses[-1][1]


@pytest.mark.parametrize('validate_every', small.nightly_but([3], [1, 3, 4]))
def test_a_validation_tower_gives_the_loop_the_same_numbers(validate_every):
  with Run(num_towers=2) as run, Run(num_towers=3, validation_tower=True) as aside:
    _, expected = loop(run, validate_every=validate_every)
    _, recorder = loop(aside, validate_every=validate_every)
  losses = [loss for _, loss in recorder.losses]
  assert losses == pytest.approx([loss for _, loss in expected.losses], abs=1e-6)
  # A pass takes two steps beside training, so passes that would overlap are left out.
  by_tower = {step: (loss, examples) for step, loss, examples in recorder.validations}
  by_switch = {step: (loss, examples) for step, loss, examples in expected.validations}
  assert set(by_tower) <= set(by_switch) and 9 in by_tower and len(by_tower) >= 3
  for step, (loss, examples) in by_tower.items():
    assert examples == 11 and loss == pytest.approx(by_switch[step][0], abs=1e-6)


def test_a_finished_run_only_validates(tmp_path):
  with Run() as run:
    expected, _ = loop(run, folder=tmp_path)
  with Run() as run:
    outcome, recorder = loop(run, folder=tmp_path)
  assert recorder.losses == [] and outcome == expected._replace(train_loss=None)


@pytest.mark.nightly(but='loss')
@pytest.mark.parametrize('metric', ['loss', 'accuracy'])
def test_a_last_validation_that_a_signal_put_off_is_in_the_history(tmp_path, metric):
  for name, interruptions in (('whole', [None]), ('parts', [9, None])):
    for interrupt_after in interruptions:
      with Run(learning_rate=0.01) as run:
        loop(run, folder=tmp_path / name, metric=metric, interrupt_after=interrupt_after)
  whole, parts = ((tmp_path / name / 'history.json').read_text() for name in ('whole', 'parts'))
  assert parts == whole and [row['step'] for row in json.loads(whole)['validations']] == [4, 8, 9]


def test_a_signal_saves_after_the_step_and_in_the_middle_of_a_validation(tmp_path):
  with Run() as run:
    expected, recorded = loop(run, folder=tmp_path / 'whole')
    weights = run.weights()
  with Run() as run:
    outcome, first = loop(run, folder=tmp_path / 'parts', interrupt_after=4)
    # The signal came before the validation that is due at step 4; the resumed run does it.
    assert outcome is None and first.validations == [] and first.answers == ['answer', 'has saved']
  with Run() as run:
    measure, sums, second = run.opened.finish_validation, [], Recorder()

    def interrupted(validation_pass, goes_on):
      if len(sums) == 1:
        second.received = signal.SIGINT
      sums.append(validation_pass.step)
      measure(validation_pass, goes_on)

    run.opened.finish_validation = interrupted
    outcome, _ = loop(run, folder=tmp_path / 'parts', recorder=second)
    assert outcome is None and [step for step, _, _ in second.validations] == [4] and sums == [4, 8]
  with Run() as run:
    outcome, third = loop(run, folder=tmp_path / 'parts')
    assert first.losses + second.losses + third.losses == recorded.losses
    assert first.validations + second.validations + third.validations == recorded.validations
    assert outcome == expected
    small.assert_same_weights(run.weights(), weights, tolerance=0)
  # Killed after the checkpoint of a validated step, which is not measured again.
  with Run() as run:
    _, first = loop(run, folder=tmp_path / 'killed', save_every=4, kill_after=6)
  with Run() as run:
    _, second = loop(run, folder=tmp_path / 'killed', save_every=4)
    assert first.validations + second.validations == recorded.validations
    assert second.losses[0][0] == 5
  histories = [(tmp_path / name / 'history.json').read_text() for name in ('whole', 'parts')]
  assert histories[0] == histories[1]


def test_the_best_checkpoint_stays_and_survives_a_resume(tmp_path):
  # Labels are random, so that the loss of validation soon rises.
  settings = dict(learning_rate=0.3, num_towers=2)
  with Run(**settings) as run:
    _, recorded = loop(run, total_steps=12, validate_every=1, folder=tmp_path / 'whole', keep=1)
  losses = [loss for _, loss, _ in recorded.validations]
  best = 1 + int(np.argmin(losses))
  assert 1 < best < 12
  assert saved_steps(tmp_path / 'whole') == [best, 12]
  for interrupt_after in (best + 1, 11, None):
    with Run(**settings) as run:
      loop(run, total_steps=12, validate_every=1, folder=tmp_path / 'parts', keep=1,
           interrupt_after=interrupt_after)
  assert saved_steps(tmp_path / 'parts') == [best, 12]


def test_the_best_of_a_validation_tower_is_saved_as_it_was_measured(tmp_path):
  # The tower measures the weights of step 4 while the others take steps 5 and 6.
  with Run(num_towers=3, validation_tower=True) as run, Run(num_towers=1) as expected:
    loop(run, total_steps=9, validate_every=4, folder=tmp_path)
    expected.train(4)
    assert saved_steps(tmp_path)[0] == 4
    saved = tf.train.load_checkpoint(str(tmp_path / 'model.ckpt-4'))
    weights = expected.weights()
    small.assert_same_weights({name: saved.get_tensor(name) for name in weights}, weights)


@pytest.mark.nightly
@pytest.mark.parametrize('validation_tower', [False, True])
def test_early_stopping_counts_over_a_resume(tmp_path, validation_tower):
  settings = dict(learning_rate=1.5, num_towers=3, validation_tower=validation_tower)
  options = dict(total_steps=40, validate_every=2, patience=3, save_every=3)
  with Run(**settings) as run:
    expected, recorded = loop(run, folder=tmp_path / 'whole', **options)
  assert expected.step < 40 and 'stopped early' in recorded.lines[-1]
  # Killed after the checkpoint of step 3, while a validation tower measures step 2; then
  # interrupted.
  for ending in (dict(kill_after=4), dict(interrupt_after=expected.step // 2 // 3 * 3)):
    with Run(**settings) as run:
      loop(run, folder=tmp_path / 'parts', **ending, **options)
  for _ in range(2):  # The second run finds all steps done.
    with Run(**settings) as run:
      outcome, second = loop(run, folder=tmp_path / 'parts', **options)
    assert outcome._replace(train_loss=None) == expected._replace(train_loss=None)
  assert saved_steps(tmp_path / 'whole') == saved_steps(tmp_path / 'parts')


@pytest.mark.parametrize('settings, steps', [
    (dict(save_every=4), [4, 8, 9]),
    (dict(save_every=9, save_seconds=4.5), [5, 9])], ids=['steps', 'clock'])
def test_checkpoints_are_when_due_and_at_the_end(settings, steps, tmp_path, monkeypatch):
  monkeypatch.setattr(training_loop, 'time', types.SimpleNamespace(
      monotonic=itertools.count().__next__))
  with small.Run() as run:
    outcome, _ = loop(run, folder=tmp_path, **settings)
  assert saved_steps(tmp_path) == steps and outcome.validation == []


BAD = small.random_examples(16)
BAD.arrays[0][12] = np.nan


def test_not_finite_and_stop_keeps_the_weights_before_it(tmp_path):
  with Run(num_towers=2, train=BAD) as run:
    run.train()
    weights = run.weights()
  with Run(num_towers=2, train=BAD) as run:
    with pytest.raises(RunError, match='Step 2 .batch 2 of epoch 1. is not finite: in tower 1 '
                                       'component 0 of the batch holds NaN or Inf and the loss is'):
      loop(run, folder=tmp_path)
    small.assert_same_weights(run.weights(), weights, tolerance=0)
  assert saved_steps(tmp_path) == [1]
  # With another policy the run resumes from there.
  with Run(num_towers=2, train=BAD) as run:
    outcome, recorder = loop(run, folder=tmp_path, on_nan='skip')
  assert outcome.step == 9 and len([line for line in recorder.lines if 'is skipped' in line]) == 4


@pytest.mark.nightly
def test_not_finite_and_skip_is_the_same_after_a_resume_and_ends_if_none_is_finite(tmp_path):
  with Run(num_towers=2, train=BAD) as run:
    expected, recorded = loop(run, on_nan='skip')
    weights = run.weights()
  with Run(num_towers=2, train=BAD) as run:
    loop(run, on_nan='skip', folder=tmp_path, interrupt_after=4)
  with Run(num_towers=2, train=BAD) as run:
    outcome, _ = loop(run, on_nan='skip', folder=tmp_path)
    assert outcome == expected and np.isfinite(outcome.train_loss)
    small.assert_same_weights(run.weights(), weights, tolerance=0)
  nothing = small.random_examples(8)
  nothing.arrays[0][:] = np.inf
  failure = pytest.raises(RunError, match='so were the 9 before it')
  with Run(num_towers=1, train=nothing) as run, failure:
    loop(run, on_nan='skip', total_steps=2 * MOST_SKIPPED_IN_A_ROW)


@pytest.mark.nightly
def test_not_finite_and_rollback_goes_back_with_half_the_rate_and_gives_up_at_last(tmp_path):
  settings = dict(num_towers=2, train=BAD, on_nan='rollback', checkpoint_dir=str(tmp_path))
  with Run(**settings) as run:
    with pytest.raises(RunError, match='going back 3 times has not helped'):
      loop(run, on_nan='rollback', folder=tmp_path, validate_every=100)
    assert run.opened.learning_rate() == pytest.approx(0.1 * 0.5 ** MOST_ROLLBACKS)
    assert run.counters() == [1, 8]
  rollbacks = json.loads((tmp_path / 'history.json').read_text())['rollbacks']
  assert [(entry['step'], entry['to']) for entry in rollbacks] == [(1, 0)] * MOST_ROLLBACKS
  # The count of rollbacks outlives the process.
  with Run(**settings) as run, pytest.raises(RunError, match='has not helped'):
    loop(run, on_nan='rollback', folder=tmp_path)


def test_after_going_back_what_was_due_is_due_again(tmp_path):
  with Run(num_towers=1, on_nan='rollback', checkpoint_dir=str(tmp_path)) as run:
    take_step, failures = run.opened.take_step, []

    def fail_once(validation_pass):
      if run.opened.step == 9 and not failures:
        failures.append(9)
        refused = StepResult(np.nan)
        refused.not_finite = Retried(False, Diagnosis(
            np.array([[np.nan]]), np.ones([1, 2, 1], bool), ['w'], (), np.ones([1, 1, 0]), []))
        return refused
      return take_step()

    run.opened.take_step = fail_once
    outcome, recorder = loop(run, total_steps=12, validate_every=4, save_every=5, on_nan='rollback',
                             folder=tmp_path)
  assert outcome.step == 12 and 'back to 5' in recorder.lines
  assert [step for step, *_ in recorder.validations] == [4, 8, 8, 12]
  # A step that is taken back is not reported.
  assert [step for step, _ in recorder.losses] == [*range(1, 10), *range(6, 13)]
  assert saved_steps(tmp_path)[-2:] == [10, 12]


@pytest.mark.nightly(but='False-full_disk')
@pytest.mark.parametrize('fault', ['full_disk', 'read_only'])
@pytest.mark.parametrize('stop', [False, True])
def test_a_disk_that_takes_no_more_keeps_what_is_there_and_the_run_goes_on_or_stops(
    tmp_path, stop, fault):
  options = dict(folder=tmp_path, save_every=1, validate_every=100, stop_on_full_disk=stop)
  with Run() as run:
    loop(run, total_steps=2, **options)
  before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
  no_room = faults.full_disk() if fault == 'full_disk' else faults.read_only(tmp_path)
  with Run() as run, no_room:
    with pytest.raises(RunError, match=f'come to step {4 if stop else 6}, but'):
      recorder = loop(run, total_steps=6, **options)[1]
    assert run.counters()[0] == (4 if stop else 6)
  after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
  assert after == before
  # As soon as it takes more, the run resumes from the last whole checkpoint.
  with Run() as run:
    outcome, recorder = loop(run, total_steps=6, **options)
  assert [step for step, _ in recorder.losses] == [3, 4, 5, 6]
  assert saved_steps(tmp_path) == [4, 5, 6]


def test_a_file_checkpoint_that_cannot_be_written_costs_no_checkpoint(tmp_path):
  faults.be_special(tmp_path / 'checkpoint', 'a FIFO')
  for steps in (1, 2):
    with Run() as run:
      recorder = loop(run, total_steps=steps, save_every=1, validate_every=100, folder=tmp_path)[1]
    assert [step for step, _ in recorder.losses] == [steps]
    [warning] = [line for line in recorder.lines if 'WARNING' in line]
    assert f'of step {steps} is written, but cannot be named in the file checkpoint' in warning
  assert saved_steps(tmp_path) == [1, 2]


def test_a_history_that_is_gone_is_named(tmp_path, capsys):
  for steps in (2, 3):
    with Run() as run:
      loop(run, total_steps=steps, save_every=1, validate_every=1, folder=tmp_path)
    assert ('history.json is not beside' in capsys.readouterr().out) == (steps == 3)
    os.remove(str(tmp_path / 'history.json'))


def test_an_error_of_a_pipeline_becomes_the_message_that_names_the_record():
  recorder = Recorder()
  bad_records = BadRecords('fail')
  with contextlib.suppress(UsageError):
    bad_records.report('a/file', 12, 3, 'torn')
  failure = pytest.raises(UsageError, match='a/file: record 3 at byte 12: torn')
  with failure, watch_records([BadRecords('skip'), bad_records], recorder):
    raise tf.errors.UnknownError(None, None, 'in a thread')
  for nothing_bad in ([], [BadRecords('fail')]):
    with pytest.raises(tf.errors.UnknownError), watch_records(nothing_bad, recorder):
      raise tf.errors.UnknownError(None, None, 'something else')
  assert recorder.lines == []
  bad_records = BadRecords('skip', io.StringIO(), 'train')
  with watch_records([bad_records], recorder):
    bad_records.report('a/file', 12, 3, 'torn')
  assert recorder.lines == ['WARNING: train: skipped 1 damaged record in 1 file: a/file (1)']


def watch_a_step(**settings):
  """Takes some steps of a plain run; returns what the project does for one.

  That is, its frames inside of the call of `tf.Session`, from the innermost, and the classes whose
  methods it calls up to the next call.
  """
  frames, classes, count = [], set(), itertools.count(1)
  call = importlib.import_module('towers.tensorflow_v1.call')
  runs = call._run_callable

  def is_ours(frame):
    return frame.f_code.co_filename.startswith(os.path.join(ROOT, 'towers'))

  def note(frame, event, _):
    if event == 'call' and is_ours(frame) and 'self' in frame.f_locals:
      classes.add(type(frame.f_locals['self']).__name__)

  def run(*args):
    number = next(count)
    if number == 7:
      sys.setprofile(None)
    results = runs(*args)
    if number == 6:
      frame = sys._getframe(1)
      while frame is not None:
        if is_ours(frame):
          frames.append(frame.f_code.co_name)
          note(frame, 'call', None)
        frame = frame.f_back
      sys.setprofile(note)
    return results

  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(call, '_run_callable', run)
    towers.train(small.program(**settings), steps=12, quiet=True)
  return frames, classes


def test_four_frames_and_eight_classes_make_a_step():
  frames, classes = watch_a_step()
  assert frames[:frames.index('run', 1) + 1] == ['run', 'take_step', 'take_step', 'run']
  with open(os.path.join(ROOT, 'BUILD.md'), encoding='utf-8') as file:
    named = file.read().split('A step calls methods of ')[1].split('.')[0]
  assert classes == set(re.findall(r'`(.*?)`', named)) and len(classes) <= 8


# Above the graph: what lies below, such as files and names of variables, is the same for all.
UPPER = ('checkpoint', 'session', 'training', 'workers')


def test_a_resume_passes_through_six_files(tmp_path, monkeypatch):
  found, resume = set(), training_run.Run._resume

  def note(frame, event, _):
    path = os.path.relpath(frame.f_code.co_filename, os.path.join(ROOT, 'towers'))
    if path.startswith(UPPER):
      found.add(path)

  def watched(*args):
    sys.setprofile(note)
    try:
      return resume(*args)
    finally:
      sys.setprofile(None)

  for steps in (2, 3):
    towers.train(small.program(), steps=steps, checkpoint_dir=str(tmp_path), quiet=True)
    monkeypatch.setattr(training_run.Run, '_resume', watched)
  with open(os.path.join(ROOT, 'BUILD.md'), encoding='utf-8') as file:
    named = file.read().split('A resume passes through ')[1].split(':')[0]
  assert found == set(re.findall(r'`(.*?)`', named)) and len(found) <= 6
