"""Draws belong to the example: the same in every batch, others by epoch and seed, and uniform."""

import numpy as np

from towers.data.example_draws import draw
from towers.tensorflow_v1 import tf

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(values):
  """SplitMix64's finalizer on numpy's unsigned ints, which wrap around."""
  values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return values ^ (values >> np.uint64(31))


def by_numpy(numbers, epoch, seed, count):
  with np.errstate(over='ignore'):
    state = mix(
        mix(np.array([seed], np.uint64) + np.uint64(epoch) * GOLDEN) + np.array(numbers, np.uint64))
    mixed = mix(state[:, np.newaxis] + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)
  return (mixed >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def by_tensorflow(cases, count):
  with tf.Graph().as_default(), tf.Session() as session:
    return session.run([
        draw(tf.constant(list(numbers), tf.int64), epoch=tf.constant(epoch, tf.int64), seed=seed,
             count=count) for numbers, epoch, seed in cases
    ])


def test_draws_are_splitmix64():
  cases = [([0, 1, 2, 10**12], epoch, seed)
           for epoch, seed in ((0, 0), (1, 0), (0, 1), (10**9, 2**63 + 5))]
  for values, case in zip(by_tensorflow(cases, 7), cases):
    np.testing.assert_array_equal(values, by_numpy(*case, count=7))
    assert values.dtype == np.float32 and values.min() >= 0 and values.max() < 1


def test_draws_are_uniform_and_differ_between_epochs_seeds_and_neighbours():
  first, *others = by_tensorflow([(range(20000), 0, 0), (range(20000), 1, 0), (range(20000), 0, 1)],
                                 4)
  assert abs(first.mean() - 0.5) < 0.005 and abs(first.std() - 12**-0.5) < 0.005
  counts = np.histogram(first, bins=16, range=(0, 1))[0]
  assert counts.min() > 0.95 * first.size / 16 and counts.max() < 1.05 * first.size / 16
  for other in others + [np.roll(first, 1, 0), np.roll(first, 1, 1)]:
    assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.02
