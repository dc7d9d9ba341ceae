"""The plan agrees with itself: every count is the number of examples that a plain enumeration deals out."""

import hypothesis
import hypothesis.strategies as st
import pytest

from towers.plan import build_plan, dealt
from usage_error import UsageError

sizes = st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(1, 8), st.booleans()).filter(
    lambda size: size[2] <= min(size[0], size[1]) and (not size[3] or size[1] <= size[0]))


@hypothesis.given(sizes)
def test_steps_cover_an_epoch_once(size):
  num_examples, batch_size, num_towers, drop_remainder = size
  plan = build_plan(num_examples=num_examples, batch_size=batch_size, num_towers=num_towers,
                    drop_remainder=drop_remainder)
  steps = [list(range(num_examples))[begin:begin + batch_size] for begin in range(0, num_examples, batch_size)]
  if drop_remainder:
    steps = [step for step in steps if len(step) == batch_size]
  assert plan.steps_per_epoch == len(steps)
  assert plan.examples_per_epoch == sum(map(len, steps))
  assert plan.is_even == (len(steps[-1]) == batch_size)
  assert plan.may_leave_a_tower_empty == (len(steps[-1]) < num_towers)
  for step in range(2 * len(steps) + 1):
    assert plan.size_at(step) == len(steps[step % len(steps)])
    assert plan.examples_before(step) == sum(len(steps[earlier % len(steps)]) for earlier in range(step))
    assert sum(plan.run_sizes(plan.size_at(step))) == plan.size_at(step)
    assert max(plan.run_sizes(plan.size_at(step))) - min(plan.run_sizes(plan.size_at(step))) <= 1


@hypothesis.given(st.integers(0, 100), st.integers(1, 9))
def test_dealing_in_turn_gives_each_example_to_one_tower(count, num_towers):
  for tower in range(num_towers):
    assert dealt(count, tower, num_towers) == len(range(tower, count, num_towers))


def test_eight_over_three():
  assert build_plan(num_examples=8, batch_size=8, num_towers=3).run_sizes(8) == [3, 3, 2]


@pytest.mark.parametrize('settings, numbers', [
    (dict(num_examples=10, batch_size=2, num_towers=3), ['2 examples', '3 towers']),
    (dict(num_examples=2, batch_size=8, num_towers=3), ['2 examples', '3 towers']),
    (dict(num_examples=0, batch_size=8, num_towers=1), ['0 examples', '1 tower']),
    (dict(num_examples=5, batch_size=8, num_towers=2, drop_remainder=True), ['5 examples', 'batch of 8']),
    (dict(num_examples=5, batch_size=8, num_towers=0), ['0', '1 tower']),
])
def test_impossible_sizes_are_named(settings, numbers):
  with pytest.raises(UsageError) as error:
    build_plan(**settings)
  for number in numbers:
    assert number in str(error.value)
