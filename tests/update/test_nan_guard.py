"""The guard: a step that is not finite changes nothing, and the report names its source."""

import functools
import itertools
import time

import numpy as np
import pytest

import towers
from benchmarks.harness.ablated import PARTS
from tests.harness import faults, small
from towers.placement.replicas import REPLICAS
from towers.reduce.gradients import ReducedGradients
from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import BATCH_MOMENTS, batch_norm
from towers.update import apply
from towers.update.nan_guard import build_is_finite

TRAIN = small.random_examples(16)
# Batches of 8 on 3 towers are 3, 3 and 2: rows 14 and 15 are tower 2's in the second step.
ROW = 14


def normed(batch, is_training):
  features, labels = batch
  x = tf.nn.relu(batch_norm(small.dense(features, 6, 'hidden'), is_training, name='norm'))
  return small.classify(x, labels)


def looked_up(batch, is_training):
  """Sparse gradients: one row of the table for each label."""
  del is_training
  features, labels = batch
  table = tf.get_variable('table', [small.NUM_CLASSES, small.NUM_FEATURES])
  return tf.reduce_sum(tf.square(tf.gather(table, labels) - features), 1)


def leave_guard_out(monkeypatch):
  for name in ('gates_on_device', 'build_is_finite', 'run_if'):
    monkeypatch.setattr(apply, name, getattr(apply, name))  # To be there again after the test.
  PARTS['no guard']()


def everything(run):
  """Returns all variables by name: weights, slots, averages, counters, sums, copies."""
  with run.graph.as_default():
    variables = tf.global_variables() + tf.local_variables() + tf.get_collection(REPLICAS)
  return dict(zip([variable.op.name for variable in variables], run.session.run(variables)))


assert_unchanged = functools.partial(small.assert_same_weights, tolerance=0)


def refuse_step(run):
  """Takes a step that is not finite and changes nothing; returns all variables."""
  before = everything(run)
  finding = run.opened.take_step().not_finite
  assert not finding.is_done and 'tower' in str(finding)
  assert_unchanged(everything(run), before)
  return before


def skip_refused_step(run):
  """Takes a step, one that is refused, and one more; returns variables after the first and last."""
  run.train()
  before = refuse_step(run)
  run.opened.skip()
  # The input goes on with the step after it.
  run.train()
  after = everything(run)
  assert run.counters()[0] == 3 and all(np.isfinite(value).all() for value in after.values())
  return before, after


CASES = {
    'momentum': dict(),
    'adam, batch norm': dict(optimizer='adam', model=normed, average_weights=0.9),
    'synchronous batch norm': dict(model=normed, batch_norm='sync', depth=0),
    'mean batch norm': dict(model=normed, batch_norm='mean', mode='next', depth=2),
    'accumulated': dict(accumulate=2, model=normed),
    'sparse': dict(model=looked_up, optimizer='adam', mode='shard'),
    'sparse, accumulated, clipped': dict(
        model=looked_up, accumulate=2, clip_norm=0.1, optimizer='adam'),
    'clipped, decayed': dict(
        clip_norm=0.1, weight_decay=0.01, placement='balanced', average_weights=0.9),
    'beside a validation tower': dict(
        model=normed, validation_tower=True, num_towers=4, validation=TRAIN),
    'replicated': dict(model=normed, placement='replicated', optimizer='adam')}


@pytest.mark.parametrize('case, value', small.nightly_but(
    [('sparse, accumulated, clipped', np.inf), ('replicated', np.nan)],
    zip(CASES, itertools.cycle([np.inf, np.nan]))))
def test_a_step_that_is_not_finite_changes_nothing_and_is_skipped(case, value):
  settings = dict(dict(num_towers=3, train=faults.poison(TRAIN, ROW, value)), **CASES[case])
  with small.Run(**settings) as run:
    before, after = skip_refused_step(run)
    assert run.counters() == [3, 24]
    changed = [name for name, value in after.items() if not np.array_equal(value, before[name])]
    assert set(run.weights()) <= set(changed)
    run.opened.check_replicas()


def slowly_normed(batch, is_training):
  """The moments come last, long after the gradients."""

  def wait(moments):
    time.sleep(0.05)
    return moments

  losses = normed(batch, is_training)
  for moments in tf.get_collection(BATCH_MOMENTS):
    late = tf.py_func(wait, [moments.op.inputs[0]], tf.float32)
    late.set_shape(moments.shape)
    moments.op._update_input(0, late)
  return losses


def test_the_sums_of_a_skipped_step_are_cleared_too():
  train = faults.poison(TRAIN, ROW)
  with small.Run(num_towers=1, accumulate=2, model=slowly_normed, train=train) as run:
    run.train()
    refuse_step(run)


def test_the_tower_and_the_first_variable_are_named():
  with small.Run(num_towers=3, train=faults.poison(TRAIN, ROW), model=lambda batch, is_training: {
      'steady': tf.ones_like(batch[0][:, 0]), 'other': small.model(batch, is_training)[0]}) as run:
    run.train()
    finding = run.opened.take_step().not_finite
    assert str(finding) == (
        'in tower 2 component 0 of the batch holds NaN or Inf and the loss other is nan and the '
        'gradient of hidden/weights is not finite (the first of 4 variables out of 4)')
    assert finding.advice == 'Leave such values out of the data'
  with small.Run(num_towers=3, model=small.with_losses(lambda losses: towers.Weighted(
      losses / tf.zeros_like(losses), tf.zeros_like(losses)))) as run:
    assert run.opened.take_step().not_finite.advice.endswith(
        'clip the gradients; where a weight is 0 its value must be finite too: replace what it is '
        'computed from, by tf.where')
  with small.Run(num_towers=3, train=faults.poison(TRAIN, ROW, 0.0), model=faults.root_of_zero,
                 accumulate=2) as run:
    run.train()
    finding = run.opened.take_step().not_finite
    # The step's second micro-batch has rows 12 to 15: 12 and 13 on tower 0.
    assert str(finding) == ('in tower 1 the gradient of logits/weights is not finite '
                                  '(the first of 1 variables out of 4)')
    assert finding.advice == 'Lower the learning rate or clip the gradients'
    assert finding.found.losses.shape == (2, 3, 1) and np.isfinite(finding.found.losses).all()
    assert finding.found.finite[0].all() and not finding.found.finite[1].all()


def test_what_fails_only_once_is_done_when_it_is_tried_again():
  model = small.with_losses(functools.partial(faults.fails_once, calls=[], at=2))
  with small.Run(num_towers=1) as run:
    expected = [run.train() for _ in range(4)]
  with small.Run(num_towers=1, model=model) as run:
    losses = [run.train()]
    result = run.opened.take_step()
    assert result.not_finite.is_done and run.counters() == [2, 13]
    losses += [result] + [run.train() for _ in range(2)]
  assert losses == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize('settings', [
    dict(optimizer='adam', model=normed),
    pytest.param(dict(accumulate=2), marks=pytest.mark.nightly)])
def test_with_and_without_a_guard_is_the_same_to_the_bit(settings, monkeypatch):
  results = []
  for guard in (True, False):
    if not guard:
      leave_guard_out(monkeypatch)
    with small.Run(num_towers=3, **settings) as run:
      assert any(op.name.startswith('apply/guard/') for op in run.graph.get_operations()) == guard
      losses = [run.train() for _ in range(5)]
      results.append((losses, everything(run)))
  assert results[0][0] == results[1][0]
  assert_unchanged(results[0][1], results[1][1])


def test_each_average_is_checked_once_on_its_own_device():
  with small.Run(num_towers=3, placement='balanced') as run:
    checks = [op for op in run.graph.get_operations() if op.type == 'Sum' and op.name.startswith(
        'apply/guard/')]
    found = {}
    for gradient, variable in run.program.gradients.gradients:
      # Fused gradients are checked as one.
      checked = gradient.op.inputs[0] if gradient.op.type == 'SplitV' else gradient
      [found[checked.name]] = [check for check in checks if check.inputs[0] is checked]
      assert found[checked.name].device == variable.device
    assert set(checks) == set(found.values())
    assert len(found) < len(run.program.gradients.gradients)
    # Each device adds up its own, and sends one number to the host.
    *of_devices, total = [op for op in run.graph.get_operations() if op.type == 'AddN'
                          and op.name.startswith('apply/guard/')]
    numbers = set(total.inputs)
    assert total.device == '/device:CPU:0' and len({number.device for number in numbers}) == 3
    for op in of_devices:
      assert op.outputs[0] in numbers and {number.device for number in op.inputs} == {op.device}
      numbers = numbers - {op.outputs[0]} | set(op.inputs)
    finite = {check.outputs[0] for check in checks}
    assert numbers == {run.program.gradients.loss} | finite


def test_of_what_was_split_only_the_gradients_are_checked():
  with tf.Graph().as_default(), tf.Session() as session:
    parts = tf.split(tf.constant([1.0, np.nan]), [1, 1])

    def is_finite(gradients):
      return session.run(build_is_finite(ReducedGradients(
          [], 1, tf.constant(0.0), [(gradient, None) for gradient in gradients], [], [])))

    assert is_finite(parts[:1]) and not is_finite(parts[1:]) and not is_finite(parts)
