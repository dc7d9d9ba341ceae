"""The loop: what is due when, and that a resumed run ends where the uninterrupted one does."""

import contextlib
import io

import pytest

from data import BadRecords
from tensorflow_v1 import tf
from tests.towers import small
from tests.towers.small import Run, assert_same_weights
from training.checkpoints import Checkpoints
from training.config import Config
from training.loop import Schedule, build_schedule, check_resume, run_loop, watch_records
from usage_error import UsageError


class Recorder:
  """Stands in for the progress; interrupts after a given step."""

  def __init__(self, interrupt_after=None):
    self.losses, self.validations, self.pauses, self.lines = [], [], 0, []
    self._interrupt_after = interrupt_after

  def step(self, *, step, loss):
    self.losses.append((step, float(loss)))
    if step == self._interrupt_after:
      raise KeyboardInterrupt

  def validation(self, *, step, metrics, examples):
    self.validations.append((step, metrics['loss'], examples))

  def write(self, text):
    self.lines.append(text)

  def paused(self):
    recorder = self

    class Pause:
      def __enter__(self):
        recorder.pauses += 1

      def __exit__(self, *_):
        pass
    return Pause()


def loop(run, *, total_steps=9, validate_every=4, save_every=100, folder=None, interrupt_after=None):
  """Runs to the end, from the newest checkpoint in `folder`; returns the outcome and what was recorded."""
  recorder = Recorder(interrupt_after)
  with run.graph.as_default():
    checkpoints = folder and Checkpoints(str(folder), keep=3)
    if checkpoints:
      checkpoints.restore(run.session)
    step = run.counters()[0]
    run.steps.start(step)
    outcome = None
    with contextlib.suppress(KeyboardInterrupt):
      outcome = run_loop(run.steps, session=run.session, schedule=Schedule(total_steps, validate_every, save_every),
                         step=step, checkpoints=checkpoints, progress=recorder)
  return outcome, recorder


@pytest.mark.parametrize('depth', small.DEPTHS)
def test_validation_is_when_due_and_at_the_end(depth):
  with Run(depth=depth) as run:
    outcome, recorder = loop(run)
  assert [(step, examples) for step, _, examples in recorder.validations] == [(4, 11), (8, 11), (9, 11)]
  assert [step for step, _ in recorder.losses] == list(range(1, 10))
  assert outcome.step == 9 and outcome.validation_examples == 11
  assert outcome.train_loss == recorder.losses[-1][1] and outcome.validation['loss'] == recorder.validations[-1][1]


@pytest.mark.parametrize('validate_every', [1, 3, 4])
def test_a_validation_tower_gives_the_loop_the_same_numbers(validate_every):
  with Run(num_towers=2) as run, Run(num_towers=3, validation_tower=True) as aside:
    _, expected = loop(run, validate_every=validate_every)
    outcome, recorder = loop(aside, validate_every=validate_every)
  assert [loss for _, loss in recorder.losses] == pytest.approx([loss for _, loss in expected.losses], abs=1e-6)
  # A pass takes two steps beside training, so that passes that would overlap are left out.
  ours = {step: (loss, examples) for step, loss, examples in recorder.validations}
  theirs = {step: (loss, examples) for step, loss, examples in expected.validations}
  assert set(ours) <= set(theirs) and 9 in ours and len(ours) >= 3
  for step, (loss, examples) in ours.items():
    assert examples == 11 and loss == pytest.approx(theirs[step][0], abs=1e-6)
  assert outcome.validation['loss'] == ours[9][0]


def test_without_validation_there_is_none():
  with Run(validation_kind='none') as run:
    outcome, recorder = loop(run)
  assert recorder.validations == [] and outcome.validation == {} and outcome.validation_examples == 0


@pytest.mark.parametrize('mode', small.MODES)
@pytest.mark.parametrize('depth', small.DEPTHS)
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path, mode, depth):
  settings = dict(mode=mode, depth=depth, shuffle=True, num_towers=3)
  with Run(**settings) as run:
    expected, recorded = loop(run)
    weights = run.weights()
  with Run(**settings) as run:
    _, first = loop(run, folder=tmp_path, interrupt_after=5)
  with Run(**settings) as run:
    outcome, second = loop(run, folder=tmp_path)
    assert first.losses + second.losses == recorded.losses
    assert outcome == expected
    assert_same_weights(run.weights(), weights, tolerance=0)


def test_a_finished_run_only_validates(tmp_path):
  with Run() as run:
    expected, _ = loop(run, folder=tmp_path)
  with Run() as run:
    outcome, recorder = loop(run, folder=tmp_path)
  assert recorder.losses == [] and outcome == expected._replace(train_loss=None)


def test_checkpoints_are_when_due_and_at_the_end(tmp_path):
  with Run() as run:
    loop(run, folder=tmp_path, save_every=4)
  assert sorted(path.stem for path in tmp_path.glob('*.index')) == ['model.ckpt-4', 'model.ckpt-8', 'model.ckpt-9']


def test_a_schedule_counts_in_steps():
  with Run() as run:
    plan = run.program.train.inputs.plan
  config = Config(epochs=3.0, validate_every='2epochs', checkpoint_every='5')
  assert build_schedule(config, plan) == Schedule(total_steps=6, validate_every=4, save_every=5)


def test_a_checkpoint_of_other_batches_is_refused():
  with Run() as run:
    plan = run.program.train.inputs.plan
  check_resume('folder/model.ckpt-3', step=3, examples_seen=21, plan=plan)
  with pytest.raises(UsageError, match='has seen 24 examples in 3 steps.*batch_size=8 they would be 21'):
    check_resume('folder/model.ckpt-3', step=3, examples_seen=24, plan=plan)


def test_a_checkpoint_may_have_seen_a_few_examples_less_where_damaged_ones_are_skipped():
  with Run() as run:
    plan = run.program.train.inputs.plan
  for examples_seen in (21, 20, 19):
    check_resume('checkpoint', step=3, examples_seen=examples_seen, plan=plan, may_skip=True)
  for examples_seen in (22, 18, 0):
    with pytest.raises(UsageError, match='has seen %d examples' % examples_seen):
      check_resume('checkpoint', step=3, examples_seen=examples_seen, plan=plan, may_skip=True)
  with pytest.raises(UsageError, match='resume with on_bad_record=skip'):
    check_resume('checkpoint', step=3, examples_seen=20, plan=plan)


def test_an_error_of_a_pipeline_becomes_the_message_that_names_the_record():
  recorder = Recorder()
  bad_records = BadRecords('fail')
  with contextlib.suppress(UsageError):
    bad_records.report('a/file', 12, 'torn', record=3)
  with pytest.raises(UsageError, match='a/file: record 3 at byte 12: torn'), watch_records(bad_records, recorder):
    raise tf.errors.UnknownError(None, None, 'in a thread')
  for nothing_bad in (None, BadRecords('fail')):
    with pytest.raises(tf.errors.UnknownError), watch_records(nothing_bad, recorder):
      raise tf.errors.UnknownError(None, None, 'something else')
  assert recorder.lines == []
  bad_records = BadRecords('skip', io.StringIO())
  with watch_records(bad_records, recorder):
    bad_records.report('a/file', 12, 'torn', record=3)
  assert recorder.lines == ['skipped 1 damaged record in 1 file: a/file (1)']
