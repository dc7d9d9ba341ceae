"""Gradients cross between workers in half the bytes: the same bits for all, and no other rounding.
"""

import numpy as np
import pytest

from tensorflow_v1 import SUMS_16_BITS, tf
from tests.harness import small
from tests.harness.covering import cover
from tests.harness.small import DEPTHS, MODES, Run, assert_same_weights
from tests.reduce.test_rows import LARGE, SMALL, assert_same_rows_moved, make_model
from tests.reduce.test_workers import make_cluster, take_what_is_not_finite
from towers.base.usage_error import UsageError
from towers.placement.collectives import choose_wire
from towers.training.reporting.describe import describe_all_reduce

# A gradient is rounded where it is sent, and where shares are added up on the way.
TOLERANCES = dict(float16=5e-4, bfloat16=4e-3)
STEPS = 5
# Batches of 16 of 21 are uneven. 514 examples are no number of bfloat16.
CASES = cover(dict(
    shape=[(2, 1), (2, 2), (3, 1), (4, 2)], wire=sorted(TOLERANCES),
    placement=['host', 'balanced', 'replicated'], mode=MODES, depth=DEPTHS,
    size=[(1028, 514), (21, 16), (32, 16)], accumulate=[1, 2], num_rows=[LARGE, None, SMALL]),
    strength=2)


needs_16_bits = pytest.mark.skipif(not SUMS_16_BITS, reason='TensorFlow 1.14 sums no 16 bits')


@pytest.mark.nightly
@needs_16_bits
@pytest.mark.parametrize(', '.join(CASES[0]), [tuple(case.values()) for case in CASES], ids=str)
def test_workers_are_one_tower_but_for_16_bits_of_gradients(shape, wire, placement, mode, depth,
                                                            size, accumulate, num_rows):
  settings = dict(train=small.random_examples(size[0]), batch_size=size[1],
                  model=small.model if num_rows is None else make_model(num_rows),
                  validation=small.random_examples(12, 'validation', seed=1))
  tolerance = TOLERANCES[wire]
  with make_cluster(shape, mode=mode, depth=depth, placement=placement, accumulate=accumulate,
                    wire=wire, **settings) as cluster, Run(num_towers=1, **settings) as one:
    # Nothing is rounded but gradients, so the loss of the first step is not.
    assert cluster.train() == pytest.approx(one.train(), abs=2e-6)
    for _ in range(STEPS - 1):
      assert cluster.train() == pytest.approx(one.train(), abs=tolerance)
    for run in cluster.runs:
      assert run.counters() == one.counters()
    weights = [run.weights() for run in cluster.runs]
    for name, value in weights[0].items():
      assert all(other[name].tobytes() == value.tobytes() for other in weights)
    assert_same_weights(weights[0], one.weights(), tolerance)
    if num_rows == LARGE and size[0] < 1000:
      assert_same_rows_moved(cluster, one)
    means, num_examples = cluster.each(lambda run: run.validate())[-1]
    assert num_examples == 12 and means['loss'] == pytest.approx(
        one.validate()[0]['loss'], abs=tolerance)


@pytest.mark.nightly
@needs_16_bits
def test_indices_of_rows_and_votes_are_exact():
  # Of bfloat16 the numbers above 256 have gaps.
  settings = dict(model=make_model(100 * LARGE, spread=9000), train=small.random_examples(16),
                  validation=small.random_examples(8, 'validation'))
  with make_cluster((2, 1), wire='bfloat16', **settings) as cluster, Run(
      num_towers=1, **settings) as one:
    [slots] = cluster.runs[0].program.gradients.row_slots
    assert slots.most == 4 * 5 and not slots.is_whole  # Known, so that they are sent in two parts.
    for step in range(14):
      run = cluster.runs[step % 2]
      run.steps.agree('save', True)
      cluster.train()
      one.train()
      assert [run.steps.agree('save', False) for run in cluster.runs] == [True] * 2
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
    for _ in range(3):
      cluster.train()
    for run in cluster.runs:
      np.testing.assert_allclose(run.weights()['weight'], -3 * 60000.0, rtol=1e-3)


@pytest.mark.nightly
@needs_16_bits
def test_a_gradient_above_float16_changes_nothing_and_is_explained():
  settings = dict(model=constant_gradient(1e6), train=small.random_examples(16), optimizer='sgd')
  with make_cluster((2, 1), wire='float16', **settings) as cluster:
    for retried in cluster.each(take_what_is_not_finite):
      assert 'the mean gradient of weight is not' in retried.describe()
      assert 'wire=bfloat16' in retried.describe()
    for run in cluster.runs:
      assert run.counters() == [0, 0] and not run.weights()['weight'].any()
  with make_cluster((2, 1), wire='bfloat16', **settings) as cluster:
    cluster.train()
    assert cluster.runs[0].weights()['weight'] == pytest.approx(-1e5, rel=4e-3)


@needs_16_bits
def test_an_overflow_on_the_way_lowers_the_loss_scale_in_all():
  with make_cluster((2, 1), precision='mixed', wire='float16',
                    train=small.random_examples(16)) as cluster:
    for run in cluster.runs:
      # The towers' own gradients are far from an overflow.
      run.program.gradients.loss_scale.variable.load(2.0 ** 30, run.session)
    cluster.train()
    for run in cluster.runs:
      assert run.session.run(run.program.gradients.loss_scale.variable) == 2.0 ** 29
      assert run.steps.step == 1


@pytest.mark.nightly
@needs_16_bits
def test_half_is_sent_and_told():
  def send(wire):
    run = Run(num_workers=2, num_towers=2, wire=wire)
    run.session.close()
    all_reduce = run.program.gradients.all_reduce
    assert all_reduce.num_gradients == 4
    return all_reduce.sent_bytes, describe_all_reduce(all_reduce)

  weights = 5 * 4 + 4 + 4 * 3 + 3
  assert send('bfloat16') == (2 * weights, (
      'all-reduce: 4 gradients of 78 bytes, fused into 1 all-reduce of 78 bytes on average (ring, '
      'sent as bfloat16); 2 messages in a row, each worker sends 78 bytes'))
  # With the numbers that all workers share.
  assert send('float32')[0] == 4 * weights + 24


@needs_16_bits
def test_one_worker_sends_nothing():
  ops = [[(op.name, op.type) for op in Run(placement='replicated', wire=wire).graph.get_operations()
          ] for wire in ('float32', 'float16')]
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
      Run(wire='float16')
