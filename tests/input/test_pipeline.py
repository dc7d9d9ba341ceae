"""The pipelines of the input modes: where their ops stand, and what runs them."""

import collections
import sys

import pytest

import towers
from tests.harness import small
from tests.harness.small import MODES, element_examples, id_examples, nightly_but, random_examples
from towers.base.usage_error import UsageError
from towers.input.pipeline import GET_NEXTS, build_inputs
from towers.input.plan import build_plan
from towers.tensorflow_v1 import tf


@pytest.mark.nightly
@pytest.mark.parametrize('mode', nightly_but(['shard'], MODES))
def test_starting_anew_while_prefetching_does_not_hang(mode):
  # Eight iterators, two threads: starting them all at once blocked every thread on TensorFlow 1.14.
  with tf.Graph().as_default():
    plan = build_plan(num_examples=37, batch_size=9, num_towers=8)
    inputs = build_inputs(id_examples(37), mode=mode, plan=plan, shuffle=True)
    ids = [batch.tensors for batch in inputs.next_batches()]
    with tf.Session(config=tf.ConfigProto(inter_op_parallelism_threads=2)) as session:
      for _ in range(10):
        session.run(inputs.initializer, inputs.feed_dict(0))
        first = session.run(ids)
      assert sum(map(len, first)) >= 9


def test_splits_that_have_moved_start_one_after_another(monkeypatch):
  with small.Run(validates=True) as run:
    plain, runs = run.session.run, []
    monkeypatch.setattr(run.session, 'run', lambda *args: [runs.append(str(args)), plain(*args)][1])
    run.opened.start()
  assert [fetches.count('MakeIterator') for fetches in runs if 'MakeIterator' in fetches] == [1, 1]


@pytest.mark.parametrize('mode', MODES)
def test_all_input_ops_stand_on_the_host(mode):
  with tf.Graph().as_default() as graph:
    plan = build_plan(num_examples=13, batch_size=8, num_towers=3)
    build_inputs(id_examples(13), mode=mode, plan=plan, shuffle=True).next_batches()
    assert {op.device for op in graph.get_operations()} == {'/device:CPU:0'}
    kinds = collections.Counter(op.type for op in graph.get_operations())
  assert kinds['IteratorGetNext'] == {'split': 1, 'next': 3, 'shard': 3}[mode]
  assert kinds['IteratorV2'] == {'split': 1, 'next': 1, 'shard': 3}[mode]
  assert bool(kinds['SplitV'] + kinds['Split']) == (mode == 'split')


@pytest.mark.parametrize('is_gathered', [True, False])
def test_towers_take_their_batches_in_their_order(is_gathered):
  # In another order the same run would train other towers on other examples.
  with tf.Graph().as_default() as graph:
    plan = build_plan(num_examples=13, batch_size=8, num_towers=3)
    examples = random_examples(13)._replace(is_gathered=is_gathered)
    build_inputs(examples, mode='next', plan=plan).next_batches()
    taken = [op for op in graph.get_operations() if op.type in GET_NEXTS]
  assert len(taken) == 3
  for earlier, later in zip(taken, taken[1:]):
    assert earlier in later.control_inputs


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('is_gathered', [True, False])
def test_gathering_a_batch_wakes_no_other_threads(mode, is_gathered):
  plan = build_plan(num_examples=13, batch_size=8, num_towers=3)
  with tf.Graph().as_default() as graph:
    build_inputs(random_examples(13)._replace(is_gathered=is_gathered), mode=mode, plan=plan)
    kinds = {op.type for op in graph.get_operations()}
    maps = [op for op in graph.get_operations() if op.type == 'MapDataset']
  assert bool(maps) == is_gathered
  assert not any(op.get_attr('use_inter_op_parallelism') for op in maps)
  assert any(kind.startswith('ParallelMapDataset') for kind in kinds) != is_gathered


@pytest.mark.parametrize('more', [
    dict(parse_example=lambda number: number),
    dict(read=lambda elements, *arrays, epoch, parallel_calls: elements),
    dict(takes_epoch=True, parse_batch=lambda numbers, rows, _, epoch: tf.gather(rows, numbers))])
def test_what_does_more_than_gather_is_parsed_by_threads(more):
  plan = build_plan(num_examples=16, batch_size=8, num_towers=2)
  with tf.Graph().as_default() as graph:
    inputs = build_inputs(random_examples(16)._replace(**more), plan=plan)
    kinds = {op.type for op in graph.get_operations()}
  assert inputs.needs_threads and 'MapDataset' not in kinds


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
  plan = build_plan(num_examples=10, batch_size=4, num_towers=3)
  with tf.Graph().as_default():
    build_inputs(examples, plan=plan, mode=mode, shuffle=True)
  assert called == {(kind, __file__) for kind in ('elements', 'example', 'batch')}


def test_an_unknown_mode_is_named():
  plan = build_plan(num_examples=13, batch_size=8, num_towers=3)
  with pytest.raises(UsageError, match='input_mode=both: .*split, next, shard'):
    build_inputs(id_examples(13), mode='both', plan=plan, shuffle=False)


@pytest.mark.nightly(but=['False-split', 'True-split'])
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('shuffle', [False, True])
def test_fewer_elements_than_promised_are_an_error_and_more_are_left_out(mode, shuffle):
  def elements(count):
    return towers.Examples(num_examples=13, elements=lambda: tf.data.Dataset.range(count),
                           name='mine')

  with tf.Graph().as_default(), tf.Session() as session:
    plan = build_plan(num_examples=13, batch_size=4, num_towers=2)
    for count in (12, 20):
      inputs = build_inputs(elements(count), mode=mode, plan=plan, shuffle=shuffle)
      fetches = [batch.tensors[:batch.num_examples] for batch in inputs.next_batches()]
      session.run(inputs.initializer, inputs.feed_dict(0))
      if count < 13:
        with pytest.raises(tf.errors.InvalidArgumentError, match='mine promised num_examples=13'):
          for _ in range(plan.steps_per_epoch):
            session.run(fetches)
      else:
        ids = [number for _ in range(plan.steps_per_epoch) for taken in session.run(fetches)
               for number in taken]
        assert sorted(ids) == list(range(13))
