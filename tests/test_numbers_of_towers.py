"""Numbers of towers are compared wherever they meet, so no part of a batch is lost silently."""

import numpy as np
import pytest

import towers
from staging import build_stage
from tests.harness import small
from towers.base.usage_error import UsageError, check_same_number
from towers.input.batch import Batch
from towers.input.feed import build_feed, build_switched_batches
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.placement.variables import VariableStore, format_device_table
from towers.placement.workers import Workers
from towers.tensorflow_v1 import tf
from towers.tower.global_batch import GlobalBatch
from towers.tower.tower import Tower
from towers.tower.towers import build_towers
from towers.validation import build_validation, build_validation_tower

DEVICES = [f'/device:CPU:{tower}' for tower in range(3)]


def make_feed(num_towers, num_devices, *, name='train', mode='split', depth=1, examples=None):
  plan = build_plan(num_examples=8, batch_size=4, num_towers=num_towers)
  inputs = build_inputs(examples or small.id_examples(8, name), plan=plan, mode=mode)
  return build_feed(inputs, devices=DEVICES[:num_devices], staging_depth=depth)


def make_towers(num_batches, num_devices, num_of_store=None, *, placement='host', build='reuse'):
  store = VariableStore(devices=DEVICES[:num_of_store or num_devices], placement=placement)
  return build_towers(lambda x, is_training: x * tf.get_variable('w', []),
                      [Batch(tf.zeros([2]), 2)] * num_batches,
                      devices=DEVICES[:num_devices], store=store, build=build)


def make_validation(num_towers, num_of_feed, **settings):
  tower = Tower(
      '', 'tower_0/', Batch(None, 2), GlobalBatch([], 2, 2.0, 1), None,
      {'loss': tf.zeros([])}, {}, (), {}, [], [], None)
  feed = make_feed(num_of_feed, num_of_feed, name='validation')
  return build_validation([tower] * num_towers, feed=feed, is_validating=None, **settings)


def switch(depth, other_depth):
  return lambda first, second: build_switched_batches(
      make_feed(first, first, depth=depth),
      make_feed(second, second, name='validation', depth=other_depth),
      is_validating=tf.placeholder(tf.bool, []))


def of_store(**settings):
  return lambda first, second: make_towers(second, second, first, **settings)


# What meets: the function that takes both numbers, and what each number counts.
STORE = 'devices of the variable store'
MEETINGS = {
    'feed': (make_feed, 'towers in the plan of train', 'devices'),
    'feed, next': (lambda *numbers: make_feed(*numbers, mode='next', depth=0),
                   'towers in the plan of train', 'devices'),
    'feed, shard': (lambda *numbers: make_feed(*numbers, mode='shard', depth=2),
                    'in the plan of train', 'devices'),
    'stage': (lambda first, second: build_stage([[tf.zeros([2])]] * first, depth=1, name='train',
                                                devices=DEVICES[:second]),
              'batches to stage for train', 'devices'),
    'switch': (switch(0, 0), 'feed of train', 'of validation'),
    'staged switch': (switch(2, 1), 'feed of train', 'of validation'),
    'half a switch': (switch(0, 1), 'feed of train', 'of validation'),
    'towers': (make_towers, 'batches', 'devices'),
    'store': (of_store(), STORE, 'devices'),
    'replicas, reuse': (of_store(placement='replicated'), STORE, 'devices'),
    'replicas, clone': (of_store(placement='replicated', build='clone'), STORE, 'devices'),
    'validation': (make_validation, 'towers', 'towers of the feed of validation'),
    'table': (lambda first, second: format_device_table(DEVICES[:first], [],
                                                        ['tower'] * second),
              'devices', 'roles')}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize('meeting', sorted(MEETINGS))
def test_numbers_that_disagree_are_refused_with_both_and_equal_ones_are_not(meeting):
  meet, of_first, of_second = MEETINGS[meeting]
  with tf.Graph().as_default():
    meet(2, 2)
  for first, second in ((1, 2), (3, 2)):
    with tf.Graph().as_default(), pytest.raises(UsageError) as error:
      meet(first, second)
    message = str(error.value)
    assert message.startswith(f'{first} ') and f' but {second} ' in message, message
    assert of_first in message and of_second in message and ': ' in message, message


def test_a_validation_tower_takes_a_feed_of_one_device():
  with tf.Graph().as_default():
    store = VariableStore(devices=DEVICES[:1])
    message = '2 towers of the feed of validation, but 1 validation tower'
    with pytest.raises(UsageError, match=message):
      build_validation_tower(small.model, make_feed(2, 2, name='validation'), index=1,
                             store=store)


def test_a_store_without_devices_is_refused():
  with pytest.raises(UsageError, match='devices is empty'):
    VariableStore(devices=[])


def test_workers_of_the_plan_and_of_validation_are_compared():
  message = '1 workers in the plan .* but 2 work'
  with tf.Graph().as_default(), pytest.raises(UsageError, match=message):
    make_validation(1, 1, workers=Workers(2, 0))


@pytest.mark.parametrize('build', towers.tower.cloning.cloner.TOWER_BUILDS)
def test_batches_of_more_or_fewer_tensors_than_the_first_are_refused(build):
  message = '1 tensors .* tower 1, but 2 .* tower 0'
  with tf.Graph().as_default(), pytest.raises(UsageError, match=message):
    batches = [Batch((tf.zeros([4, 5]), tf.zeros([4], tf.int32)), 4),
               Batch((tf.zeros([4, 5]),), 4)]
    build_towers(small.model, batches, devices=DEVICES[:2], build=build,
                 store=VariableStore(devices=DEVICES[:2]))


@pytest.mark.parametrize('depth', small.DEPTHS)
def test_splits_of_other_structures_are_refused(depth):
  with tf.Graph().as_default():
    train = make_feed(2, 2, depth=depth, examples=small.random_examples(8))
    validation = make_feed(2, 2, depth=depth, name='validation')
    with pytest.raises(UsageError, match='2 tensors in a batch of train, but 1 .* validation'):
      build_switched_batches(train, validation, is_validating=tf.placeholder(tf.bool, []))


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize('depth', small.DEPTHS)
@pytest.mark.parametrize('index, dtypes', [(0, (np.float64, np.int32)),
                                           (1, (np.float32, np.int64))])
def test_splits_of_other_dtypes_are_refused(index, dtypes, depth):
  rows, labels = np.zeros([8, 5], np.float32), np.zeros(8, np.int32)
  with tf.Graph().as_default():
    train = make_feed(2, 2, depth=depth, examples=towers.from_arrays(rows, labels))
    validation = make_feed(2, 2, depth=depth, name='validation', examples=towers.from_arrays(
        rows.astype(dtypes[0]), labels.astype(dtypes[1]), name='validation'))
    now, was = np.dtype(dtypes[index]).name, (rows, labels)[index].dtype.name
    with pytest.raises(UsageError, match=f'^component {index} is {now} in the validation split '
                                         f'and {was} in the training split: convert one'):
      build_switched_batches(train, validation, is_validating=tf.placeholder(tf.bool, []))


def test_a_message_names_both_numbers_and_the_fix():
  check_same_number(2, 'batches', 2, 'devices', fix='give as many')
  with pytest.raises(UsageError, match='^3 batches, but 2 devices: give as many$'):
    check_same_number(3, 'batches', 2, 'devices', fix='give as many')
