"""Any shape: a run takes the same examples in the same steps in every mode, on any number of towers
and workers, in any micro-batches, and whatever shape it had before it resumed.
"""

import functools
import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.harness import small
from towers.data.examples import Buckets
from towers.input.plan import build_plan

WORKERS = (1, 2, 3, 5)
SEED = 4

# A part of a run: mode, towers, workers, micro-batches of a step, and steps until it ends.
parts = st.tuples(st.sampled_from(small.MODES), st.sampled_from(small.TOWERS),
                  st.sampled_from(WORKERS), st.sampled_from([1, 2, 4]), st.integers(1, 9))


def deal(plan, mode, step):
  """Returns the positions that each tower of a worker takes in a step, as the plan's page says."""
  epoch, step_in_epoch = plan.position(step)
  by_tower = [[] for _ in range(plan.num_towers)]
  for micro_batch in range(plan.num_micro_batches(step)):
    begin = step_in_epoch * plan.batch_size + micro_batch * plan.micro_batch_size
    end = min(begin + plan.micro_batch_size, plan.examples_per_epoch)
    mine = [position for position in range(begin, end)
            if position % plan.num_workers == plan.rank]
    if mode == 'shard':
      for position in mine:
        by_tower[position // plan.num_workers % plan.num_towers].append(position)
    else:
      edges = np.cumsum([0] + [len(share) for share in np.array_split(mine, plan.num_towers)])
      for tower in range(plan.num_towers):
        by_tower[tower] += mine[edges[tower]:edges[tower + 1]]
  return by_tower


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.integers(40, 130), st.integers(40, 70),
                  st.sampled_from(['keep', 'pad', 'drop']), st.lists(parts, min_size=1, max_size=5),
                  st.booleans())
def test_any_chain_of_shapes_takes_each_example_once_an_epoch(num_examples, batch_size,
                                                              last_batch, chain, shuffle):
  batch_size = min(batch_size, num_examples) // 4 * 4
  seed = SEED if shuffle else None
  one = build_plan(num_examples=num_examples, batch_size=batch_size, num_towers=1,
                   last_batch=last_batch)
  taken, step = [], 0
  for mode, num_towers, num_workers, accumulate, num_steps in chain:
    if num_towers * num_workers * accumulate > batch_size:
      continue
    plans = [build_plan(num_examples=num_examples, batch_size=batch_size, num_towers=num_towers,
                        last_batch=last_batch, accumulate=accumulate,
                        num_workers=num_workers, rank=rank) for rank in range(num_workers)]
    for _ in range(num_steps):
      first = one.position(step)[1] * batch_size
      dealt = [deal(plan, mode, step) for plan in plans]
      assert sorted(sum(sum(dealt, []), [])) == list(range(first, first + one.size_at(step)))
      if mode != 'shard' and accumulate == 1 and first % num_workers == 0:
        assert [list(map(len, by_tower)) for by_tower in dealt] == [
            plan.shares(plan.size_at(step)) for plan in plans]
      expected = one.indices_at(step, seed=seed)
      for plan in plans:
        np.testing.assert_array_equal(plan.indices_at(step, seed=seed), expected)
      taken += expected.tolist()
      step += 1
  for begin in range(0, len(taken), one.examples_per_epoch):
    epoch = taken[begin:begin + one.examples_per_epoch]
    assert len(set(epoch)) == len(epoch) and set(epoch) <= set(range(num_examples))


def gathered_examples(num_examples):
  """Examples that are their own indices, as rows of an array."""
  examples = towers.from_arrays(np.arange(num_examples), name='train')
  return examples._replace(parse_batch=lambda indices, rows: tf.gather(rows, indices))


def bucketed_examples(num_examples):
  """Examples in buckets of some lengths."""
  lengths = np.arange(num_examples) * 7 % 10
  return small.id_examples(num_examples)._replace(buckets=Buckets(lengths, 2))


KINDS = {
    'indices': small.id_examples,
    'bucketed': bucketed_examples,
    'rows': gathered_examples,
    'elements': small.element_examples,
    'buffered': functools.partial(small.element_examples, shuffle_buffer=5),
}
# 53 examples in batches of 16: four steps, the last of 5 examples, fewer than most have towers.
NUM, BATCH, STEPS = 53, 16, 4
POINTS = [(mode, num_towers, num_workers)
          for mode, num_towers, num_workers in itertools.product(small.MODES, small.TOWERS, WORKERS)
          if num_towers * num_workers <= BATCH]


def take(kind, mode, num_towers, num_workers, first_step, num_steps, accumulate=1):
  """Returns the examples that all workers take in each step, sorted."""
  steps = [[] for _ in range(num_steps)]
  for rank in range(num_workers):
    with tf.Graph().as_default():
      plan = build_plan(num_examples=NUM, batch_size=BATCH, num_towers=num_towers,
                        accumulate=accumulate, num_workers=num_workers, rank=rank)
      inputs = towers.build_inputs(KINDS[kind](NUM), plan=plan, mode=mode, shuffle=True, seed=SEED)
      batches = [batch.tensors[:batch.num_examples] for batch in inputs.next_batches()]
      with tf.Session() as session:
        session.run(inputs.initializer, inputs.feed_dict(first_step))
        for offset, step in enumerate(steps):
          for _ in range(plan.num_micro_batches(first_step + offset)):
            step += np.concatenate(session.run(batches)).tolist()
  return [sorted(step) for step in steps]


@functools.lru_cache(None)
def of_one_tower(kind):
  """Returns the examples of two epochs and a step."""
  return take(kind, 'split', 1, 1, 0, 2 * STEPS + 1)


@pytest.mark.parametrize('kind', KINDS)
def test_one_tower_takes_each_example_once_an_epoch_in_a_new_order(kind):
  steps = of_one_tower(kind)
  for epoch in (steps[:STEPS], steps[STEPS:2 * STEPS]):
    assert sorted(sum(epoch, [])) == list(range(NUM))
    assert epoch[0] != list(range(BATCH))
  assert steps[:STEPS] != steps[STEPS:2 * STEPS]
  if kind in ('indices', 'rows', 'bucketed'):
    plan = build_plan(num_examples=NUM, batch_size=BATCH, num_towers=1)
    buckets = KINDS[kind](NUM).buckets
    assert steps == [sorted(plan.indices_at(step, seed=SEED, buckets=buckets))
                     for step in range(2 * STEPS + 1)]


# The kinds, the first steps and the micro-batches in turn.
SHAPES = [(list(KINDS)[(number + number // 5) % 5],) + point + (number % 5,
          1 + (point[1] * point[2] <= BATCH // 2 and number % 3 == 0))
          for number, point in enumerate(POINTS)]


@pytest.mark.nightly(but='elements-split-8-1-0-2')
@pytest.mark.parametrize('kind, mode, num_towers, num_workers, first_step, accumulate',
                         SHAPES[1::2])
def test_every_shape_takes_the_same_examples_in_the_same_steps(
    kind, mode, num_towers, num_workers, first_step, accumulate):
  num_steps = STEPS
  assert take(kind, mode, num_towers, num_workers, first_step, num_steps, accumulate
             ) == of_one_tower(kind)[first_step:first_step + num_steps]
