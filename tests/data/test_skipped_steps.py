"""Training goes on over skipped examples: a step without any moves no weight, nothing is NaN."""

import numpy as np
import pytest

from tests.harness import small
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
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
  bad = list(range(8, 16))  # The second step of every epoch.
  settings = dict(dict(model=of_directions, num_towers=2, optimizer='sgd'), **settings)
  with small.Run(train=examples_without(bad), **settings) as run:
    assert np.isfinite(run.train()) and run.counters() == [1, 8]
    before = run.weights()
    assert run.train() == 0 and run.counters() == [2, 8]
    small.assert_same_weights(run.weights(), before, tolerance=0)
    assert run.train() > 0 and run.counters() == [3, 16]
    assert run.train() == 0 and run.counters() == [4, 16]
  assert capsys.readouterr().out.count('all examples of step 2 are damaged') == 1


def test_marks_stay_out_of_the_towers():
  with tf.Graph().as_default():
    examples = examples_without([0])
    plan = build_plan(num_examples=16, batch_size=8, num_towers=2)
    [first, _] = build_inputs(examples, plan=plan).next_batches()
    assert len(first.tensors) == 2 and first.may_be_empty and not first.is_static
