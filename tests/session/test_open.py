"""A session that is open over several cells: opened, called and closed from any thread."""

import threading

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf

KERNEL = 'hidden/weights'


def in_thread(act):
  found = []
  thread = threading.Thread(target=lambda: found.append(act()))
  thread.start()
  thread.join()
  return found[0]


def in_place(act):
  return act()


@pytest.mark.parametrize('where', [in_place, in_thread])
def test_open_and_close_do_what_with_does(where):
  with small.program().session() as session:
    expected = [session.train() for _ in range(3)], session.validate()
  session = small.program().session()
  before = tf.get_default_graph()
  assert where(session.open) is session and session.program.sessions == [session]
  assert tf.get_default_graph() is before and tf.get_default_session() is None
  assert ([where(session.train) for _ in range(3)], where(session.validate)) == expected
  with pytest.raises(UsageError, match='open already'):
    session.open()
  where(session.close)
  where(session.close)
  assert session.program.sessions == []
  with pytest.raises(UsageError, match=r'not open.*session.open\(\)'):
    session.train()
  with session:  # Anew.
    assert session.train() == expected[0][0] and tf.get_default_session() is not None


@pytest.mark.parametrize('variables', ['host', 'replicated'])
def test_a_variables_name_is_its_value(variables):
  with small.program(variables=variables).session() as session:
    session.train()
    expected = small.read_variables(session.program, session)
    for name in (KERNEL, f'{KERNEL}:0'):
      np.testing.assert_array_equal(session.run(name), expected[KERNEL])
    found = session.run({'kernel': KERNEL, 'all': [f'{KERNEL}/Momentum', 'global_step']})
    np.testing.assert_array_equal(found['all'][0], expected[f'{KERNEL}/Momentum'])
    assert found['all'][1] == 1 and found['kernel'].shape == (5, 4)
    assert np.shape(session.run(session.program.gradients.loss.name)) == ()
    with pytest.raises(UsageError, match=KERNEL):
      session.run('weights')


def test_a_number_is_its_value_and_what_is_none_of_the_program_is_refused():
  program = small.program(optimizer=tf.train.MomentumOptimizer(np.float32(0.1), 0.9))
  with program.graph.as_default(), tf.Graph().as_default():
    other = tf.constant(3.)
  with program.session() as session:
    rate, step = program.learning_rate, 'global_step'
    assert session.run(rate) == pytest.approx(0.1) and isinstance(rate, float)
    assert session.run({'rate': rate, 'all': (3, [step, rate])}) == {
        'rate': rate, 'all': (3, [0, rate])}
    assert session.run(()) == () and session.run([1, 2]) == [1, 2]
    for fetch, message in (
        (None, 'got None, and fetches tensors'), (np.zeros(3), 'got a NumPy array of shape'),
        (session.learning_rate, 'got a method'), (program.towers[0], 'got a Tower'),
        ('a b:c', f'has no a b:c: fetch one of {KERNEL}, '),
        (other, 'Const.* is of another graph')):
      for fetches in (fetch, [rate, {'this': fetch}]):
        with pytest.raises(UsageError, match=message):
          session.run(fetches)
    assert np.isfinite(session.train())


def test_a_call_beside_that_of_another_thread_is_refused(tmp_path):
  """But not what the input of a step asks, which the step waits for."""
  begins, waits, goes_on = (threading.Event() for _ in range(3))
  asked = []

  def weigh(x):
    return x * tf.get_variable('weight', [], initializer=tf.ones_initializer())

  def ask():
    return float(session.predict(np.ones(1, np.float32), weigh)[0])

  def make():
    while True:
      if begins.is_set() and not asked:
        asked.append(ask())
        waits.set()
        assert goes_on.wait(8)
      yield np.float32(1)

  program = small.program(
      lambda batch, is_training: weigh(batch), train=towers.from_stream(make, np.float32(1)),
      validation=towers.from_arrays(np.ones(3, np.float32)), batch_size=2, staging_depth=0,
      optimizer=tf.train.GradientDescentOptimizer(0.25))
  with program.session() as session:
    session.train()
    begins.set()
    thread = threading.Thread(target=session.train)
    thread.start()
    assert waits.wait(60)
    for call in (session.validate, ask,
                 lambda: session.evaluate(np.ones(1, np.float32)), lambda: session.run('weight'),
                 lambda: session.save(str(tmp_path)), lambda: session.restore(str(tmp_path))):
      with pytest.raises(UsageError, match='another thread is in .*`with lock:` around each'):
        call()
    goes_on.set()
    thread.join()
    assert (asked, session.step, ask(), session.train()) == ([0.75], 2, 0.5, 0.5)


def test_a_run_beside_an_open_session_says_whose_weights_it_trains(capsys):
  program = small.program()
  with program.session() as session:
    for _ in range(2):
      session.train()
    before = session.run(KERNEL)
    result = towers.train(program, steps=1)
    assert result['global_step'] == 1 and session.step == 2
    np.testing.assert_array_equal(session.run(KERNEL), before)
  assert 'trains weights of its own: those of the open session stay, at step 2' in (
      capsys.readouterr().err)
  towers.train(program, steps=1)
  assert 'of its own' not in capsys.readouterr().err
