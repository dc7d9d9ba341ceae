"""A prepared call returns what `session.run` returns."""

import gc

import numpy as np
import pytest

from towers.tensorflow_v1 import Call, tf


@pytest.fixture(autouse=True)
def new_graph():
  with tf.Graph().as_default():
    yield


def count_runs():
  """Returns a variable, and the op that adds 1 to it."""
  counter = tf.get_variable('counter', [], tf.int32, tf.zeros_initializer())
  return counter, counter.assign_add(1, read_value=False)


@pytest.mark.parametrize('order', [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_results_stand_where_their_fetches_do(order):
  _, add = count_runs()
  fetches = [tf.constant(1.5), add, tf.constant([2, 3]), dict(b=tf.constant(4), a=tf.constant(5))]
  with tf.Session(config=tf.ConfigProto(device_count={'CPU': 2})) as session:
    session.run(tf.global_variables_initializer())
    results = Call(session, [fetches[place] for place in order])()
  expected = [1.5, None, [2, 3], dict(b=4, a=5)]
  for result, place in zip(results, order):
    assert (result.tolist() if place == 2 else result) == expected[place]


@pytest.mark.parametrize('order', [(0, 1), (1, 0)])
def test_each_call_feeds_values_of_its_own(order):
  number, flag = tf.placeholder(tf.int64, []), tf.placeholder_with_default(False, [])
  fetches = [number * 2, dict(not_flag=tf.logical_not(flag))]
  with tf.Session() as session:
    call = Call(session, [fetches[place] for place in order], feeds=[number, flag])
    for value in (3, 2 ** 40):
      results = call(np.array(value), np.array(True))
      assert [results[place] for place in order] == [2 * value, dict(not_flag=False)]


@pytest.mark.parametrize('op_first', [True, False])
def test_it_is_prepared_once_and_each_call_is_a_run_whatever_is_added(op_first):
  counter, add = count_runs()
  with tf.Session() as session:
    call = Call(session, [add, tf.constant(7)] if op_first else [tf.constant(7), add])
    run = call.prepare()  # It needs no variable yet.
    session.run(tf.global_variables_initializer())
    assert session.run(counter * 10) == 0  # An op that is added later.
    for number, each in enumerate((call, run, call), 1):
      assert each() == ([None, 7] if op_first else [7, None])
      assert session.run(counter) == number and call.prepare() is run
    assert Call(session, [counter * 100])() == [300]


def test_an_error_is_the_sessions_own_and_the_next_call_runs():
  value = tf.get_variable('value', [], tf.float32, tf.ones_initializer())
  checked = tf.check_numerics(value, 'not finite')
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    call = Call(session, [checked])
    value.load(float('nan'), session)
    with pytest.raises(tf.errors.InvalidArgumentError, match='not finite'):
      call()
    value.load(2.0, session)
    assert call() == [2.0]


def test_it_may_outlive_its_session_in_silence(capfd):
  with tf.Session() as session:
    call = Call(session, [tf.constant(1)])
    assert call() == [1]
  del call
  gc.collect()
  assert capfd.readouterr().err == ''
