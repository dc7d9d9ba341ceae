"""The input check finds lost batches and towers that take the same, and passes right programs."""

import functools

import pytest

import towers
from tests.harness import small
from towers.tensorflow_v1 import StagingArea, tf

NUM_TOWERS = 3


@pytest.fixture(autouse=True)
def graph():
  with tf.Graph().as_default() as graph:
    yield graph


def iterator(size=6):
  return tf.data.make_one_shot_iterator(
      tf.data.Dataset.range(600).map(tf.to_float).batch(size, drop_remainder=True))


def is_validating():
  return tf.placeholder_with_default(False, [], 'is_validating')


def loss(batch, tower=0, use_resource=True, reuse=True):
  """What a tower of a program without towers computes."""
  with tf.device(f'/cpu:{tower}'), tf.name_scope(f'tower_{tower}'), \
      tf.variable_scope('net' if reuse else f'net_{tower}', reuse=tf.AUTO_REUSE,
                        use_resource=use_resource):
    weights = tf.get_variable('weights', [])
    return tf.reduce_mean(tf.nn.dropout(batch * weights, rate=0.5))


PROGRAMS = {
    'switch': dict(validates=True),
    'tower': dict(validation_tower=True),
    'accumulated': dict(accumulate=2),
    'clones with copies': dict(placement='replicated', tower_build='clone', batch_size=9)}


BUILT = small.covering_grid(small.MODES, small.DEPTHS, sorted(PROGRAMS))


@pytest.mark.parametrize('mode, depth, kind', small.nightly_but(BUILT[5:6], BUILT), ids=str)
def test_every_program_that_main_builds_is_right(mode, depth, kind):
  with small.Run(mode=mode, depth=depth, num_towers=NUM_TOWERS,
                 **PROGRAMS[kind]) as run, run.graph.as_default():
    program = run.program
    losses = [tower.loss for tower in program.towers]
    assert towers.check_inputs(losses, [program.train_op, program.input_wait]) == []
    if program.validation:
      measured = [program.validation.sums]
      assert towers.check_inputs([], measured) == []


def switch(takes_both, *, train, validation, validating=None):
  """Returns a switched batch, taken inside of the branches, or outside of both."""
  if takes_both:
    train, validation = [functools.partial(tf.identity, take()) for take in (train, validation)]
  return tf.cond(is_validating() if validating is None else validating, validation, train)


def split_batch(takes_both):
  return tf.split(switch(takes_both, train=iterator().get_next, validation=iterator().get_next),
                  NUM_TOWERS)


def staged(takes_both):
  areas = [StagingArea([tf.float32], [[6]]) for _ in range(2)]
  take, validation = [lambda area=area: tf.reshape(area.get(), [6]) for area in areas]
  return tf.split(switch(takes_both, train=take, validation=validation), NUM_TOWERS)


def queued(takes_both):
  queues = [tf.FIFOQueue(10, [tf.float32], [[]]) for _ in range(2)]
  take, validation = [lambda queue=queue: queue.dequeue_many(6) for queue in queues]
  return tf.split(switch(takes_both, train=take, validation=validation), NUM_TOWERS)


def switch_per_tower(takes_both):
  train, validation = iterator(2), iterator(2)
  training = tf.logical_not(is_validating())
  return [switch(takes_both, train=validation.get_next, validation=train.get_next,
                 validating=training) for _ in range(NUM_TOWERS)]


def switch_in_switch(takes_both):
  """Three splits, of which only one is taken outside."""
  validation, test = iterator(), iterator()
  is_testing = tf.placeholder_with_default(False, [], 'is_testing')
  outside = test.get_next()
  batch = switch(
      False, train=iterator().get_next,
      validation=lambda: tf.cond(is_testing, lambda: tf.identity(outside)
                                 if takes_both else test.get_next(), validation.get_next))
  return tf.split(batch, NUM_TOWERS)


def check(batches, **settings):
  return towers.check_inputs(
      [loss(batch, tower, **settings) for tower, batch in enumerate(batches)])


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize('kind', ['switch and merge', 'functions'])
@pytest.mark.parametrize('build, lost', [(split_batch, 2), (staged, 2), (queued, 2),
                                         (switch_per_tower, 2 * NUM_TOWERS), (switch_in_switch, 1)])
def test_what_is_taken_outside_of_its_branch_is_found(build, lost, kind):
  if kind == 'functions' and not hasattr(tf, 'disable_control_flow_v2'):
    pytest.skip('TensorFlow 1.14 makes them only when asked, and cannot be asked to stop.')
  if kind == 'functions':
    tf.enable_control_flow_v2()
  try:
    assert check(build(takes_both=False)) == []
    with tf.Graph().as_default():
      faults = check(build(takes_both=True))
  finally:
    if kind == 'functions':
      tf.disable_control_flow_v2()
  assert len(faults) == lost and all('the batch is lost' in fault for fault in faults)
  assert all('test_inputs.py, line ' in fault for fault in faults)


def test_what_both_branches_use_is_not_lost():
  """Augmented in training alone; measured only now and then; updated by some batches alone."""
  batch, is_training = iterator().get_next(), tf.logical_not(is_validating())
  batch = tf.cond(is_training, lambda: tf.reverse(batch, [0]), lambda: batch)
  measured = tf.cond(is_validating(), lambda: tf.reduce_max(batch), lambda: 0.0)
  update = tf.cond(tf.reduce_max(batch) > 0, lambda: tf.reduce_sum(batch), lambda: 0.0)
  assert towers.check_inputs([loss(batch)], [measured, update]) == []
  assert towers.check_inputs([update]) == []
  # A run that fetches only the measurement does lose the batch.
  [fault] = towers.check_inputs([measured])
  assert 'is_validating_1 is False' in fault


def test_two_switches_that_hang_together_are_one():
  switch, take = is_validating(), iterator().get_next
  batch = tf.cond(tf.logical_not(switch), take, lambda: tf.zeros([6]))
  assert towers.check_inputs([tf.cond(switch, lambda: 0.0, lambda: tf.reduce_sum(batch))]) == []
  assert len(towers.check_inputs([tf.cond(switch, lambda: tf.reduce_sum(batch), lambda: 0.0)])) == 1


def test_what_never_happens_loses_nothing():
  batch = iterator().get_next()
  for always in (tf.constant(True), tf.constant(6) > 0):
    assert towers.check_inputs([tf.cond(always, lambda: batch, lambda: tf.zeros([6]))]) == []


@pytest.mark.parametrize('settings', [{}, dict(use_resource=False), dict(reuse=False)],
                         ids=['shared', 'ref variables', 'copies'])
def test_towers_that_take_the_same_batch_are_found(settings):
  tf.set_random_seed(7)  # Every random op has another seed.
  batch, other = iterator().get_next(), iterator().get_next()
  [fault] = check([batch, other, batch], **settings)
  assert fault.startswith('Towers 0 and 2 compute on the same examples')
  assert 'test_inputs.py, line ' in fault
  [fault] = check([batch] * NUM_TOWERS)
  assert fault.startswith('Towers 0, 1 and 2 ')


def slices(batch):
  """Cut inside of the towers, by numbers of Python's."""
  return [tf.strided_slice(batch, [2 * tower], [2 * tower + 2]) for tower in range(NUM_TOWERS)]


def unrolled(batch):
  """Cut inside of loops that differ only in the row that they add up, deep in their bodies."""
  return [tf.while_loop(lambda i, _: i < 5, lambda i, total, tower=tower: (
      i + 1, total + batch[tower]), [0, 0.0])[1] for tower in range(NUM_TOWERS)]


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize('cut',
                         [slices, unrolled, lambda batch: tf.split(batch, NUM_TOWERS), tf.unstack])
def test_towers_with_a_cut_of_their_own_are_right(cut):
  batch = iterator().get_next()
  assert check(cut(batch)) == []
  [fault] = check([cut(batch)[1]] * NUM_TOWERS)
  assert 'Towers 0, 1 and 2' in fault
  [fault] = check([cut(batch)[1], cut(batch)[1]])  # The same op twice.
  assert 'Towers 0 and 1' in fault


def test_towers_without_input_are_no_fault():
  assert check([tf.ones([2])] * NUM_TOWERS) == []
  assert towers.check_inputs([]) == []
