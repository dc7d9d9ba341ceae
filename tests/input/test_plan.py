"""The plan agrees with itself: every count is that of examples which an enumeration deals out."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from towers.base.usage_error import UsageError
from towers.input.plan import Shard, build_plan

# Examples, examples of a run, towers, the last batch, runs of a step.
sizes = st.tuples(
    st.integers(1, 60), st.integers(1, 20), st.integers(1, 8),
    st.sampled_from(['keep', 'pad', 'drop']), st.integers(1, 4)).filter(
        lambda size: size[2] <= min(size[0], size[1]) and
        (size[3] != 'drop' or size[1] * size[4] <= size[0]))


def cut(numbers, size):
  return [numbers[begin:begin + size] for begin in range(0, len(numbers), size)]


@hypothesis.given(sizes)
def test_steps_cover_an_epoch_once(size):
  num_examples, micro_batch_size, num_towers, last_batch, accumulate = size
  batch_size = micro_batch_size * accumulate
  plan = build_plan(num_examples=num_examples, batch_size=batch_size, num_towers=num_towers,
                    last_batch=last_batch, accumulate=accumulate)
  steps = cut(list(range(num_examples)), batch_size)
  if last_batch == 'drop':
    steps = [step for step in steps if len(step) == batch_size]
  runs = [cut(step, micro_batch_size) for step in steps]
  last_micro_batch = runs[-1][-1]
  assert plan.micro_batch_size == micro_batch_size
  assert plan.steps_per_epoch == len(steps)
  assert plan.examples_per_epoch == sum(map(len, steps))
  assert plan.is_even == (len(last_micro_batch) == micro_batch_size)
  assert plan.may_leave_a_tower_empty == (len(last_micro_batch) < num_towers)
  for step in range(2 * len(steps) + 1):
    size_at = len(steps[step % len(steps)])
    assert plan.size_at(step) == size_at
    assert plan.num_micro_batches(step) == len(runs[step % len(steps)])
    assert plan.examples_before(step) == sum(
        len(steps[earlier % len(steps)]) for earlier in range(step))
    assert sum(plan.shares(size_at)) == size_at
    assert max(plan.shares(size_at)) - min(plan.shares(size_at)) <= 1


@hypothesis.given(st.integers(0, 100), st.integers(1, 9), st.integers(0, 9))
def test_each_place_of_a_batch_is_dealt_to_one_shard(count, num_shards, more):
  batch_size = num_shards + more
  for position in range(num_shards):
    shard = Shard(position, num_shards, batch_size)
    mine = [index for index in range(count) if index % batch_size % num_shards == position]
    assert np.flatnonzero(shard.number_of(np.arange(count)) == position).tolist() == mine
    assert shard.find(np.arange(len(mine))).tolist() == mine


@hypothesis.given(st.integers(0, 40), st.integers(1, 4), st.integers(1, 4))
def test_workers_shares_add_up(size, num_workers, num_towers):
  plans = [build_plan(num_examples=40, batch_size=40, num_towers=num_towers,
                      num_workers=num_workers, rank=rank) for rank in range(num_workers)]
  shares = [plan.shares(size) for plan in plans]
  assert [sum(of_worker) for of_worker in shares] == [
      len(range(rank, size, num_workers)) for rank in range(num_workers)]
  assert all(max(of_worker) - min(of_worker) <= 1 for of_worker in shares)


def test_eight_over_three():
  assert build_plan(num_examples=8, batch_size=8, num_towers=3).shares(8) == [3, 3, 2]


@pytest.mark.parametrize('settings, numbers', [
    (dict(num_examples=10, batch_size=2, num_towers=3), ['2 examples', '3 towers']),
    (dict(num_examples=0, batch_size=8, num_towers=1), ['0 examples', 'at least 1']),
    (dict(num_examples=5, batch_size=8, num_towers=2, last_batch='drop'), ['5 examples',
        'batch of 8']),
    (dict(num_examples=5, batch_size=8, num_towers=0), ['0', '1 tower']),
    (dict(num_examples=9, batch_size=8, num_towers=1, num_workers=2, rank=2),
     ['rank is 2', 'are 0 to 1']),
    (dict(num_examples=9, batch_size=8, num_towers=1, last_batch='cut'),
     ['cut', 'pad, drop, carry']),
    (dict(num_examples=50, batch_size=8, num_towers=2, num_workers=2, accumulate=4),
     ['2 examples', '4 towers of 2 workers', 'at least 16'])])
def test_impossible_sizes_are_named(settings, numbers):
  with pytest.raises(UsageError) as error:
    build_plan(**settings)
  for number in numbers:
    assert number in str(error.value)
