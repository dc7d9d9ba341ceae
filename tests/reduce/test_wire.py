"""Gradients cross between workers in half the bytes: what stays exact, and what overflows.

That W workers are one tower but for this rounding, `test_workers_equal_one` shows.
"""

import numpy as np
import pytest

from tests.harness import small
from tests.reduce.test_rows import LARGE, assert_same_rows_moved, make_model
from tests.reduce.test_workers import make_cluster, take_what_is_not_finite
from towers.base.usage_error import UsageError
from towers.placement.collectives import choose_wire
from towers.tensorflow_v1 import tf
from towers.tensorflow_v1.collectives import SUMS_16_BITS
from towers.training.reporting.describe import describe_all_reduce

needs_16_bits = pytest.mark.skipif(not SUMS_16_BITS, reason='TensorFlow 1.14 sums no 16 bits')


@pytest.mark.nightly
@needs_16_bits
def test_indices_of_rows_and_votes_are_exact():
  # Of bfloat16 the numbers above 256 have gaps.
  settings = dict(model=make_model(100 * LARGE, spread=9000), train=small.random_examples(16),
                  validation=small.random_examples(8, 'validation'))
  with make_cluster((2, 1), wire='bfloat16', **settings) as cluster, small.Run(
      num_towers=1, **settings) as one:
    [slots] = cluster.runs[0].program.gradients.row_slots
    assert slots.most == 4 * 5 and not slots.is_whole  # Known, so that they are sent in two parts.
    assert '(ring, sent as bfloat16)' in describe_all_reduce(
        cluster.runs[0].program.gradients.all_reduce)
    for step in range(14):
      run = cluster.runs[step % 2]
      run.opened.agree('save', True)
      cluster.train()
      one.train()
      assert [run.opened.agree('save', False) for run in cluster.runs] == [True] * 2
    assert_same_rows_moved(cluster, one)


def constant_gradient(gradient):
  def model(batch, is_training):
    weight = tf.get_variable('weight', [3], initializer=tf.zeros_initializer())
    return (1.0 + 0.0 * batch[0][:, 0]) * tf.reduce_sum(weight) * gradient, {}

  return model


@pytest.mark.nightly(but='16')
@needs_16_bits
@pytest.mark.parametrize('num_examples', [16, 13])
def test_a_mean_that_float16_holds_does_not_overflow_on_the_way(num_examples):
  settings = dict(model=constant_gradient(60000.0), learning_rate=1.0, optimizer='sgd',
                  train=small.random_examples(num_examples),
                  validation=small.random_examples(8, 'validation'))
  with make_cluster((2, 2), wire='float16', **settings) as cluster:
    is_even = isinstance(cluster.runs[0].program.gradients.num_examples, int)
    assert is_even == (num_examples == 16)
    cluster.train(3)
    for run in cluster.runs:
      np.testing.assert_allclose(run.weights()['weight'], -3 * 60000.0, rtol=1e-3)


@pytest.mark.nightly
@needs_16_bits
def test_a_gradient_above_float16_changes_nothing_and_is_explained():
  settings = dict(model=constant_gradient(1e6), train=small.random_examples(16), optimizer='sgd')
  with make_cluster((2, 1), wire='float16', **settings) as cluster:
    for retried in cluster.each(take_what_is_not_finite):
      assert 'the mean gradient of weight is not' in str(retried)
      assert 'wire=bfloat16' in str(retried)
    for run in cluster.runs:
      assert run.counters() == [0, 0] and not run.weights()['weight'].any()
  with make_cluster((2, 1), wire='bfloat16', **settings) as cluster:
    cluster.train()
    assert cluster.runs[0].weights()['weight'] == pytest.approx(-1e5, rel=4e-3)


@needs_16_bits
def test_one_worker_sends_nothing():
  runs = [small.Run(placement='replicated', wire=wire) for wire in ('float32', 'float16')]
  ops = [[(op.name, op.type) for op in run.graph.get_operations()] for run in runs]
  assert ops[0] == ops[1]


def test_what_cannot_be_sent_is_refused():
  with pytest.raises(UsageError, match="wire=int8: choose one of float32, float16, bfloat16"):
    choose_wire('int8', num_workers=2)
  assert choose_wire('float32', num_workers=2) is None
  if SUMS_16_BITS:
    assert choose_wire('bfloat16', num_workers=2) == tf.bfloat16
    assert choose_wire('bfloat16', num_workers=1) is None
  else:
    with pytest.raises(UsageError, match='wire=float16.*1.14.*use wire=float32, or TensorFlow'):
      small.Run(wire='float16')
