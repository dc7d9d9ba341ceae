"""A session that is open over several cells: opened, called and closed from any thread."""

import threading

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.session import open_session
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
  assert session.program.sessions == [] and session.step == 3
  with pytest.raises(UsageError, match=r'not open.*session.open\(\)'):
    session.train()
  with session:  # Anew.
    assert session.train() == expected[0][0] and tf.get_default_session() is not None
    assert session.step == 1


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
        ('hidden/weight', f'has no hidden/weight: fetch one of {KERNEL}.'),
        ('a b:c', f'has no a b:c: fetch one of {KERNEL}, '),
        (other, 'Const.* is of another graph')):
      for fetches in (fetch, [rate, {'this': fetch}]):
        with pytest.raises(UsageError, match=message):
          session.run(fetches)
    assert np.isfinite(session.train())


class Weighed:
  """Rows that a step weighs, of which one waits in its generator until `asks` has been called."""

  def __init__(self, asks):
    self.begins, self.waits, self.found = threading.Event(), threading.Event(), []
    self.program = small.program(
        lambda batch, is_training: self.weigh(batch),
        train=towers.from_stream(self._make, np.float32(1)),
        validation=towers.from_arrays(np.ones(3, np.float32)), batch_size=2, staging_depth=0,
        optimizer=tf.train.GradientDescentOptimizer(0.25))
    self._asks = asks

  def weigh(self, x):
    return x * tf.get_variable('weight', [], initializer=tf.ones_initializer())

  def predict(self, session):
    return float(session.predict(np.ones(1, np.float32), self.weigh)[0])

  def _make(self):
    while True:
      if self.begins.is_set() and not self.found:
        self.waits.set()
        self.found.append(self._asks())
      yield np.float32(1)


CALLS = dict(
    validate=lambda session, folder: session.validate(),
    evaluate=lambda session, folder: session.evaluate(iter([np.ones(1, np.float32)])),
    run=lambda session, folder: session.run('weight'),
    seen=lambda session, folder: session.examples_seen,
    train=lambda session, folder: session.train(),
    save=lambda session, folder: session.save(folder))


def test_a_call_waits_for_the_step_of_another_thread(tmp_path):
  """But not what the input of the step asks, for which the step waits."""
  goes_on = threading.Event()
  with tf.Graph().as_default():
    weighed = Weighed(lambda: (weighed.predict(session), goes_on.wait(60)))
    with weighed.program.session() as session:
      session.train()
      weighed.begins.set()
      first = threading.Thread(target=session.train)
      first.start()
      assert weighed.waits.wait(60)
      others = [threading.Thread(target=call, args=(session, str(tmp_path)))
                for call in CALLS.values()]
      for thread in others:
        thread.start()
        thread.join(0.1)
      assert first.is_alive() and all(thread.is_alive() for thread in others)
      goes_on.set()
      for thread in (first, *others):
        thread.join(60)
      assert weighed.found == [(0.75, True)]
      assert (session.step, weighed.predict(session)) == (3, 0.25)


def test_a_call_that_the_input_of_a_step_waits_for_is_named(monkeypatch):
  monkeypatch.setattr(open_session, '_MOST_SECONDS_OF_A_STEP', 0.5)
  asked = []

  def ask():
    with pytest.raises(UsageError, match='been in a step for 0.5 s.*session.train.batch.'):
      weighed.predict(session)
    asked.append(True)

  def wait_for_another():
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(60)

  with tf.Graph().as_default():
    weighed = Weighed(wait_for_another)
    with weighed.program.session() as session:
      session.train()
      weighed.begins.set()
      assert session.train() == 0.75 and asked == [True]


def test_no_prediction_mixes_the_weights_of_two_steps():
  """Thirty weights, each of which grows by one in a step, are the same in each prediction."""
  found = []

  def weights(x):
    return x[:, None] * tf.stack([tf.get_variable(
        f'weight_{number}', [], initializer=tf.zeros_initializer()) for number in range(30)])

  program = small.program(
      lambda batch, is_training: -tf.reduce_sum(weights(batch[0]), 1),
      train=towers.from_arrays(np.ones(64, np.float32)), validation=None, batch_size=8,
      num_towers=2, variables='replicated', optimizer=tf.train.GradientDescentOptimizer(1.0))
  with program.session() as session:
    def predict():
      while session.step < 60 and len(found) < 1000:
        found.append(session.predict(np.ones(1, np.float32), weights)[0])

    thread = threading.Thread(target=predict)
    thread.start()
    while session.step < 60:
      session.train()
    thread.join()
  assert len(found) > 5
  for row in found:
    assert set(row) == {row[0]} and row[0] == int(row[0])


@pytest.mark.parametrize('quiet', [False, True])
def test_a_run_beside_an_open_session_says_whose_weights_it_trains(quiet, capsys):
  program = small.program()
  with program.session() as session:
    for _ in range(2):
      session.train()
    before = session.run(KERNEL)
    result = towers.train(program, steps=1, quiet=quiet)
    assert result['global_step'] == 1 and session.step == 2
    np.testing.assert_array_equal(session.run(KERNEL), before)
  told = capsys.readouterr().err
  assert told.startswith('WARNING: towers.train trains weights of its own: those of the open '
                         'session stay, at step 2') and 'gone' not in told
  towers.train(program, steps=1, quiet=quiet)
  assert 'of its own' not in capsys.readouterr().err
