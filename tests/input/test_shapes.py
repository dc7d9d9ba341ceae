"""Any shape: a run takes the same examples in the same steps in every mode, on any number of towers
and workers, in any micro-batches, and from any step on: whatever shape it had before it resumed.
"""

import functools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import towers
from tests.data.test_records import parse, write_two
from tests.harness import small
from tests.harness.covering import cover
from towers.data.examples import Buckets
from towers.input.pipeline import build_inputs
from towers.input.plan import LAST_BATCHES, build_plan
from towers.tensorflow_v1 import tf

WORKERS = (1, 2, 3, 5)
SEED = 4

# A part of a run: mode, towers, workers, micro-batches of a step, and steps until it ends.
parts = st.tuples(st.sampled_from(small.MODES), st.sampled_from(small.TOWERS),
                  st.sampled_from(WORKERS), st.sampled_from([1, 2, 4]), st.integers(1, 9))


def deal(plan, mode, step):
  """Returns the positions that each tower of a worker takes in a step, as the plan's page says."""
  _, step_in_epoch = plan.epoch_and_index(step)
  by_tower = [[] for _ in range(plan.num_towers)]
  for micro_batch in range(plan.num_micro_batches(step)):
    begin = step_in_epoch * plan.batch_size + micro_batch * plan.micro_batch_size
    end = min(begin + plan.micro_batch_size, plan.examples_per_epoch)
    if plan.carries:  # All epochs are one.
      begin = plan.examples_before(step) + micro_batch * plan.micro_batch_size
      end = begin + plan.micro_batch_size
    mine = range(begin + plan.rank, end, plan.num_workers)
    if mode == 'shard':
      for tower in range(plan.num_towers):
        by_tower[tower] += mine[tower::plan.num_towers]
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
      first = one.epoch_and_index(step)[1] * batch_size
      dealt = [deal(plan, mode, step) for plan in plans]
      assert sorted(sum(sum(dealt, []), [])) == list(range(first, first + one.size_at(step)))
      if accumulate == 1:
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


def record_examples(num_examples):
  """Records in two files of unequal length."""
  return towers.from_tfrecords(write_two(np.arange(num_examples)),
                               lambda record: parse(record)['id'])


def counted_examples(num_examples):
  """A data set whose size only a pass tells, shuffled as a whole."""
  return towers.from_dataset(lambda: tf.data.Dataset.range(2 * num_examples).filter(
      lambda id: id < num_examples), shuffle_buffer=0)


KINDS = {
    'indices': small.id_examples,
    'bucketed': bucketed_examples,
    'rows': gathered_examples,
    'records': record_examples,
    'elements': small.element_examples,
    'data set': counted_examples,
    'buffered': functools.partial(small.element_examples, shuffle_buffer=5)}
BY_INDEX = ('indices', 'bucketed', 'rows', 'records')
# 53 examples in batches of 16: four steps, the last of 5 examples, fewer than most have towers.
NUM, BATCH, STEPS = 53, 16, 4
AXES = dict(kind=list(KINDS), mode=['next', 'shard', 'split'], num_towers=[3, 1, 2, 8],
            num_workers=[1, 2, 3], last_batch=list(LAST_BATCHES), first_step=[0, 3, 1, 5],
            shuffle=[True, False], accumulate=[1, 2])


def is_valid(point):
  if point.get('kind') == 'bucketed' and point.get('last_batch') == 'carry':
    return False
  return point.get('num_towers', 1) * point.get('num_workers', 1) * point.get(
      'accumulate', 1) <= BATCH


def take(kind, mode, num_towers, num_workers, last_batch, first_step, shuffle, accumulate, *,
         num_steps=STEPS, seed=SEED):
  """Returns for each step what each tower of each worker takes, all its micro-batches together."""
  steps = [[] for _ in range(num_steps)]
  for rank in range(num_workers):
    with tf.Graph().as_default():
      plan = build_plan(num_examples=NUM, batch_size=BATCH, num_towers=num_towers,
                        accumulate=accumulate, num_workers=num_workers, rank=rank,
                        last_batch=last_batch)
      inputs = build_inputs(KINDS[kind](NUM), plan=plan, mode=mode, shuffle=shuffle,
                            seed=seed)
      batches = inputs.next_batches()
      if last_batch == 'pad':
        assert {batch.num_rows for batch in batches} == {plan.num_rows}
      fetches = [(batch.tensors, tf.convert_to_tensor(batch.num_examples)) for batch in batches]
      with tf.Session() as session:
        session.run(inputs.initializer, inputs.feed_dict(first_step))
        for offset, step in enumerate(steps):
          by_tower = [[] for _ in batches]
          for _ in range(plan.num_micro_batches(first_step + offset)):
            for taken, (rows, count) in zip(by_tower, session.run(fetches)):
              # One row is the least, and what fills a batch up repeats its last example.
              assert len(rows) >= max(count, 1) and (not count or set(rows[count:]) <= {
                  rows[count - 1]})
              taken += rows[:count].tolist()
          step.append(by_tower)
  return steps


def sort(steps):
  """Returns the examples of all towers in each step, sorted."""
  return [sorted(sum(sum(step, []), [])) for step in steps]


@functools.lru_cache(None)
def of_one_tower(kind, last_batch='keep', shuffle=True, seed=SEED):
  """Returns the examples of two epochs and a step."""
  return sort(take(kind, 'split', 1, 1, last_batch, 0, shuffle, 1, num_steps=2 * STEPS + 1,
                   seed=seed))


@pytest.mark.parametrize('kind', small.nightly_but(['buffered'], KINDS))
def test_one_tower_takes_each_example_once_an_epoch_in_a_new_order(kind):
  steps = of_one_tower(kind)
  for epoch in (steps[:STEPS], steps[STEPS:2 * STEPS]):
    assert sorted(sum(epoch, [])) == list(range(NUM))
    assert epoch[0] != list(range(BATCH))
  assert steps[:STEPS] != steps[STEPS:2 * STEPS]
  assert of_one_tower(kind, seed=SEED + 1) != steps == sort(take(
      kind, 'split', 1, 1, 'keep', 0, True, 1, num_steps=2 * STEPS + 1))


FEW = cover(AXES, strength=1, is_valid=is_valid)
MANY = [point for point in cover(AXES, strength=2, is_valid=is_valid) if point not in FEW]


@pytest.mark.parametrize('point', small.nightly_but(FEW, FEW + MANY),
                         ids=lambda point: '-'.join(map(str, point.values())))
def test_every_shape_takes_the_same_examples_in_the_same_steps(point):
  kind, mode, first_step, shuffle = (point[name] for name in (
      'kind', 'mode', 'first_step', 'shuffle'))
  steps = take(**point)
  plans = [build_plan(num_examples=NUM, batch_size=BATCH, rank=rank, **{
      name: point[name] for name in ('num_towers', 'num_workers', 'last_batch', 'accumulate')})
      for rank in range(point['num_workers'])]
  expected = of_one_tower(kind, point['last_batch'], shuffle)
  assert sort(steps) == expected[first_step:first_step + STEPS]
  settings = dict(seed=SEED if shuffle else None, buckets=KINDS[kind](NUM).buckets)
  if kind in BY_INDEX:
    assert sort(steps) == [sorted(plans[0].indices_at(step, **settings))
                           for step in range(first_step, first_step + STEPS)]
  if kind in BY_INDEX or not shuffle:
    order = plans[0].order(**settings)

    def find(positions, step):
      epoch = 0 if plans[0].carries else plans[0].epoch_and_index(step)[0]
      return [order(np.array([position % NUM]), epoch + position // NUM)[0]
              for position in positions]

    for step, by_worker in enumerate(steps, first_step):
      assert by_worker == [[find(positions, step) for positions in deal(plan, mode, step)]
                           for plan in plans]
