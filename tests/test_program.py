"""Program and its session: one object, every part visible, and no order of calls that blocks."""

import os
import pathlib
import random
import re

import numpy as np
import pytest

import towers
from tests import ROOT
from tests.harness import faults, small
from tests.harness.loaded_process import run_loaded
from towers.placement.counters import get_global_step
from towers.process.run_error import RunError
from towers.tensorflow_v1 import tf


def build(**settings):
  settings = dict(dict(train=small.random_examples(37), shuffle=True, seed=1), **settings)
  return small.program(**settings)


def test_every_part_of_the_straight_line_is_an_attribute():
  program = build(num_towers=3)
  assert program.devices.names == [f'/device:CPU:{tower}' for tower in range(3)]
  assert program.plan.batch_size == 8 and program.plan is program.feed.inputs.plan
  assert len(program.batches) == len(program.towers) == 3
  assert program.towers == program.towers
  assert program.train_op.graph is program.graph and program.validation.names == [
      'loss', 'accuracy']
  assert program.learning_rate == 0.1


KINDS = [
    dict(), dict(input_mode='next', staging_depth=2), dict(input_mode='shard', staging_depth=0),
    dict(validation_tower=True, num_towers=3), dict(validation=None), dict(accumulate=2),
    dict(variables='replicated', last_batch='drop')]


@pytest.mark.nightly(but='input_mode-staging_depth1')
@pytest.mark.timeout(120)
@pytest.mark.parametrize('settings', KINDS, ids=lambda settings: '-'.join(settings) or 'plain')
def test_no_order_of_calls_blocks_or_changes_what_is_trained(settings, tmp_path):
  with build(**settings).session() as session:
    expected = [session.train() for _ in range(30)]
  program = build(**settings)
  validation, updates = program.validation, 'accumulate' not in settings
  with program.graph.as_default():
    needs_no_batch = {'step': get_global_step()}
  fetches = [program.towers[0].loss, program.towers[-1].sums, program.batches[0].tensors,
             program.feed.put_ops, needs_no_batch]
  draw = random.Random(str(sorted(settings)))
  with program.session() as session:
    session.save(str(tmp_path))

    def train():
      step = session.step
      assert session.train() == expected[step] and session.step == step + 1

    calls = [train, train, lambda: session.run(draw.choice(fetches)),
             lambda: session.run([draw.choice(fetches), draw.choice(fetches)]),
             lambda: session.save(str(tmp_path)), lambda: session.restore(str(tmp_path))]
    if updates:
      fetches += [program.gradients.loss, program.gradients.gradients[0][0], program.input_wait]
      calls.append(lambda: session.run(program.train_op))
    if validation is not None:
      calls += [session.validate, lambda: session.run(validation.sums)]
      if validation.is_validating is not None:
        feed = {validation.is_validating: True}
        calls += [lambda: session.run(validation.sums, feed),
                  lambda: session.run(program.towers[0].sums, feed)]
    for _ in range(25):
      draw.choice(calls)()
    train()
    if validation is not None:
      assert session.run(validation.sums, feed if validation.is_validating is not None else None)[
          -1] > 0
      # The pass begins with the first validation example, wherever it was taken from before.
      first = session.validate()
      assert session.validate() == first


@pytest.mark.nightly(but='validation-input_mode')
@pytest.mark.timeout(60)
@pytest.mark.parametrize('settings', [
    dict(), dict(input_mode='next', staging_depth=2), dict(validation_tower=True, num_towers=3),
    dict(validation=None, input_mode='shard')],
                         ids=lambda settings: '-'.join(settings) or 'plain')
def test_a_raw_run_that_would_starve_a_tower_fails_by_name(settings, tmp_path):
  """Whatever a program runs in the session beneath, nothing waits for a batch for good."""
  program = build(**settings)
  feeds = [program.feed] + ([program.validation.feed] if program.validation else [])
  fetches = [program.towers[0].loss, program.towers[-1].sums, program.batches[1].tensors,
             program.train_op, *[feed.put_ops for feed in feeds]]
  draw = random.Random(str(sorted(settings)))
  with program.session() as session:
    session.save(str(tmp_path))
    errors = []
    for _ in range(30):
      try:
        session.tf_session.run(draw.choice(fetches))
      except tf.errors.OpError as error:
        errors.append(str(error))
    assert any(re.search(r'staging area of tower \d .*must hold', text) for text in errors)
    session.restore(str(tmp_path))
    session.tf_session.run(program.towers[0].loss)
    with pytest.raises(RunError, match=r'staging area of tower \d .*session.restore'):
      session.train()
    session.restore(str(tmp_path))
    assert np.isfinite(session.train()) and session.step == 1


@pytest.mark.nightly(but='tower')
@pytest.mark.parametrize('settings', [dict(), dict(accumulate=2), dict(validation_tower=True)],
                         ids=['plain', 'accumulate', 'tower'])
def test_what_was_saved_goes_on_to_the_bit(settings, tmp_path):
  program = build(**settings)
  with program.session() as session:
    for _ in range(4):
      session.train()
    path = session.save(str(tmp_path))
    expected = [session.train() for _ in range(5)], small.read_variables(program, session)
    assert session.restore(str(tmp_path)) == path and session.step == 4
    assert [session.train() for _ in range(5)] == expected[0]
  again = build(**settings)
  with again.session() as session:
    session.train()
    session.restore(str(tmp_path))
    assert [session.train() for _ in range(5)] == expected[0]
    small.assert_same_weights(small.read_variables(again, session), expected[1], tolerance=0)


@pytest.mark.nightly(but='its own')
@pytest.mark.parametrize('others', [False, True], ids=['its own', 'another'])
def test_a_session_saves_where_no_run_does(others, tmp_path):
  """Two that write to one folder would delete each other's checkpoints."""
  folder, refusals = str(tmp_path / 'run'), []
  program = build()
  with build().session() as session:
    def save(step, loss):
      with pytest.raises(towers.UsageError, match='is in use by another run') as refused:
        session.save(folder)
      refusals.append(refused)

    towers.train(program, steps=2, checkpoint_dir=folder, quiet=True, callbacks=[save])
    assert len(refusals) == 2
    assert session.save(str(tmp_path / 'other') if others else folder)
  towers.train(build(), steps=4, checkpoint_dir=folder, quiet=True)


@pytest.mark.nightly(but='run')
@pytest.mark.parametrize('take', [
    lambda session: session.train(),
    lambda session: session.run([session.program.gradients.loss, session.program.train_op])[0],
], ids=['train', 'run'])
def test_a_step_that_is_not_finite_changes_nothing_and_one_may_go_on(take):
  train = faults.poison(small.random_examples(37), slice(8, 10))
  program = build(train=train, shuffle=False)
  with program.session() as session:
    take(session)
    before = small.read_variables(program, session)
    with pytest.raises(RunError, match='Step 2 is not finite: .*tower 0.*has changed no variable'):
      take(session)
    after = small.read_variables(program, session)
    assert session.step == 2 and np.isfinite(take(session)) and session.step == 3
  for name in ('hidden/weights', 'hidden/weights/Momentum'):
    np.testing.assert_array_equal(after[name], before[name])


def given_by_function(make):
  return dict(optimizer=tf.train.GradientDescentOptimizer, learning_rate=make)


@pytest.mark.nightly(but=['variable', 'of the plan'])
@pytest.mark.parametrize('give', [
    lambda: 0.1, lambda: 1, lambda: np.float32(0.1), lambda: lambda: 0.1,
    lambda: tf.Variable(0.1, trainable=False), lambda: given_by_function(lambda plan: 0.1),
    lambda: given_by_function(lambda plan: tf.Variable(0.1, trainable=False)),
    lambda: given_by_function(np.float32(0.1))
], ids=['float', 'int', 'numpy', 'function', 'variable', 'of the plan', 'variable of the plan',
        'given'])
def test_a_rate_of_any_kind_trains(give, tmp_path, capsys):
  with tf.Graph().as_default():
    given = give()
    hides = callable(given)  # Only the optimizer calls it.
    if not isinstance(given, dict):
      given = dict(optimizer=tf.train.GradientDescentOptimizer(given))
    program = towers.Program(
        small.model, train=small.random_examples(37), validation=small.random_examples(9),
        batch_size=8, num_towers=2, device='cpu', **given)
  result = towers.train(program, steps=3, summary_dir=str(tmp_path / 'curves'),
                        report=str(tmp_path / 'report.html'))
  assert np.isfinite(result['train_loss'])
  shown = capsys.readouterr().out
  assert ('rate nan' not in shown) and ('rate 0.1' in shown or 'rate 1' in shown) != hides


@pytest.mark.parametrize('settings', small.nightly_but([dict(num_towers=2)], [
    dict(num_towers=2), dict(num_towers=3, variables='replicated', validation_tower=True)]))
def test_a_notebook_shows_each_part_in_a_line(settings):
  program = small.program(**settings)
  for part in (program.train_examples, program.feed, program.gradients, program.validation,
               *program.towers, *program.batches):
    assert len(repr(part)) < 300 and 'tf.Tensor' not in repr(part), repr(part)
  assert repr(program.gradients).startswith(
      f'<ReducedGradients of towers: {len(program.towers)}, num_examples, loss, gradients: 4, ')
  assert "<Tower of device='/device:CPU:0', scope='tower_0/', batch, " in repr(program.towers[0])


def test_a_graph_has_one_program():
  program = build()
  with program.graph.as_default(), pytest.raises(towers.UsageError, match='has a program already'):
    towers.Program(small.model, train=small.random_examples(37), batch_size=8, device='cpu',
                   optimizer=tf.train.AdamOptimizer())


def test_calls_that_cannot_be_answered_are_refused(tmp_path):
  program = build(validation=None, accumulate=2)
  session = program.session()
  with pytest.raises(towers.UsageError, match='is not open'):
    session.train()
  with session:
    with pytest.raises(towers.UsageError, match='nothing to validate on'):
      session.validate()
    with pytest.raises(towers.UsageError, match='accumulates micro-batches'):
      session.run(program.train_op)
    with pytest.raises(towers.UsageError, match='no checkpoint in'):
      session.restore(tmp_path / 'none')
    for call, message in (
        (lambda: session.validate(session.program.train_examples),
         r'measures the validation split .*: write session.evaluate\(examples\)'),
        (session.save, r"'' is no path: write session.save\('checkpoints'\)"),
        (lambda: session.save(3), '3 is no path: write session.save'),
        (session.restore, r"'' is no path: write session.restore\('checkpoints'\)"),
        (lambda: towers.evaluate(small.model, 'a', [3.]), 'is no path: write towers.evaluate'),
        (lambda: towers.export(session, 'a', predict=len, checkpoint_dir='b'),
         r'takes a program, and got <towers.Session .*: write towers.export\(program'),
        (lambda: towers.export(program, 'a', predict='net', checkpoint_dir='b'),
         "predict is 'net': give a function"),
        (lambda: towers.export(program, 'a', checkpoint_dir='b'),
         'predict is None: give a function of parts of a batch, as predict=lambda images'),
        (lambda: session.predict([3.]), r'got None as its function, .*: write session.predict\('),
        (lambda: session.predict(len, [3.]), 'got a list of 1 as its function')):
      with pytest.raises(towers.UsageError, match=message):
        call()
    path = session.save(tmp_path / 'own')
    assert path == session.restore(tmp_path / 'own') == session.restore(pathlib.Path(path))
  with pytest.raises(towers.UsageError, match='is not open'):
    session.train()


@pytest.mark.nightly(but='float')
@pytest.mark.parametrize('rate', [0.05, lambda plan: tf.constant(0.05)], ids=['float', 'function'])
def test_an_optimizer_may_be_a_function_of_the_rate(rate):
  program = build(optimizer=lambda rate: tf.train.MomentumOptimizer(rate, 0.9), learning_rate=rate)
  same = build(optimizer=tf.train.MomentumOptimizer(0.05, 0.9))
  with program.session() as session, same.session() as other:
    assert [session.train() for _ in range(3)] == [other.train() for _ in range(3)]
    assert program.learning_rate == 0.05 or session.run(program.learning_rate) == np.float32(0.05)


def test_side_outputs_are_fetched_by_tower():
  @small.with_losses
  def with_side(losses):
    tf.identity(2 * losses, name='doubled')
    return losses + 1

  program = build(model=with_side, batch_size=9)
  with program.session() as session:
    values = session.run({'of 1': 'tower_1/doubled:0', 'loss': program.gradients.loss,
                          'of 0': program.graph.get_tensor_by_name('tower_0/doubled:0')})
    assert np.mean(np.concatenate([values['of 0'], values['of 1']])) == pytest.approx(
        2 * (values['loss'] - 1), abs=1e-5)
    assert session.train() == pytest.approx(values['loss'])


STALLS = '''
import time
import numpy as np
import towers
from towers.tensorflow_v1 import tf
def model(batch, is_training):
  return tf.square(batch[0] - tf.get_variable('w', []))
program = towers.Program(model, train=towers.from_arrays(np.zeros(8, np.float32)), batch_size=4,
                         num_towers=2, device='cpu', optimizer=tf.train.GradientDescentOptimizer(1))
sleeps = tf.py_func(lambda: time.sleep(60), [], [])
with program.session(stall_seconds=1) as session:
  session.train()
  time.sleep(3)
  session.train()
  print('waited for its user', flush=True)
  session.run(sleeps)
'''


def test_a_session_that_stalls_ends_but_not_while_its_user_thinks(tmp_path):
  (tmp_path / 'program.py').write_text(STALLS)
  ended = run_loaded(['program.py'], cwd=tmp_path, env=dict(os.environ, PYTHONPATH=ROOT))
  assert ended.returncode == 3 and ended.stdout == 'waited for its user\n'
  assert 'Nothing went forward for 1 s (stall_seconds)' in ended.stderr
