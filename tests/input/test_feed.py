"""The switch: no example crosses from one split to the other, and none is skipped, whatever the
pattern.
"""

import hypothesis
import hypothesis.strategies as st
import pytest

import towers
from tensorflow_v1 import tf
from tests.harness.small import DEPTHS, MODES, covering_grid, id_examples, nightly_but

NUM_TRAIN, NUM_VALIDATION, BATCH = 13, 9, 4


class Feeds:
  """Both splits behind the switch; validation ids are negative."""

  def __init__(self, mode, num_towers, depth):
    validation = towers.Examples(
        num_examples=NUM_VALIDATION, name='validation',
        elements=lambda: tf.data.Dataset.range(NUM_VALIDATION).map(lambda number: -1 - number))
    with tf.Graph().as_default():
      devices = towers.build_devices(num_towers, 'cpu')
      self.feeds = []
      for examples in (id_examples(NUM_TRAIN), validation):
        plan = towers.build_plan(num_examples=examples.num_examples, batch_size=BATCH,
                                 num_towers=num_towers)
        inputs = towers.build_inputs(examples, mode=mode, plan=plan, shuffle=False)
        self.feeds.append(towers.build_feed(inputs, devices=devices.names, staging_depth=depth))
      self.is_validating = tf.placeholder(tf.bool, [], 'is_validating')
      batches = towers.build_switched_batches(*self.feeds, is_validating=self.is_validating)
      self.batches = [(batch.tensors, tf.convert_to_tensor(batch.num_examples)) for batch in batches
                     ]
      self.session = tf.Session(config=towers.build_session_config(devices))

  def reset(self, split, step=0):
    self.feeds[split].start(self.session, step=step)

  def take(self, split):
    return self.ids(
        self.session.run([self.batches] + self.feeds[split].put_ops,
                         {self.is_validating: split == 1})[0])

  @staticmethod
  def ids(batches):
    return sorted(number for ids, count in batches for number in ids[:count].tolist())


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
  feeds = Feeds(mode, num_towers, depth)

  @hypothesis.settings(max_examples=8, deadline=None, derandomize=True,
                       suppress_health_check=[hypothesis.HealthCheck.too_slow])
  @hypothesis.given(actions)
  def follow(pattern):
    position = [0, 0]
    for split in (0, 1):
      feeds.reset(split)
    for action in pattern:
      if isinstance(action, tuple):
        split, position[action[0]] = action
        feeds.reset(split, position[split])
      else:
        assert feeds.take(action) == expected_ids(action, position[action])
        position[action] += 1

  with feeds.session:
    follow()


@pytest.mark.nightly(but='next')
@pytest.mark.parametrize('mode', MODES)
def test_a_batch_is_taken_inside_its_branch(mode):
  for depth, kind in ((0, 'IteratorGetNext'), (1, 'Unstage')):
    feeds = Feeds(mode, 3, depth)
    taken = [
        op for op in feeds.session.graph.get_operations() if op.type == kind and 'switch' in op.name
    ]
    assert taken
    for op in taken:
      context = op._get_control_flow_context()
      assert context is not None and context.IsCondContext(), op.name
    feeds.session.close()


def test_areas_stand_on_their_towers():
  feeds = Feeds('split', 3, 2)
  stages = [op for op in feeds.session.graph.get_operations() if op.type in ('Stage', 'Unstage')]
  # Of each area, one takes, one puts and one fills.
  assert len(stages) == 2 * 3 * 3
  for op in stages:
    tower = int(op.name.split('/')[0].split('_')[-1])
    assert op.device == f'/device:CPU:{tower}', op.name
    assert op.get_attr('capacity') == 3
  feeds.session.close()
