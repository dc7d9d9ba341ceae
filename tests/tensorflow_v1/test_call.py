"""A prepared call returns what `session.run` returns."""

import gc

import pytest

from tensorflow_v1 import Call, tf


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


def test_every_call_runs_once_and_what_is_prepared_has_not_run():
  counter, add = count_runs()
  with tf.Session() as session:
    call = Call(session, [add])
    call.prepare()  # It needs no variable yet.
    session.run(tf.global_variables_initializer())
    assert session.run(counter) == 0
    for number in range(3):
      assert call() == [None]
      assert session.run(counter) == number + 1


def test_it_is_prepared_once_and_what_that_returns_is_what_a_call_does():
  class Counted(Call):
    times = 0

    def _prepare(self):
      self.times += 1
      return super()._prepare()

  counter, add = count_runs()
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for fetches in ([add, tf.constant(7)], [tf.constant(7), add]):
      call = Counted(session, fetches)
      if fetches[0] is add:
        call()
      run = call.prepare()
      assert sorted(map(str, run())) == sorted(map(str, call())) == ['7', 'None']
      assert call.prepare() is run and call.times == 1
    assert session.run(counter) == 5


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


def test_ops_that_are_added_later_do_not_disturb_it():
  counter, add = count_runs()
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    call = Call(session, [add])
    call()
    assert session.run(counter * 10) == 10
    call()
    assert session.run(counter) == 2
    assert Call(session, [counter * 100])() == [200]


def test_it_may_outlive_its_session_in_silence(capfd):
  with tf.Session() as session:
    call = Call(session, [tf.constant(1)])
    assert call() == [1]
  del call
  gc.collect()
  assert capfd.readouterr().err == ''
