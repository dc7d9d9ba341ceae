"""Another batch size: a run goes on with any, in any shape, and takes each example once."""

import collections

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tests.harness import small
from tests.input.test_shapes import KINDS, SEED
from towers.data.examples import Buckets, Mixture
from towers.input import epoch_dataset
from towers.input.pipeline import build_inputs
from towers.input.plan import LAST_BATCHES, build_plan
from towers.tensorflow_v1 import tf

# A part of a run: the batch size, micro-batches of a step, towers, steps until it ends.
parts = st.tuples(st.integers(1, 40), st.sampled_from([1, 2, 4]), st.sampled_from(small.TOWERS),
                  st.integers(0, 9))


def plans_of(chain, num_examples, last_batches):
  """Yields the plan of each part of a run, resumed where the part before has ended; its steps."""
  point = None
  for (micro_batch_size, accumulate, num_towers, num_steps), last_batch in zip(chain, last_batches):
    batch_size = max(micro_batch_size, num_towers) * accumulate
    if max(batch_size, num_towers) > num_examples:
      continue
    plan = build_plan(num_examples=num_examples, batch_size=batch_size, num_towers=num_towers,
                      last_batch=last_batch, accumulate=accumulate)
    plan = plan.resumed_at(point) if point else plan
    first = point.step if point else 0
    yield plan, range(first, first + num_steps)
    point = plan.point_at(first + num_steps)


def check_epochs(taken, num_examples, num_left_out):
  """Asserts that each epoch, of examples by its number, has each once, but for those left out."""
  last = max(taken, default=0)
  for epoch, ids in taken.items():
    assert len(set(ids)) == len(ids), epoch
    if epoch < last:
      assert len(ids) >= num_examples - num_left_out[epoch], epoch


def note(taken, plan, step, ids):
  """Adds the examples of a step to those of their epochs."""
  point = plan.point_at(step)
  for place, number in enumerate(ids, point.position):
    taken[point.epoch + place // plan.num_examples].append(number)


def sort_by_length(num_examples):
  return Buckets(np.arange(num_examples) * 7 % 11, 3)


def mix(num_examples):
  """Returns a mixture of 1 : 2 : … of an epoch of so many examples, with parts that come again."""
  counts = (num_examples // 6, num_examples // 3, num_examples - num_examples // 6 -
            num_examples // 3)
  return Mixture(tuple(count // 2 + 1 for count in counts), counts, True)


@pytest.mark.parametrize('group', [lambda num_examples: None, sort_by_length, mix],
                         ids=['plain', 'sorted', 'mixed'])
@pytest.mark.timeout(200)
@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(st.integers(8, 130), st.lists(parts, min_size=1, max_size=6),
                  st.lists(st.sampled_from(LAST_BATCHES), min_size=6, max_size=6), st.booleans())
def test_any_chain_of_batch_sizes_takes_each_example_once_an_epoch(group, num_examples, chain,
                                                                   last_batches, shuffle):
  taken, examples, buckets = collections.defaultdict(list), 0, group(num_examples)
  order = dict(seed=SEED if shuffle else None, buckets=buckets)
  if buckets is not None:
    last_batches = ['keep' if name == 'carry' else name for name in last_batches]
  num_left_out = collections.Counter()
  for plan, steps in plans_of(chain, num_examples, last_batches):
    sizes = {plan.micro_batch_size, plan.examples_per_epoch % plan.micro_batch_size}
    for step in steps:
      ids = plan.indices_at(step, **order)
      assert plan.examples_before(step) == examples and len(ids) == plan.size_at(step) > 0
      # The graph is built for these sizes.
      assert len(ids) <= plan.batch_size and len(ids) % plan.micro_batch_size in sizes | {0}
      note(taken, plan, step, ids.tolist())
      examples += len(ids)
      # Wherever it resumes as it was, it goes on as if it had not ended.
      again = plan.resumed_at(plan.point_at(step))
      for later in range(step, step + 2 * plan.steps_per_epoch + 2):
        assert again.point_at(later) == plan.point_at(later)
        assert again.epoch_and_index(later) == plan.epoch_and_index(later)
        if buckets is not None and later < step + 3:
          np.testing.assert_array_equal(again.indices_at(later, **order),
                                        plan.indices_at(later, **order))
      assert again.steps_in(100) == plan.steps_in(100)
    if plan.last_batch == 'drop':
      for epoch in taken:  # Of the epochs that it has taken part in.
        num_left_out[epoch] = max(num_left_out[epoch], plan.batch_size - 1)
    # The counts of many steps at once are those of each.
    np.testing.assert_array_equal(plan.examples_before(np.array(steps, np.int64)),
                                  [plan.examples_before(step) for step in steps])
  check_epochs(taken, num_examples, num_left_out)


def test_all_epochs_are_over_in_the_steps_that_a_plan_counts():
  for last_batch in LAST_BATCHES:
    for batch_size in range(2, 20):
      plan = build_plan(num_examples=37, batch_size=8, num_towers=2, last_batch=last_batch)
      resumed = build_plan(num_examples=37, batch_size=batch_size, num_towers=2,
                           last_batch=last_batch).resumed_at(plan.point_at(7))
      end = resumed.point_at(resumed.steps_in(4))
      more = end.epoch * 37 + end.position - 4 * 37
      assert 0 <= more < batch_size, (last_batch, batch_size)


CHAIN = [(16, 'split', 2, 8), (10, 'shard', 3, 4), (7, 'next', 2, 9), (53, 'split', 3, 2),
         (12, 'next', 4, 5), (8, 'shard', 2, 8)]


def take(kind, mode, plan, steps):
  """Returns what one worker takes in each step, in the order of positions."""
  def sort(towers_ids):
    ids = np.concatenate(towers_ids)
    if mode == 'shard':
      for tower, of_tower in enumerate(towers_ids):
        ids[tower::len(towers_ids)] = of_tower
    return ids

  with tf.Graph().as_default():
    inputs = build_inputs(KINDS[kind](plan.num_examples), mode=mode, shuffle=True, seed=SEED,
                          plan=plan._replace(since=type(plan.since)()))
    batches = inputs.next_batches()
    with tf.Session() as session:
      session.run(inputs.initializer, inputs.feed_dict(steps[0], plan))
      fetches = [(batch.tensors, tf.convert_to_tensor(batch.num_examples)) for batch in batches]
      return [sort([ids[:count] for ids, count in session.run(fetches)]) for _ in steps]


@pytest.mark.nightly(but=['keep-indices', 'pad-elements', 'drop-buffered'])
@pytest.mark.parametrize('kind', ['indices', 'rows', 'records', 'elements', 'buffered'])
@pytest.mark.parametrize('last_batch', ['keep', 'pad', 'drop'])
def test_the_input_takes_what_the_plan_says(last_batch, kind):
  parts = [(batch_size, 1, num_towers, num_steps) for batch_size, _, num_towers, num_steps in CHAIN]
  taken = collections.defaultdict(list)
  for (_, mode, *_), (plan, steps) in zip(CHAIN, plans_of(parts, 53, [last_batch] * len(CHAIN))):
    found = take(kind, mode, plan, steps)
    for step, ids in zip(steps, found):
      assert len(ids) == plan.size_at(step)
      if kind in ('indices', 'rows', 'records'):
        np.testing.assert_array_equal(ids, plan.indices_at(step, seed=SEED))
      note(taken, plan, step, ids.tolist())
  check_epochs(taken, 53, dict.fromkeys(taken, 52 if last_batch == 'drop' else 0))
  assert len(taken) > 4


def test_a_span_asks_python_for_no_empty_block(monkeypatch):
  sizes, number = [], tf.numpy_function

  def spy(function, *args, **settings):
    def counted(*values):
      found = function(*values)
      if function.__name__ == 'take':
        sizes.append(len(found))
      return found
    return number(counted, *args, **settings)

  monkeypatch.setattr(tf, 'numpy_function', spy)
  monkeypatch.setattr(epoch_dataset, '_BLOCK', 4)
  _, (plan, steps) = plans_of([(16, 1, 2, 2), (10, 1, 2, 9)], 53, ['keep'] * 2)
  found = take('records', 'split', plan, steps)
  for step, ids in zip(steps, found):
    np.testing.assert_array_equal(ids, plan.indices_at(step, seed=SEED))
  assert len(sizes) > 20 and min(sizes) > 0
