"""Numbers of towers are compared wherever they meet, so no part of a batch is lost silently."""

import functools
import itertools

import pytest

import towers
from staging import build_stage
from tensorflow_v1 import tf
from tests.harness import small
from towers.base.usage_error import UsageError, check_same_number

NUMBERS = (1, 2, 3, 4)
DEVICES = [f'/device:CPU:{tower}' for tower in NUMBERS]


def once(key, build):
  """Returns the result of `build`, which is called once per graph and key."""
  if not tf.get_collection(key):
    tf.add_to_collection(key, build())
  return tf.get_collection(key)[0]


def build_inputs(num_towers, *, name='train', mode='split', examples=None):
  plan = towers.build_plan(num_examples=8, batch_size=4, num_towers=num_towers)
  return towers.build_inputs(examples or small.id_examples(8, name), plan=plan, mode=mode)


def build_feed(num_towers, num_devices, *, depth=1, **settings):
  inputs = once(f'inputs {num_towers} {settings}', lambda: build_inputs(num_towers, **settings))
  return towers.build_feed(inputs, devices=DEVICES[:num_devices], staging_depth=depth)


def built_feed(num_towers, **settings):
  return once(f'feed {num_towers} {settings}',
              lambda: build_feed(num_towers, num_towers, **settings))


def build_towers(num_batches, num_devices, num_of_store, *, placement='host', build='reuse'):
  def model(x, is_training):
    return x * tf.get_variable('w', [])

  with tf.Graph().as_default():
    batches = [towers.Batch(tf.zeros([2]), 2) for _ in range(num_batches)]
    store = towers.build_variable_store(devices=DEVICES[:num_of_store], placement=placement)
    return towers.build_towers(model, batches, devices=DEVICES[:num_devices], store=store,
                               build=build)


def meet_in_a_stage(batches, devices):
  tensors = [[tf.zeros([2])] for _ in range(batches)]
  build_stage(tensors, devices=DEVICES[:devices], depth=1, name='train')


def meet_in_a_switch(train, validation, depth, other_depth):
  feeds = [built_feed(train, depth=depth),
           built_feed(validation, name='validation', depth=other_depth)]
  towers.build_switched_batches(*feeds, is_validating=tf.placeholder(tf.bool, []))


def meet_in_validation(built, of_feed):
  tower = towers.Tower('', 'tower_0/', None, {'loss': tf.zeros([])}, 2, [], [], 2, 2.0)
  towers.build_validation([tower] * built, feed=built_feed(of_feed, name='validation'),
                          is_validating=None)


def meet_in_towers(num_batches, num_devices):
  build_towers(num_batches, num_devices, num_devices)


def meet_in_a_store(num_of_store, num_devices, **settings):
  build_towers(num_devices, num_devices, num_of_store, **settings)


def meet_in_a_table(num_devices, num_roles):
  towers.format_device_table(DEVICES[:num_devices], [], ['tower'] * num_roles)


# What meets, the function that takes both numbers, and what each number counts.
MEETINGS = {
    name: (functools.partial(meet, **settings), of_first, of_second)
    for name, meet, settings, of_first, of_second in (
        ('feed', build_feed, dict(), 'towers in the plan of train', 'devices'),
        ('feed, next', build_feed, dict(mode='next', depth=0), 'towers in the plan of train',
         'devices'),
        ('feed, shard', build_feed, dict(mode='shard', depth=2), 'in the plan of train', 'devices'),
        ('stage', meet_in_a_stage, dict(), 'batches to stage for train', 'devices'),
        ('switch', meet_in_a_switch, dict(depth=0, other_depth=0), 'feed of train',
         'of validation'),
        ('staged switch', meet_in_a_switch, dict(depth=2, other_depth=1), 'feed of train',
         'of validation'),
        ('half a switch', meet_in_a_switch, dict(depth=0, other_depth=1), 'feed of train',
         'of validation'),
        ('towers', meet_in_towers, dict(), 'batches', 'devices'),
        ('store', meet_in_a_store, dict(), 'devices of the variable store', 'devices'),
        ('replicas, reuse', meet_in_a_store, dict(placement='replicated', build='reuse'),
         'devices of the variable store', 'devices'),
        ('replicas, clone', meet_in_a_store, dict(placement='replicated', build='clone'),
         'devices of the variable store', 'devices'),
        ('validation', meet_in_validation, dict(), 'towers', 'towers of the feed of validation'),
        ('table', meet_in_a_table, dict(), 'devices', 'roles'),
    )
}


@pytest.mark.parametrize('meeting', sorted(MEETINGS))
def test_numbers_that_disagree_are_refused_with_both_and_equal_ones_are_not(meeting):
  meet, of_first, of_second = MEETINGS[meeting]
  graph = tf.Graph()
  for first, second in itertools.product(NUMBERS, NUMBERS):
    with graph.as_default():
      if first == second:
        meet(first, second)
        continue
      with pytest.raises(UsageError) as error:
        meet(first, second)
    message = str(error.value)
    assert message.startswith(f'{first} ') and f' but {second} ' in message, message
    assert of_first in message and of_second in message and ': ' in message, message


def test_a_validation_tower_takes_a_feed_of_one_device():
  with tf.Graph().as_default():
    store = towers.build_variable_store(devices=DEVICES[:1])
    message = '2 towers of the feed of validation, but 1 validation tower'
    with pytest.raises(UsageError, match=message):
      towers.build_validation_tower(small.model, build_feed(2, 2, name='validation'), index=1,
                                    store=store)


def test_a_store_without_devices_is_refused():
  with pytest.raises(UsageError, match='devices is empty'):
    towers.build_variable_store(devices=[])


def test_workers_of_the_plan_and_of_validation_are_compared():
  tower = towers.Tower('', 'tower_0/', None, {}, 2, [], [], 2, 2.0)
  message = '1 workers in the plan .* but 2 work'
  with tf.Graph().as_default(), pytest.raises(UsageError, match=message):
    towers.build_validation([tower], feed=build_feed(1, 1, name='validation'), is_validating=None,
                            workers=towers.Workers(2, 0))


@pytest.mark.parametrize('build', towers.tower.cloning.cloner.TOWER_BUILDS)
def test_batches_of_more_or_fewer_tensors_than_the_first_are_refused(build):
  message = '1 tensors .* tower 1, but 2 .* tower 0'
  with tf.Graph().as_default(), pytest.raises(UsageError, match=message):
    batches = [towers.Batch((tf.zeros([4, 5]), tf.zeros([4], tf.int32)), 4),
               towers.Batch((tf.zeros([4, 5]),), 4)]
    towers.build_towers(small.model, batches, devices=DEVICES[:2], build=build,
                        store=towers.build_variable_store(devices=DEVICES[:2]))


@pytest.mark.parametrize('depth', small.DEPTHS)
def test_splits_of_other_structures_are_refused(depth):
  with tf.Graph().as_default():
    train = build_feed(2, 2, depth=depth, examples=small.random_examples(8))
    validation = build_feed(2, 2, depth=depth, name='validation')
    with pytest.raises(UsageError, match='2 tensors in a batch of train, but 1 .* validation'):
      towers.build_switched_batches(train, validation, is_validating=tf.placeholder(tf.bool, []))


def test_a_message_names_both_numbers_and_the_fix():
  check_same_number(2, 'batches', 2, 'devices', fix='give as many')
  with pytest.raises(UsageError, match='^3 batches, but 2 devices: give as many$'):
    check_same_number(3, 'batches', 2, 'devices', fix='give as many')
