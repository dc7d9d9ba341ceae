"""The rate depends on the examples seen alone, and follows the formulas."""

import math

import pytest

from towers.input.plan import build_plan
from towers.settings.config import Config
from towers.tensorflow_v1 import tf
from towers.update.learning_rate import build_learning_rate

PER_EPOCH = 100


def rates(epochs, **settings):
  """Returns the rate at each of `epochs` of a run of 10."""
  with tf.Graph().as_default(), tf.Session() as session:
    seen = tf.Variable(tf.zeros([], tf.int64), use_resource=True)
    plan = build_plan(num_examples=PER_EPOCH, batch_size=10, num_towers=1)
    config = Config(learning_rate=0.5, epochs=10.0, **settings)
    rate = build_learning_rate(config, plan, seen)
    if isinstance(rate, float):
      return [rate for _ in epochs]
    assert rate.dtype == tf.float32
    values = []
    for epoch in epochs:
      session.run(seen.assign(round(epoch * PER_EPOCH)))
      values.append(session.run(rate))
    return values


@pytest.mark.parametrize('epochs, settings, expected', [
    ([0, 5], dict(schedule='constant'), [0.5, 0.5]),
    ([0, 2.99, 3, 5.99, 6, 9], dict(schedule='piecewise', decay_epochs=(3.0, 6.0)),
     [0.5, 0.5, 0.05, 0.05, 0.005, 0.005]),
    ([0, 1, 2, 4], dict(schedule='exponential', decay_epochs=(2.0,), decay_rate=0.25),
     [0.5, 0.25, 0.125, 0.03125]),
    # It ends at zero, and stays there.
    ([0, 2.5, 5, 10, 11], dict(schedule='cosine'),
     [0.5, 0.25 * (1 + math.cos(math.pi / 4)), 0.25, 0, 0]),
    # No schedule falls below the minimum.
    ([0, 5, 10, 12], dict(schedule='cosine', min_rate=0.1), [0.5, 0.3, 0.1, 0.1]),
    ([0, 3, 9], dict(schedule='piecewise', decay_epochs=(3.0, 6.0), min_rate=0.02),
     [0.5, 0.05, 0.02]),
    ([0.5, 9], dict(schedule='exponential', decay_epochs=(1.0,), min_rate=0.02, warmup_epochs=1),
     [0.25 * 10 ** -0.5, 0.02]),
    # The warm-up rises from zero in a straight line.
    ([0, 0.5, 1, 2, 3], dict(schedule='constant', warmup_epochs=2.0), [0, 0.125, 0.25, 0.5, 0.5]),
    ([5], dict(schedule='cosine', warmup_epochs=2.0), [0.25])])
def test_the_rate_is_the_formula_of_the_epoch(epochs, settings, expected):
  assert rates(epochs, **settings) == pytest.approx(expected, abs=1e-7)


def test_counts_beyond_what_float32_can_hold():
  with tf.Graph().as_default(), tf.Session() as session:
    seen = tf.constant(2 ** 24 + 1, tf.int64)
    seen.read_value = lambda: seen
    config = Config(learning_rate=1.0, schedule='piecewise', decay_epochs=(2.0 ** 24 + 1,))
    rate = build_learning_rate(config, build_plan(num_examples=1, batch_size=1, num_towers=1), seen)
    assert session.run(rate) == pytest.approx(0.1)
