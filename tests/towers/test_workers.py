"""W workers of N towers are one tower on the whole batch, and all workers are the same to the bit."""

import itertools

import pytest

from tests.towers import small
from tests.towers.small import DEPTHS, MODES, PLACEMENTS, Run, assert_same_weights
from tests.towers.team import Team

SHAPES = [(1, 4), (2, 2), (4, 1), (3, 1)]
# Of 13 examples in batches of 8 the last batch is of 5; of 16 none is smaller; batches of 7 are never shared evenly.
SIZES = [(13, 8), (16, 8), (23, 7)]
STEPS = 7


def pairwise(*axes):
  """Returns some combinations in which every two values of different axes meet."""
  wanted = {((i, a), (j, b)) for i, j in itertools.combinations(range(len(axes)), 2) for a in axes[i] for b in axes[j]}
  cases = []
  for case in sorted(itertools.product(*axes), key=str):
    met = set(itertools.combinations(list(enumerate(case)), 2)) & wanted
    if len(met) >= len(axes) - 1:
      cases.append(case)
      wanted -= met
  for case in itertools.product(*axes):
    met = set(itertools.combinations(list(enumerate(case)), 2)) & wanted
    if met:
      cases.append(case)
      wanted -= met
  return cases


def make_team(shape, **settings):
  num_workers, num_towers = shape
  if num_workers == 1:
    pytest.skip('one worker has no team')
  return Team(num_workers=num_workers, num_towers=num_towers, **settings)


def assert_one_tower(team, one, *, steps=STEPS, tolerance=2e-6):
  for _ in range(steps):
    assert team.train() == pytest.approx(one.steps.train(), abs=tolerance)
  counters = [run.counters() for run in team.runs]
  assert counters == [one.counters()] * len(counters)
  weights = [run.weights() for run in team.runs]
  for other in weights:
    assert_same_weights(other, one.weights(), tolerance)
    assert all(other[name].tobytes() == value.tobytes() for name, value in weights[0].items())


@pytest.mark.parametrize('shape, mode, depth, size, placement',
                         pairwise(SHAPES[1:], MODES, DEPTHS, SIZES, PLACEMENTS), ids=str)
def test_they_are_one_tower(shape, mode, depth, size, placement):
  settings = dict(train=small.random_examples(size[0]), batch_size=size[1], clip_norm=0.5, weight_decay=0.01)
  with make_team(shape, mode=mode, depth=depth, placement=placement, **settings) as team, \
      Run(num_towers=1, **settings) as one:
    assert_one_tower(team, one)
    measured, expected = team.each(lambda run: run.validate()), one.validate()
    for means, num_examples in measured:
      assert num_examples == expected[1] == 11
      assert means == pytest.approx(expected[0], abs=1e-5)
    assert_one_tower(team, one, steps=2)
