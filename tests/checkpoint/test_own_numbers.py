"""An optimizer's own numbers, as Adam's powers of beta, go with its slots into other groups.

By hand each variable has an Adam of its own, whose powers begin with its slots.
"""

import itertools
import re

import numpy as np
import pytest

import towers
from tests.harness.small import nightly_but, read_checkpoint
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf

ROWS = np.random.RandomState(0).randn(24, 4).astype('f')
NAMES = 'backbone/kernel', 'head/kernel'
START = [np.random.RandomState(seed).randn(*shape).astype('f')
         for seed, shape in ((1, [4, 3]), (2, [3, 1]))]
RATE, NUM_STEPS = .01, 5


def loss_of(rows, first=0):
  made = {index: tf.get_variable(NAMES[index], initializer=START[index])
          for index in (first, 1 - first)}
  return tf.square(tf.matmul(tf.matmul(rows, made[0]), made[1])[:, 0] - 2)


def apply_adam(rate):
  return lambda pairs, step: tf.train.AdamOptimizer(rate).apply_gradients(pairs)


# Of each program in a row of several, and by what factors of the rate its variables move.
HEAD = dict(frozen='backbone/'), (0, 1)
BACKBONE = dict(frozen='head/'), (1, 0)
ONE = {}, (1, 1)
TWO = dict(rate_factors={'backbone/': .1}), (.1, 1)
HEAD_BY_FUNCTION = dict(frozen='backbone/', optimizer={'head/': apply_adam(RATE)},
                        learning_rate=None), (0, 1)
TWO_BY_FUNCTIONS = dict(optimizer={'backbone/': apply_adam(RATE / 10), 'head/': apply_adam(RATE)},
                        learning_rate=None), (.1, 1)
ROWS_OF_PROGRAMS = {
    'unfrozen': [HEAD, TWO], 'the other': [HEAD, BACKBONE],
    'split': [ONE, TWO], 'joined': [TWO, ONE], 'twice': [HEAD, TWO, TWO],
    'functions': [HEAD_BY_FUNCTION, TWO_BY_FUNCTIONS, TWO_BY_FUNCTIONS]}
TOWERS = {'one': (1, 'host'), 'two': (2, 'host'), 'replicas': (2, 'replicated')}


def run_by_hand(factors):
  """Returns the losses of all steps, without towers."""
  with tf.Graph().as_default(), tf.Session() as session:
    loss = tf.reduce_mean(loss_of(ROWS))
    rates, moves = [], []
    for variable in tf.trainable_variables():
      rates.append(tf.placeholder(tf.float32, []))
      optimizer = tf.train.AdamOptimizer(rates[-1])
      moves.append(optimizer.apply_gradients([(tf.gradients(loss, variable)[0], variable)]))
    session.run(tf.global_variables_initializer())
    losses = []
    for of_program in factors:
      fed = {rate: RATE * factor for rate, factor in zip(rates, of_program)}
      chosen = [move for move, factor in zip(moves, of_program) if factor]
      losses += [session.run([loss, *chosen], fed)[0] for _ in range(NUM_STEPS)]
    return losses


def open_program(settings, shape='one', first=0):
  num_towers, placement = TOWERS[shape]
  with tf.Graph().as_default():
    return towers.Program(
        lambda batch, is_training: loss_of(batch[0], first), train=towers.from_arrays(ROWS),
        batch_size=len(ROWS), shuffle=False, num_towers=num_towers, device='cpu',
        variables=placement, **dict(dict(optimizer=tf.train.AdamOptimizer, learning_rate=RATE),
                                    **settings)).session()


def restore(session, folder, **arguments):
  """Restores by the lines that refusals name; returns what they say."""
  said = ''
  for _ in range(3):
    try:
      session.restore(folder, **arguments)
      return said
    except UsageError as error:
      said += str(error)
      line = re.search(r'restore\(folder, (.*)\)\.', str(error)).group(1)
      given = eval(f'dict({line})')
      arguments['map'] = {**arguments.get('map', {}), **given.pop('map', {})}
      arguments.update(given)
  raise AssertionError(said)


@pytest.mark.parametrize('row,shape,first', nightly_but(
    [('unfrozen', 'one', 0), ('split', 'two', 1), ('functions', 'replicas', 0)],
    itertools.product(ROWS_OF_PROGRAMS, TOWERS, (0, 1))))
def test_own_numbers_go_with_the_slots(row, shape, first, tmp_path):
  programs, losses = ROWS_OF_PROGRAMS[row], []
  for index, (settings, _) in enumerate(programs):
    with open_program(settings, shape, first) as session:
      said = restore(session, str(tmp_path)) if index else ''
      is_exact = row in ('split', 'joined') or settings is programs[index - 1][0]
      assert bool(said) != (index == 0 or is_exact), said
      losses += [session.train() for _ in range(NUM_STEPS)]
      session.save(str(tmp_path))
  expected = run_by_hand([factors for _, factors in programs])
  np.testing.assert_allclose(losses, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize('kept,left', [('apply/beta1_power_1', ''), ('apply/beta1_power', '_1')])
def test_which_go_on_is_asked_where_it_cannot_be_told(kept, left, tmp_path):
  folder = str(tmp_path)
  for settings, _ in (HEAD, TWO):
    with open_program(settings) as session:
      if settings is TWO[0]:
        restore(session, folder)
      for _ in range(NUM_STEPS):
        session.train()
      session.save(folder)
  saved = read_checkpoint(folder)
  with open_program(ONE[0]) as session:
    with pytest.raises(UsageError, match=r'beta1_power: 0\.53\d+\n.*beta1_power_1: 0\.31\d+\n'):
      session.restore(folder)
    session.restore(folder, map={f'apply/beta{index}_power{left}$': None for index in (1, 2)})
    assert session.run('apply/beta1_power') == saved[kept]


@pytest.mark.parametrize('shapes', [('replicas', 'one'), ('one', 'replicas')])
def test_a_function_whose_replicas_have_numbers_goes_on_in_another_shape(shapes, tmp_path):
  losses = []
  for shape in shapes:
    with open_program(HEAD_BY_FUNCTION[0], shape) as session:
      if losses:
        session.restore(str(tmp_path))
      losses += [session.train() for _ in range(NUM_STEPS)]
      session.save(str(tmp_path))
  np.testing.assert_allclose(losses, run_by_hand([(0, 1)] * 2), rtol=0, atol=2e-5)
