"""Training goes on over skipped examples: a step without any moves no weight, nothing is NaN."""

import math

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.process.run_error import RunError
from towers.tensorflow_v1 import tf


def examples_without(bad, num_examples=16):
  """Examples of which those with the numbers `bad` are marked."""
  examples = small.random_examples(num_examples)
  parse_batch = examples.parse_batch

  def parse(numbers, *arrays):
    is_bad = tf.reduce_any(tf.equal(numbers[:, tf.newaxis], tf.constant([bad], tf.int64)), 1)
    return parse_batch(numbers, *arrays), tf.logical_not(is_bad)

  return examples._replace(parse_batch=parse, is_gathered=False, marks_bad=True)


def of_directions(batch, is_training):
  """A model for which a row of zeros is 0 / 0."""
  features, labels = batch
  return small.model((features / tf.norm(features, axis=1, keepdims=True), labels), is_training)


@pytest.mark.nightly(but='{}')
@pytest.mark.parametrize('settings', [
    dict(), dict(accumulate=2), dict(mode='next'), dict(mode='shard', placement='replicated')],
    ids=str)
def test_a_step_without_examples_changes_nothing_and_is_named_once(settings, capsys):
  bad = [1, 2, 3, *range(8, 16)]  # Some of the first, and all of the second step of every epoch.
  settings = dict(dict(model=of_directions, num_towers=2, optimizer='sgd'), **settings)
  with small.Run(train=examples_without(bad), **settings) as run:
    first = run.train()
    assert np.isfinite(first) and run.counters() == [1, 5]
    before = run.weights()
    assert math.isnan(run.train()) and run.counters() == [2, 5]
    small.assert_same_weights(run.weights(), before, tolerance=0)
    assert run.opened.metrics()['loss'] == pytest.approx(first)
    third = run.train()
    assert third > 0 and run.counters() == [3, 10]
    assert math.isnan(run.train()) and run.counters() == [4, 10]
    assert run.opened.metrics()['loss'] == pytest.approx(third)
  assert capsys.readouterr().out.count('all examples of step 2 are damaged') == 1


@pytest.mark.parametrize('by', ['take_step', 'run'])
def test_a_refused_step_counts_the_examples_that_it_had(by):
  def not_finite_once(batch, is_training):
    losses, metrics = small.model(batch, is_training)
    step = tf.train.get_or_create_global_step()
    return losses * tf.where(tf.equal(step, 1), np.nan, 1.0), metrics

  with small.Run(train=examples_without([1, 2, 3, 9]), model=not_finite_once,
                 num_towers=2) as run:
    run.train()
    if by == 'run':
      with pytest.raises(RunError, match='Step 2 is not finite'):
        run.opened.run(run.program.train_op)
    else:
      assert run.opened.take_step().not_finite is not None and run.counters() == [1, 5]
      run.opened.skip()
    assert run.counters() == [2, 12]
    assert np.isfinite(run.train()) and run.counters() == [3, 17]


def test_the_loss_of_a_step_without_examples_is_told_to_nobody():
  seen = []
  program = towers.Program(of_directions, train=examples_without([*range(8, 16)]), batch_size=8,
                           shuffle=False, num_towers=2,
                           optimizer=tf.train.GradientDescentOptimizer(0.1))
  result = towers.train(program, epochs=2, quiet=True,
                        callbacks=[lambda step, loss: seen.append(loss)])
  for losses in (seen, result['first_losses'], [seen[0], result['train_loss']]):
    assert [math.isnan(loss) for loss in losses] == ([False, True] * 2)[:len(losses)]
  assert result['examples_seen'] == 16


def test_marks_stay_out_of_the_towers():
  with tf.Graph().as_default():
    examples = examples_without([0])
    plan = build_plan(num_examples=16, batch_size=8, num_towers=2)
    [first, _] = build_inputs(examples, plan=plan).next_batches()
    assert len(first.tensors) == 2 and first.may_be_empty and not first.is_static
