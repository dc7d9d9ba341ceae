"""The switch: in any pattern no example crosses to the other split, and none is skipped."""

import hypothesis
import hypothesis.strategies as st
import pytest

import towers
from tests.harness.small import DEPTHS, MODES, covering_grid, id_examples, nightly_but
from tests.harness.taking import Feeds
from towers.tensorflow_v1 import tf

NUM_TRAIN, NUM_VALIDATION, BATCH = 13, 9, 4


def build(mode, num_towers, depth):
  """Returns both splits behind the switch; validation ids are negative."""
  validation = towers.Examples(
      num_examples=NUM_VALIDATION, name='validation',
      elements=lambda: tf.data.Dataset.range(NUM_VALIDATION).map(lambda number: -1 - number))
  return Feeds((id_examples(NUM_TRAIN), validation), mode=mode, num_towers=num_towers, depth=depth,
               batch_sizes=(BATCH, BATCH))


def expected_ids(split, step):
  """The plain model of what a step takes: whole epochs in order, cut in global batches."""
  size = (NUM_TRAIN, NUM_VALIDATION)[split]
  steps_per_epoch = -(-size // BATCH)
  begin = step % steps_per_epoch * BATCH
  ids = range(begin, min(begin + BATCH, size))
  return sorted(-1 - number for number in ids) if split else list(ids)


# What a user may do: take a batch of a split (0 training, 1 validation), or start a split anew at
# some step.
actions = st.lists(
    st.one_of(st.sampled_from([0, 1]), st.tuples(st.sampled_from([0, 1]), st.integers(0, 9))),
    min_size=1, max_size=25)


@pytest.mark.parametrize('num_towers, mode, depth', nightly_but(
    [(4, 'split', 1)],
    covering_grid([1, 3, 4], MODES, DEPTHS) + [(1, 'split', 1)]))
def test_any_pattern_of_switching_and_resetting(mode, num_towers, depth):
  feeds = build(mode, num_towers, depth)

  @hypothesis.settings(max_examples=8, deadline=None, derandomize=True,
                       suppress_health_check=[hypothesis.HealthCheck.too_slow])
  @hypothesis.given(actions)
  def follow(pattern):
    position = [0, 0]
    for split in (0, 1):
      feeds.start(split)
    for action in pattern:
      if isinstance(action, tuple):
        split, position[action[0]] = action
        feeds.start(split, position[split])
      else:
        ids = [number for ids, count in feeds.take(action) for number in ids[:count]]
        assert sorted(ids) == expected_ids(action, position[action])
        position[action] += 1

  with feeds.session:
    follow()


@pytest.mark.nightly(but='next')
@pytest.mark.parametrize('mode', MODES)
def test_a_batch_is_taken_inside_its_branch(mode):
  for depth, kind in ((0, 'IteratorGetNext'), (1, 'Unstage')):
    feeds = build(mode, 3, depth)
    taken = [op for op in feeds.session.graph.get_operations()
             if op.type == kind and 'switch' in op.name]
    assert taken
    for op in taken:
      context = op._get_control_flow_context()
      assert context is not None and context.IsCondContext(), op.name
    feeds.session.close()


def test_areas_stand_on_their_towers():
  feeds = build('split', 3, 2)
  stages = [op for op in feeds.session.graph.get_operations() if op.type in ('Stage', 'Unstage')]
  # Of each area, one takes, one puts and one fills.
  assert len(stages) == 2 * 3 * 3
  for op in stages:
    tower = int(op.name.split('/')[0].split('_')[-1])
    assert op.device == f'/device:CPU:{tower}', op.name
    assert op.get_attr('capacity') == 3
  feeds.session.close()
