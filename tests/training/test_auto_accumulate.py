"""Fitting: a run whose steps find no memory ends where one with enough of it ends.

Nothing is lost, taken twice or updated by half, whichever op of a step fails.
"""

import functools
import re
import signal
import sys
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import towers
from tests.harness import small
from tests.harness.faults import short_of_memory
from tests.harness.processes import run_python
from towers.base.usage_error import UsageError
from towers.input.micro_batches import find_fitting, find_more
from towers.input.plan import Plan, build_plan
from towers.process.run_error import OutOfMemory
from towers.process.signals import Interrupted
from towers.session.engine import Engine
from towers.session.failure import has_changed_nothing, is_out_of_memory
from towers.tensorflow_v1 import tf
from towers.training.auto_accumulate import recall_most, remember_most, take_in_more

NUM_STEPS, BATCH = 7, 12


def build(model=small.model, accumulate='auto', **settings):
  return small.program(model, accumulate=accumulate, shuffle=True, **dict(
      dict(train=small.random_examples(29), batch_size=BATCH), **settings))


def train(program, folder, **settings):
  """Returns what a run leaves: losses, validations, the result and the last checkpoint's values."""
  recorder = small.Recorder()
  settings = dict(dict(steps=NUM_STEPS, checkpoint_every='3steps'), **settings)
  result = towers.train(program, checkpoint_dir=str(folder), callbacks=[recorder], **settings)
  assert recorder.calls.count('close') == 1
  return recorder, result, small.read_checkpoint(folder)


@functools.lru_cache(maxsize=None)
def undisturbed(average_weights=None):
  """The run of one tower with enough memory."""
  with tempfile.TemporaryDirectory() as folder:
    return train(build(accumulate=1, num_towers=1, average_weights=average_weights), folder)


def assert_same_end(found, expected):
  (recorder, result, values), (others, other_result, other_values) = found, expected
  np.testing.assert_allclose(recorder.losses, others.losses, atol=1e-5)
  assert recorder.validations == [(step, pytest.approx(metrics, abs=1e-5))
                                  for step, metrics in others.validations]
  assert len(recorder.losses) == NUM_STEPS
  for name in ('global_step', 'examples_seen', 'validation_examples'):
    assert result[name] == other_result[name]
  small.assert_same_weights(values, other_values)


@pytest.mark.parametrize('mode, num_towers, depth', small.nightly_but(
    [('split', 2, 2)], small.covering_grid(small.MODES, (1, 2, 3), small.DEPTHS)))
def test_a_run_without_memory_is_one_with_enough_in_more_micro_batches(
    mode, num_towers, depth, tmp_path, capsys):
  most = 3
  program = build(short_of_memory(lambda count, trains: count > most), num_towers=num_towers,
                  input_mode=mode, staging_depth=depth)
  found = train(program, tmp_path)
  assert_same_end(found, undisturbed())
  assert found[0].rewinds == []
  told = [line for line in capsys.readouterr().out.splitlines() if 'out of memory' in line]
  numbers = {1: [2, 4], 2: [2], 3: [2]}[num_towers]
  assert len(told) == len(numbers)
  for line, number in zip(told, numbers):
    assert f'goes on from there in {number} micro-batches' in line
    assert f'each of {-(-BATCH // number // num_towers)} examples per tower' in line
  assert recall_most(str(tmp_path)) == -(-BATCH // numbers[-1] // num_towers)


def later(at, most=3):
  """Returns a function that finds no room in training for more than `most` from call `at` on."""
  calls = []

  def lacks(count, trains):
    calls.append(None)
    return bool(trains) and len(calls) > at and count > most

  lacks.calls = calls
  return lacks


def in_validation(count, trains):
  return not trains and count > 3


ASIDE, AVERAGES = dict(validation_tower=True, num_towers=3), dict(average_weights=0.9)


@pytest.mark.nightly(but=['a later step-kind0', 'validation-kind0'])
@pytest.mark.parametrize('lacks, kind', [
    *[pytest.param(lambda: later(at=10), kind, id=f'a later step-kind{index}') for index, kind in
      enumerate([{}, ASIDE, dict(variables='replicated'), AVERAGES])],
    *[pytest.param(lambda: in_validation, kind, id=f'validation-kind{index}') for index, kind in
      enumerate([{}, ASIDE, AVERAGES])]])
def test_what_does_not_fit_is_taken_again_and_no_other_step(lacks, kind, tmp_path):
  found = train(build(short_of_memory(lacks()), **kind), tmp_path)
  assert_same_end(found, undisturbed(kind.get('average_weights')))
  assert found[0].rewinds == []


def test_room_is_counted_for_the_towers_that_train(tmp_path, capsys):
  remember_most(str(tmp_path), 2)
  with tf.Graph().as_default():
    towers.train(build(**ASIDE), checkpoint_dir=str(tmp_path), steps=1)
  assert 'a step takes 3 micro-batches' in capsys.readouterr().out


@pytest.mark.nightly
def test_a_run_that_is_ended_while_it_is_built_again_has_saved_its_last_step(tmp_path, monkeypatch):
  def end(shortage, *_, **__):
    raise Interrupted(signal.SIGTERM, str(shortage.step))

  with monkeypatch.context() as patch, pytest.raises(Interrupted, match='SIGTERM: ') as ended:
    patch.setattr('towers.training.run.take_in_more', end)
    train(build(short_of_memory(later(at=27))), tmp_path)
  step = int(str(ended.value).split()[-1])  # The coupling check calls the model too.
  assert 0 < step < NUM_STEPS and small.read_checkpoint(tmp_path)['global_step'] == step
  with tf.Graph().as_default():
    towers.train(build(accumulate=2), checkpoint_dir=str(tmp_path), steps=NUM_STEPS, quiet=True)
  small.assert_same_weights(small.read_checkpoint(tmp_path), undisturbed()[2])


class FailsInTheMiddle(tf.train.MomentumOptimizer):
  """Updates a variable, and once then finds no room for the next one."""

  def __init__(self, at):
    super().__init__(0.1, 0.9)
    self._at, self._calls = at, []

  def apply_gradients(self, grads_and_vars, global_step=None, name=None):
    first, *rest = list(grads_and_vars)
    updated = super().apply_gradients([first])

    def fail():
      self._calls.append(None)
      if len(self._calls) == self._at:
        raise MemoryError('no room for an update')
      return np.int32(0)

    with tf.control_dependencies([updated]):
      failed = tf.py_func(fail, [], tf.int32)
    with tf.control_dependencies([failed]):
      return super().apply_gradients(rest)


@pytest.mark.parametrize('at, goes_back', [(5, (4, 3)), pytest.param(
    2, (1, 0), marks=pytest.mark.nightly)])
def test_half_an_update_is_undone_by_going_back_to_the_last_checkpoint(
    at, goes_back, tmp_path, capsys):
  found = train(build(optimizer=FailsInTheMiddle(at)), tmp_path)
  assert_same_end(found, undisturbed())
  assert found[0].rewinds == [goes_back]
  assert 'goes on from the last checkpoint' in capsys.readouterr().out


@pytest.mark.parametrize('num_towers, expected', [(2, 2), pytest.param(
    1, 4, marks=pytest.mark.nightly), pytest.param(4, 1, marks=pytest.mark.nightly)])
def test_a_resumed_run_remembers_what_fits_in_any_shape(num_towers, expected, tmp_path, capsys):
  remember_most(str(tmp_path), 3)
  # With room for all, so that only what is remembered decides.
  calls = []

  def lacks(count, trains):
    calls.append(count)

  train(build(short_of_memory(lacks), num_towers=num_towers), tmp_path, steps=2)
  # What measures the model before the first step gives one tower a few rows of two parts.
  share = -(-BATCH // expected // num_towers)
  assert share in calls and max(calls) <= 2 * share + 1
  assert f'a step takes {expected} micro-batch' in capsys.readouterr().out


@pytest.mark.nightly
def test_an_example_alone_that_does_not_fit_ends_the_run_as_without_auto(tmp_path):
  program = build(short_of_memory(lambda count, trains: True), batch_size=2)
  with pytest.raises(towers.OutOfMemory, match='Out of memory in the first step.*Try a smaller'):
    train(program, tmp_path)


def test_enough_memory_costs_nothing():
  ops = [[(op.type, op.name, op.device, [value.name for value in op.inputs])
          for op in build(accumulate=accumulate).graph.get_operations()]
         for accumulate in (1, 'auto')]
  assert ops[0] == ops[1]


def test_a_program_that_belongs_to_its_graph_says_what_to_build(tmp_path):
  with tf.Graph().as_default():
    rate = tf.constant(0.1)
    program = towers.Program(
        short_of_memory(lambda count, trains: count > 3), train=small.random_examples(29),
        batch_size=BATCH, num_towers=2, accumulate='auto', device='cpu',
        optimizer=tf.train.GradientDescentOptimizer(rate))
  with pytest.raises(towers.RunError, match=r'accumulate=2.*cannot take the step in 2 micro'):
    towers.train(program, steps=3)


def test_a_session_says_what_to_build_and_has_changed_nothing():
  lacks = later(at=6)
  program = build(short_of_memory(lacks))
  with program.session() as session:
    lacks.calls.clear()  # Of the measurement before the first step.
    session.train()
    with pytest.raises(towers.OutOfMemory, match='accumulate=2') as caught:
      for _ in range(NUM_STEPS):
        before = small.read_variables(program, session)
        session.train()
    after = small.read_variables(program, session)
    assert caught.value.accumulate == 2 and caught.value.step == session.step
  small.assert_same_weights(before, after, tolerance=0)


@pytest.mark.parametrize('accumulate', ['many', True, 2.0])
def test_another_word_is_refused(accumulate):
  with pytest.raises(UsageError, match='whole number, or auto'):
    build(accumulate=accumulate)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.integers(1, 400), st.integers(1, 9), st.integers(1, 4))
def test_more_micro_batches_are_a_plan_with_smaller_shares_until_there_are_none(
    batch_size, num_towers, num_workers):
  batch_size = max(batch_size, num_towers * num_workers)
  plan = Plan(1000, batch_size, num_towers, num_workers=num_workers)
  while find_more(plan) is not None:
    more = build_plan(num_examples=1000, batch_size=batch_size, num_towers=num_towers,
                      num_workers=num_workers, accumulate=find_more(plan))
    assert more.accumulate >= 2 * plan.accumulate and more.num_rows < plan.num_rows
    fitting = find_fitting(more.num_rows, batch_size=batch_size,
                           num_towers=num_towers * num_workers)
    assert plan.accumulate < fitting <= more.accumulate
    plan = more
  assert find_fitting(1, batch_size=batch_size, num_towers=num_towers * num_workers) >= (
      plan.accumulate)


@pytest.mark.parametrize('error, expected', [
    (tf.errors.ResourceExhaustedError(None, None, 'OOM when allocating tensor'), True),
    (tf.errors.ResourceExhaustedError(None, None, 'x.tfrecord; Too many open files'), False),
    (tf.errors.ResourceExhaustedError(None, None, 'x; No space left on device'), False),
    (tf.errors.InternalError(None, None, 'Dst tensor is not initialized.'), True),
    (tf.errors.InternalError(None, None, 'CUBLAS_STATUS_ALLOC_FAILED'), True),
    (tf.errors.InternalError(None, None, 'a graph has no op'), False),
    (ValueError('OOM'), False)])
def test_only_errors_about_memory_are_out_of_memory(error, expected):
  assert is_out_of_memory(error) == expected


def test_an_op_that_no_write_waits_for_proves_nothing():
  def model(batch, is_training):
    features, labels = batch
    # Where it trains, a step may be done before this is: a dead branch holds no merge up.
    for_validation = tf.exp(features, name='for_validation')
    features = tf.cond(is_training, lambda: features, lambda: for_validation)
    return small.model((features, labels), is_training)

  program = build(model)
  with tf.Session(graph=program.graph) as session, program.graph.as_default():
    engine = Engine(session, program)
    names = [op.name for op in program.graph.get_operations()]
    applied = next(name for name in names if name.startswith('apply/') and 'Apply' in name)
    for name, expected in (
        ('tower_1/Tanh', True), ('tower_0/for_validation', False), (applied, False),
        (program.feed.put_ops[0].name, False), ('tower_9/Tanh', False)):
      error = tf.errors.ResourceExhaustedError(
          None, None, f'OOM when allocating\n\t [[{{{{node {name}}}}}]]')
      shortage = OutOfMemory('', cause='', step=1, error=error)
      assert has_changed_nothing(shortage, engine) == expected, name


def test_other_workers_are_told_by_a_file_and_an_exit_code(tmp_path):
  shortage = towers.OutOfMemory('Out of memory', cause='here', step=5, accumulate=2)
  arguments = dict(program=build(accumulate=1), worker=object())
  with pytest.raises(towers.RunError, match='Start all workers again.*2 micro-batches') as caught:
    take_in_more(shortage, folder=str(tmp_path), **arguments)
  assert caught.value.exit_code == 76 and recall_most(str(tmp_path)) == 3
  (tmp_path / 'file').touch()
  for folder in (None, str(tmp_path / 'file')):
    with pytest.raises(towers.OutOfMemory):
      take_in_more(shortage, folder=folder, **arguments)


def run_capped(folder, cap, *starter, num_towers=1):
  """Takes four steps in workers that may have a cap of memory, begun by a starter."""
  run = run_python(*starter, '-m', 'tests.harness.capped_run', cap, f'--num_gpus={num_towers}',
                   '--steps=4', f'--checkpoint_dir={folder}', timeout=300)
  assert run.returncode == 0, run.stderr
  return run


@functools.lru_cache(maxsize=None)
def uncapped():
  """The last checkpoint of one tower with enough memory."""
  with tempfile.TemporaryDirectory() as folder:
    run_capped(folder, '0')
    return small.read_checkpoint(folder)


@pytest.mark.nightly
def test_under_a_cap_of_memory_a_batch_of_4096_ends_as_without(tmp_path):
  # A step of the whole batch takes 300 MB and more.
  run = run_capped(tmp_path, '100', num_towers=2)
  told = [line for line in run.stdout.splitlines() if line.startswith('out of memory')]
  assert [re.search(r'goes on from there in (\d) micro', line)[1] for line in told] == ['2', '4']
  capped = small.read_checkpoint(tmp_path)
  small.assert_same_weights(capped, uncapped())
  assert capped['global_step'] == 4 and capped['examples_seen'] == 10000 + 4096


# What both TensorFlows say where they find no memory is above; here is what a launcher makes of it.
# 1.14 crashes in a step that fails while another worker waits for its gradients, which counts as a
# failure.
CRASHES = tf.__version__.startswith('1.')


@pytest.mark.nightly
def test_workers_start_again_together_when_one_has_no_memory(tmp_path):
  both = run_capped(tmp_path, '100@1', '-m', 'towers', 'launch', '--workers=2',
                    f'--restarts={8 if CRASHES else 0}', '--', sys.executable)
  assert 'worker 1 ended with exit code 76' in both.stderr
  assert 'launch: goes on with 2 of 2 workers from the last checkpoint' in both.stderr
  small.assert_same_weights(small.read_checkpoint(tmp_path), uncapped())
