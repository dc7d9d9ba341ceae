"""Which examples each tower gets: disjoint, complete, in plan, in every mode, from any step on."""

import collections
import functools
import itertools
import os
import sys

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.harness.small import (
  MODES,
  element_examples,
  id_examples,
  nightly_but,
  random_examples,
)
from towers.base.usage_error import UsageError
from towers.input.pipeline import GET_NEXTS

# (examples, global batch, towers): sizes that divide, that do not, and that leave towers empty.
SIZES = [(16, 8, 1), (16, 8, 2), (13, 8, 3), (17, 8, 3), (23, 5, 4), (9, 8, 8), (40, 12, 8),
         (11, 11, 3), (7, 20, 3)]


def take(mode, size, *, num_steps, first_step=0, **settings):
  """Returns for each step a list with the ids of each tower, without the rows that fill an empty
  batch.
  """
  plan, [steps] = take_runs(mode, size, [(first_step, num_steps)], **settings)
  return plan, steps


def take_runs(mode, size, runs, *, shuffle=False, last_batch='keep', seed=0, num_workers=1,
              rank=0, make_examples=id_examples, num_threads=0):
  """Returns the same of several runs, (first step, number of steps), of one program."""
  num_examples, batch_size, num_towers = size
  with tf.Graph().as_default():
    plan = towers.build_plan(num_examples=num_examples, batch_size=batch_size,
                             num_towers=num_towers, last_batch=last_batch,
                             num_workers=num_workers, rank=rank)
    inputs = towers.build_inputs(make_examples(num_examples), mode=mode, plan=plan, shuffle=shuffle,
                                 seed=seed)
    batches = [(batch.tensors, tf.convert_to_tensor(batch.num_examples))
               for batch in inputs.next_batches()]
    config = tf.ConfigProto(inter_op_parallelism_threads=num_threads, use_per_session_threads=True)
    with tf.Session(config=config) as session:
      taken = []
      for first_step, num_steps in runs:
        session.run(inputs.initializer, inputs.feed_dict(first_step))
        taken.append([session.run(batches) for _ in range(num_steps)])
  # One row fills the batch of a tower that has no example: many kernels take no empty batch.
  assert all(len(ids) == max(count, 1) for steps in taken for step in steps for ids, count in step)
  return plan, [[[ids[:count].tolist() for ids, count in step] for step in steps] for steps in taken
               ]


GRID = list(itertools.product(MODES, SIZES))


@pytest.mark.nightly(but=['split-(16, 8, 1)', 'split-(17, 8, 3)'])
@pytest.mark.parametrize('mode, size', GRID, ids=str)
def test_every_step_takes_the_same_examples_in_every_mode(mode, size):
  num_examples, batch_size, num_towers = size
  steps_per_epoch = -(-num_examples // batch_size)
  plan, steps = take(mode, size, num_steps=2 * steps_per_epoch)
  for step, by_tower in enumerate(steps):
    begin = step % steps_per_epoch * batch_size
    assert sorted(sum(by_tower, [])) == list(range(begin, min(begin + batch_size, num_examples)))
    if mode != 'shard':
      assert [len(ids) for ids in by_tower] == plan.shares(plan.size_at(step))
    else:
      assert all(
          number % num_towers == tower for tower, ids in enumerate(by_tower) for number in ids)


@pytest.mark.nightly(but=['next-(16, 8, 2)', 'split-(16, 8, 1)'])
@pytest.mark.parametrize('mode, size', GRID, ids=str)
def test_a_shuffled_epoch_is_a_disjoint_cover_in_a_new_order(mode, size):
  plan, steps = take(mode, size, num_steps=3 * -(-size[0] // size[1]), shuffle=True)
  epochs = [
      steps[begin:begin + plan.steps_per_epoch]
      for begin in range(0, len(steps), plan.steps_per_epoch)
  ]
  for epoch in epochs:
    assert sorted(sum(sum(epoch, []), [])) == list(range(size[0]))
  assert len({str(epoch) for epoch in epochs}) > 1


# (examples, global batch, towers of a worker), workers: even and odd ones, and some that leave a
# worker without any.
OF_WORKERS = [(mode, size, num_workers, shuffle) for mode in MODES
              for size, num_workers in (
                  ((16, 8, 2), 2), ((13, 8, 2), 2), ((23, 7, 1), 3), ((17, 8, 2), 3))
              for shuffle in (False, True)]


@pytest.mark.nightly(but=['split-(16, 8, 2)-2-True', 'next-(16, 8, 2)-2-False'])
@pytest.mark.parametrize('mode, size, num_workers, shuffle', OF_WORKERS, ids=str)
def test_workers_share_every_step_and_each_stays_with_its_own_positions(
    mode, size, num_workers, shuffle):
  num_examples, batch_size, num_towers = size
  steps_per_epoch = -(-num_examples // batch_size)
  of_worker = []
  for rank in range(num_workers):
    plan, [steps, resumed] = take_runs(
        mode, size, [(0, 2 * steps_per_epoch + 1), (steps_per_epoch - 1, 2)], shuffle=shuffle,
        num_workers=num_workers, rank=rank)
    of_worker.append((plan, steps))
    assert resumed == steps[steps_per_epoch - 1:steps_per_epoch + 1]
    if not shuffle:
      assert {id for step in steps for ids in step for id in ids
             } == set(range(rank, num_examples, num_workers))
      if mode == 'shard':
        for tower in range(num_towers):
          assert all(id % (num_workers * num_towers) == rank + num_workers * tower
                     for step in steps for id in step[tower])
  for epoch in range(2):
    taken = [
        sorted(id
               for _, steps in of_worker
               for ids in steps[epoch * steps_per_epoch + step]
               for id in ids)
        for step in range(steps_per_epoch)
    ]
    assert [len(ids) for ids in taken
           ] == [of_worker[0][0].size_at(step) for step in range(steps_per_epoch)]
    assert sorted(sum(taken, [])) == list(range(num_examples))
    assert taken == [
        sorted(plan.indices_at(epoch * steps_per_epoch + step, seed=0 if shuffle else None))
        for step in range(steps_per_epoch)]


# What is left of 15 by batches of 4 would fill a batch of one of two towers.
@pytest.mark.nightly(but=['split-(15, 4, 2)-False', 'split-(13, 4, 3)-False'])
@pytest.mark.parametrize('shuffle', [False, True])
@pytest.mark.parametrize('size', [(13, 4, 3), (15, 4, 2)], ids=str)
@pytest.mark.parametrize('mode', MODES)
def test_dropping_the_remainder_takes_whole_batches_of_distinct_examples(mode, size, shuffle):
  plan, steps = take(mode, size, num_steps=6, shuffle=shuffle, last_batch='drop')
  assert plan.steps_per_epoch == 3
  for epoch in (steps[:3], steps[3:]):
    ids = sum(sum(epoch, []), [])
    assert len(ids) == len(set(ids)) == 12
    assert [sum(map(len, step)) for step in epoch] == [4, 4, 4]
    assert shuffle or sorted(ids) == list(range(12))


RESUMED = list(itertools.product(
    [False, True], MODES, [(13, 8, 3), (23, 5, 4), (40, 12, 8), (16, 8, 2)]))


@pytest.mark.nightly(but=['False-split-(13, 8, 3)', 'False-next-(16, 8, 2)'])
@pytest.mark.parametrize('shuffle, mode, size', RESUMED, ids=str)
def test_a_run_may_begin_at_any_step(mode, size, shuffle):
  _, steps = take(mode, size, num_steps=8, shuffle=shuffle)
  # Another program than the one above, which has begun at none of them.
  first_steps = (3, 1, 6)
  _, runs = take_runs(mode, size, [(first_step, 2) for first_step in first_steps], shuffle=shuffle)
  for first_step, run in zip(first_steps, runs):
    assert run == steps[first_step:first_step + 2]


@pytest.mark.nightly(but='next')
@pytest.mark.parametrize('mode', MODES)
def test_the_seed_decides_the_order(mode):
  orders = [take(mode, (40, 8, 4), num_steps=5, shuffle=True, seed=seed)[1] for seed in (1, 1, 2)]
  assert orders[0] == orders[1] != orders[2]


@pytest.mark.nightly
@pytest.mark.parametrize('mode', nightly_but(['shard'], MODES))
def test_starting_anew_while_prefetching_does_not_hang(mode):
  # Eight iterators, two threads: starting them all at once blocked every thread on TensorFlow 1.14.
  with tf.Graph().as_default():
    plan = towers.build_plan(num_examples=37, batch_size=9, num_towers=8)
    inputs = towers.build_inputs(id_examples(37), mode=mode, plan=plan, shuffle=True)
    ids = [batch.tensors for batch in inputs.next_batches()]
    with tf.Session(config=tf.ConfigProto(inter_op_parallelism_threads=2)) as session:
      for _ in range(10):
        session.run(inputs.initializer, inputs.feed_dict(0))
        first = session.run(ids)
      assert sum(map(len, first)) >= 9


@pytest.mark.nightly(but='split')
@pytest.mark.parametrize('mode', MODES)
def test_dict_and_nested_elements_keep_their_structure(mode):
  examples = towers.Examples(
      num_examples=11, name='nested', elements=lambda: tf.data.Dataset.range(11).map(
          lambda number: {'id': number, 'pair': (number, tf.ones([2]))}))
  with tf.Graph().as_default():
    plan = towers.build_plan(num_examples=11, batch_size=4, num_towers=3)
    inputs = towers.build_inputs(examples, mode=mode, plan=plan, shuffle=False)
    batches = [batch.tensors for batch in inputs.next_batches()]
    with tf.Session() as session:
      session.run(inputs.initializer, inputs.feed_dict(0))
      taken = session.run(batches)
  assert sorted(number for batch in taken for number in batch['id'].tolist()) == [0, 1, 2, 3]
  assert all(batch['pair'][1].shape == (len(batch['id']), 2) for batch in taken)


@pytest.mark.parametrize('mode', MODES)
def test_all_input_ops_stand_on_the_host(mode):
  with tf.Graph().as_default() as graph:
    plan = towers.build_plan(num_examples=13, batch_size=8, num_towers=3)
    towers.build_inputs(id_examples(13), mode=mode, plan=plan, shuffle=True).next_batches()
    assert {op.device for op in graph.get_operations()} == {'/device:CPU:0'}
    kinds = collections.Counter(op.type for op in graph.get_operations())
  assert kinds['IteratorGetNext'] == {'split': 1, 'next': 3, 'shard': 3}[mode]
  assert kinds['IteratorV2'] == {'split': 1, 'next': 1, 'shard': 3}[mode]
  assert bool(kinds['SplitV'] + kinds['Split']) == (mode == 'split')


@pytest.mark.parametrize('is_gathered', [True, False])
def test_towers_take_their_batches_in_their_order(is_gathered):
  # In another order the same run would train other towers on other examples.
  with tf.Graph().as_default() as graph:
    plan = towers.build_plan(num_examples=13, batch_size=8, num_towers=3)
    examples = random_examples(13)._replace(is_gathered=is_gathered)
    towers.build_inputs(examples, mode='next', plan=plan).next_batches()
    taken = [op for op in graph.get_operations() if op.type in GET_NEXTS]
  assert len(taken) == 3
  for earlier, later in zip(taken, taken[1:]):
    assert earlier in later.control_inputs


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('is_gathered', [True, False])
def test_gathering_a_batch_wakes_no_other_threads(mode, is_gathered):
  plan = towers.build_plan(num_examples=13, batch_size=8, num_towers=3)
  with tf.Graph().as_default() as graph:
    towers.build_inputs(random_examples(13)._replace(is_gathered=is_gathered), mode=mode, plan=plan)
    kinds = {op.type for op in graph.get_operations()}
    maps = [op for op in graph.get_operations() if op.type == 'MapDataset']
  assert bool(maps) == is_gathered
  assert not any(op.get_attr('use_inter_op_parallelism') for op in maps)
  assert any(kind.startswith('ParallelMapDataset') for kind in kinds) != is_gathered


def row_examples(num_examples, *, is_gathered=True, row_size=1):
  """Examples that are their own numbers, in rows of an array."""
  rows = np.repeat(np.arange(num_examples)[:, None], row_size, 1)
  return towers.Examples(num_examples=num_examples,
                         arrays=(rows,), name='train',
                         parse_batch=lambda numbers, rows: tf.gather(rows, numbers)[..., 0],
                         is_gathered=is_gathered)


GATHERED = list(itertools.product(
    MODES, [(16, 8, 1), (48, 8, 2), (40, 12, 3), (40, 8, 8)], [False, True]))


@pytest.mark.nightly(but='split-(16, 8, 1)-True')
@pytest.mark.parametrize('mode, size, shuffle', GATHERED, ids=str)
def test_batches_that_are_gathered_at_once_are_the_same(mode, size, shuffle):
  plan, one_by_one = take(mode, size, num_steps=24, shuffle=shuffle,
                          make_examples=functools.partial(row_examples, is_gathered=False))
  first_step = plan.steps_per_epoch // 2
  # One thread, which all iterators share with all that they wait for.
  at_once = take(mode, size, num_steps=20, first_step=first_step, shuffle=shuffle,
                 make_examples=row_examples, num_threads=1)[1]
  assert at_once == one_by_one[first_step:first_step + 20]


@pytest.mark.parametrize('more', [
    dict(parse_example=lambda number: number),
    dict(read=lambda elements, rows, epoch, parallel_calls: elements),
    dict(takes_epoch=True, parse_batch=lambda numbers, rows, epoch: tf.gather(rows, numbers))
])
def test_what_does_more_than_gather_is_parsed_by_threads(more):
  plan = towers.build_plan(num_examples=16, batch_size=8, num_towers=2)
  with tf.Graph().as_default() as graph:
    inputs = towers.build_inputs(row_examples(16)._replace(**more), plan=plan)
    inputs.next_batches()
    kinds = {op.type for op in graph.get_operations()}
  assert inputs.needs_threads and 'IteratorGetNext' in kinds and 'MapDataset' not in kinds


@pytest.mark.nightly(but='split')
@pytest.mark.parametrize('mode', MODES)
def test_starting_anew_leaves_no_threads_behind(mode):
  with tf.Graph().as_default():
    plan = towers.build_plan(num_examples=16, batch_size=8, num_towers=2)
    inputs = towers.build_inputs(row_examples(16), mode=mode, plan=plan)
    batches = [batch.tensors for batch in inputs.next_batches()]
    with tf.Session() as session:
      counts = []
      for step in range(12):
        session.run(inputs.initializer, inputs.feed_dict(step))
        session.run(batches)
        counts.append(len(os.listdir('/proc/self/task')))
  assert counts[-1] <= counts[1] + 1  # One that is about to end.


# Rows of 8 bytes a number; 16 batches at a time, or as many as 64 KiB hold, if all are of one size.
@pytest.mark.nightly(but=['48-2048-at_once5-next', '48-0-at_once0-split'])
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('num_examples, row_size, at_once', [(48, 0, {1: 16, 8: 16}),
                                                             (48, 1, {1: 16, 8: 16}),
                                                             (48, 256, {1: 16, 8: 4}),
                                                             (48, 768, {1: 10, 8: 1}), (50, 1, {}),
                                                             (48, 2048, {})])
def test_small_batches_are_gathered_several_at_a_time(mode, num_examples, row_size, at_once):
  plan = towers.build_plan(num_examples=num_examples, batch_size=8, num_towers=8)
  sizes = []

  def parse_batch(numbers, rows):
    sizes.append(numbers.shape.as_list())
    return tf.gather(rows, numbers)

  with tf.Graph().as_default() as graph:
    examples = row_examples(num_examples, row_size=row_size)._replace(parse_batch=parse_batch)
    towers.build_inputs(examples, mode=mode, plan=plan).next_batches()
    kinds = collections.Counter(op.type for op in graph.get_operations())
  is_small = 8 * row_size * 8 <= 2 ** 16
  assert bool(kinds['IteratorGetNextSync']) == is_small == (not kinds['IteratorGetNext'])
  for size in sizes:
    assert (size[0] if len(size) == 2 else 1) == at_once.get(size[-1], 1)
  assert sum(count for kind, count in kinds.items() if 'Unbatch' in kind) == sum(
      len(size) == 2 for size in sizes)


@pytest.mark.parametrize('mode', MODES)
def test_functions_are_called_as_written_on_both_targets(mode):
  called = set()

  def called_in(kind, function):
    def call(*args):
      called.add((kind, sys._getframe().f_code.co_filename))
      return function(*args)
    return call

  examples = element_examples(10)._replace(parse_example=called_in('example', tf.negative),
                                           parse_batch=called_in('batch', tf.negative))
  examples = examples._replace(elements=called_in('elements', examples.elements))
  plan = towers.build_plan(num_examples=10, batch_size=4, num_towers=3)
  with tf.Graph().as_default():
    towers.build_inputs(examples, plan=plan, mode=mode, shuffle=True)
  assert called == {(kind, __file__) for kind in ('elements', 'example', 'batch')}


def test_an_unknown_mode_is_named():
  plan = towers.build_plan(num_examples=13, batch_size=8, num_towers=3)
  with pytest.raises(UsageError, match="'both'.*split, next, shard"):
    towers.build_inputs(id_examples(13), mode='both', plan=plan, shuffle=False)


@pytest.mark.nightly(but=['False-split', 'True-split'])
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('shuffle', [False, True])
def test_fewer_elements_than_promised_are_an_error_and_more_are_left_out(mode, shuffle):
  def elements(count):
    return towers.Examples(num_examples=13, elements=lambda: tf.data.Dataset.range(count),
                           name='mine')

  with tf.Graph().as_default(), tf.Session() as session:
    plan = towers.build_plan(num_examples=13, batch_size=4, num_towers=2)
    for count in (12, 20):
      inputs = towers.build_inputs(elements(count), mode=mode, plan=plan, shuffle=shuffle)
      fetches = [batch.tensors[:batch.num_examples] for batch in inputs.next_batches()]
      session.run(inputs.initializer, inputs.feed_dict(0))
      if count < 13:
        with pytest.raises(tf.errors.InvalidArgumentError, match='mine promised num_examples=13'):
          for _ in range(plan.steps_per_epoch):
            session.run(fetches)
      else:
        ids = [
            number for _ in range(plan.steps_per_epoch) for run in session.run(fetches)
            for number in run
        ]
        assert sorted(ids) == list(range(13))
