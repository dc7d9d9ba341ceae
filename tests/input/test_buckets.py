"""Buckets: every example once an epoch, similar lengths together, the same steps in any shape."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import towers
from tests.harness import small
from tests.harness.taking import take
from towers.base.usage_error import UsageError
from towers.data.examples import Buckets
from towers.input.plan import build_plan
from towers.input.resume_point import Order, explain_order
from towers.tensorflow_v1 import tf


def epoch_of(plan, epoch, *, seed, buckets):
  steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
  return [plan.indices_at(step, seed=seed, buckets=buckets) for step in steps]


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.integers(5, 130), st.integers(1, 30), st.integers(1, 9),
                  st.sampled_from(['keep', 'pad', 'drop']), st.booleans(), st.integers(0, 5))
def test_a_window_keeps_its_examples_and_sorts_them_into_batches(
    num_examples, batch_size, window, last_batch, shuffle, epoch):
  batch_size = min(batch_size, num_examples)
  lengths = np.random.RandomState(num_examples).randint(20, size=num_examples)
  seed = 7 if shuffle else None
  plan = build_plan(num_examples=num_examples, batch_size=batch_size, num_towers=1,
                    last_batch=last_batch)
  plain = epoch_of(plan, epoch, seed=seed, buckets=None)
  sorted_ = epoch_of(plan, epoch, seed=seed, buckets=Buckets(lengths, window))
  assert list(map(len, sorted_)) == list(map(len, plain))
  for begin in range(0, len(plain), window):
    batches = sorted_[begin:begin + window]
    assert sorted(np.concatenate(batches)) == sorted(np.concatenate(plain[begin:begin + window]))
    # No batch has lengths inside of another's.
    ranges = sorted((lengths[batch].min(), lengths[batch].max()) for batch in batches)
    assert all(before[1] <= after[0] for before, after in zip(ranges, ranges[1:]))


def test_batches_come_in_an_order_of_their_own_and_the_small_one_is_of_any_length():
  lengths = np.arange(1009)
  plan = build_plan(num_examples=1009, batch_size=10, num_towers=1)
  buckets = Buckets(lengths, 1000)  # One window: batches are sorted in tens.
  epochs = [np.split(order(np.arange(1009), epoch), np.arange(10, 1009, 10))
            for order in [plan.order(seed=seed, buckets=buckets) for seed in range(4)]
            for epoch in range(50)]
  firsts = np.array([[batch[0] for batch in batches[:-1]] for batches in epochs])
  assert len({tuple(row) for row in firsts.tolist()}) == 200
  # Uniform: each mean is within 5 of its standard deviations.
  assert abs(firsts.mean(0) - 500).max() < 5 * 1009 / np.sqrt(12 * 200)
  lasts = [batches[-1].min() for batches in epochs]
  assert min(lasts) < 100 and max(lasts) > 900 and len(set(lasts)) > 60
  for batches in epochs[::50]:
    assert all((np.diff(batch) == 1).all() for batch in batches)


def count_padding(examples, num_towers=2):
  """Returns how many tokens an epoch has, padding included."""
  steps = take(examples, num_towers=num_towers, num_steps=-(-examples.num_examples // 8),
               shuffle=True, read=lambda tensors: tf.size(tensors[0]))
  return sum(size for by_tower in steps for size, _ in by_tower)


def test_buckets_save_padding():
  lengths = (np.random.RandomState(0).rand(120) ** 3 * 7).astype(np.int64)
  examples = towers.Examples(
      120, parse_example=lambda index: (tf.zeros(tf.constant(lengths)[index][None]), index))
  plain, by_length = [count_padding(towers.padded(examples, **settings)) for settings in (
      {}, dict(bucket_by=lengths, bucket_window=15))]
  real = lengths.sum()
  assert real <= by_length < real * 1.15 and plain > real * 1.8


@pytest.mark.parametrize('settings, message', [
    (dict(bucket_by=[1] * 7), r'bucket_by is of shape \(7,\) .*for each of the 8 examples'),
    (dict(bucket_by=['a'] * 8), 'bucket_by is .*give a finite number for each'),
    (dict(bucket_by=[np.nan] * 8), 'bucket_by is .*give a finite number for each'),
    (dict(bucket_by='bytes'), "bucket_by is 'bytes': give the length of each example"),
    (dict(bucket_by='length'), "bucket_by is 'length'"),
    (dict(bucket_by=range(8), bucket_window=0), 'bucket_window is 0: give at least 1'),
    (dict(bucket_by=range(8), bucket_window=2.5), 'bucket_window is 2.5'),
    (dict(bucket_window=4), 'bucket_window is 4, but bucket_by is not given'),
    (dict(bucket_by=range(8), pad_to=9), 'bucket_by saves nothing where pad_to=9')])
def test_buckets_that_cannot_be_are_refused(settings, message):
  with pytest.raises(UsageError, match='train: ' + message):
    towers.padded(small.id_examples(8), **settings)


def test_a_data_set_in_order_has_no_buckets():
  with pytest.raises(UsageError, match='can be read in any order.*from_tfrecords'):
    towers.padded(small.element_examples(8), bucket_by=range(8))


def test_checkpoints_record_the_windows():
  def explain(saved, order, step=1):
    plan = build_plan(num_examples=20, batch_size=4, num_towers=1)
    return explain_order('path', plan=plan.resumed_at(plan.point_at(step)), order=order,
                         saved=saved)

  order = Order(3, window=8, lengths=77)
  for same in (order, Order(None, window=8, lengths=77), Order(3), Order(None), Order(3, first=5)):
    assert Order.from_array(same.to_array()) == same and not explain(same, same)
    assert not explain(same, same._replace(first=5)) and not explain(same._replace(first=5), same)
  assert Order(3).to_array().shape == (4,)
  for other in (Order(3), order._replace(window=12), order._replace(lengths=1), Order(None),
                order._replace(first=6)):
    for saved, now in ((other, order._replace(first=5)), (order._replace(first=5), other)):
      assert 'takes some examples twice' in explain(saved, now) and not explain(saved, now, step=5)
  assert 'shuffled with seed=3, in windows of 8 examples by length' in explain(Order(3), order)
  assert 'twice' in explain(None, Order(None, window=8)) and not explain(None, Order(None))
