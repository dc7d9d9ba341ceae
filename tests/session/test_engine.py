"""Variables start while the training step is prepared, and a skipped step counts its examples."""

import importlib
import sys
import threading

import numpy as np
import pytest

from tests.harness import faults, small
from towers.process.run_error import RunError
from towers.session import calls, engine
from towers.tensorflow_v1 import Call, tf

LIMIT_SECONDS = 60


def test_the_step_is_prepared_while_variables_start(monkeypatch):
  is_prepared = threading.Event()
  seen = []

  class Watched(Call):

    def prepare(self):
      run = super().prepare()
      if len(self._fetches) > 2:  # Those of the variables are two.
        is_prepared.set()
      return run

    def __call__(self):
      seen.append(is_prepared.wait(LIMIT_SECONDS))
      return super().__call__()

  for module in (engine, calls):
    monkeypatch.setattr(module, 'Call', Watched)
  with small.Run() as run:
    assert seen == [True]
    run.train()
    assert run.counters()[0] == 1


@pytest.mark.nightly(but='1')
@pytest.mark.parametrize('accumulate', [1, 2])
def test_the_first_step_prepares_nothing_any_more(monkeypatch, accumulate):
  with small.Run(accumulate=accumulate, batch_size=4) as run:
    monkeypatch.setattr(Call, 'prepare', None)
    run.train()
    assert run.counters()[0] == 1


@pytest.mark.nightly(but='False')
@pytest.mark.parametrize('validation_tower', [False, True])
def test_a_step_calls_little_python(validation_tower):
  calls = []
  with small.Run(num_towers=2, validation_tower=validation_tower) as run:
    run.train(3)
    sys.setprofile(lambda frame, event, _: calls.append((event, frame.f_code.co_name)))
    try:
      run.train()
    finally:
      sys.setprofile(None)
  # While Python works, the threads of the session go to sleep. One leaves the lock of calls.
  assert sum(event in ('call', 'c_call') for event, _ in calls) <= 13, calls


@pytest.mark.nightly(but='2-False')
@pytest.mark.parametrize('num_towers, by_one', [(2, False), (8, True)])
def test_variables_of_many_towers_are_started_by_one_thread(num_towers, by_one, monkeypatch):
  found = []

  class Watched(Call):

    def __call__(self):
      found.append(threading.get_ident())
      return super().__call__()

  def of_this_thread():
    found.append(threading.get_ident())
    return np.zeros([], np.float32)

  noticing = small.with_losses(lambda losses: losses + tf.get_variable(
      'noticing', initializer=lambda: tf.reshape(
          tf.numpy_function(of_this_thread, [], tf.float32), [])))
  monkeypatch.setattr(engine, 'Call', Watched)
  small.Run(num_towers=num_towers, model=noticing).session.close()
  caller, starter = found
  assert (caller == starter) == by_one


def test_an_error_of_a_variable_is_told():
  bad = small.with_losses(lambda losses: losses + tf.get_variable(
      'bad', initializer=lambda: tf.check_numerics(tf.constant(float('nan')), 'no start')))
  with pytest.raises(RunError, match='no start'):
    small.Run(model=bad)


def test_an_error_of_the_step_is_told():
  @small.with_losses
  def bad(losses):
    nccl = importlib.import_module('tensorflow.python.ops.gen_nccl_ops')  # Of GPUs alone.
    return losses + tf.stop_gradient(nccl.nccl_all_reduce(
        losses, reduction='sum', num_devices=1, shared_name='', name='of_gpus'))

  with pytest.raises(RunError, match='Tower 0 failed in set-up, .*tower_0/of_gpus'):
    small.Run(model=bad)


def test_a_skipped_step_counts_the_examples_that_it_had():
  # The second of 13 examples in batches of 8 has five.
  with small.Run(train=faults.poison(small.random_examples(13), 9)) as run:
    run.train()
    assert not run.opened.take_step().not_finite.is_done
    run.opened.skip()
    assert run.counters() == [2, 13] and run.opened.step == 2


@pytest.mark.nightly(but='auto')
@pytest.mark.parametrize('build', ['auto', 'reuse'])
def test_lookup_tables_of_a_model_start_with_its_variables(build):
  def look_up(batch, is_training):
    features, labels = batch
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(list(range(3)), [2, 0, 1], tf.int32, tf.int32), -1)
    return small.model((features, table.lookup(labels)), is_training)

  permuted = small.random_examples(13)
  features, labels = permuted.arrays
  permuted = permuted._replace(arrays=(features, np.array([2, 0, 1], np.int32)[labels]))
  expected = small.Run(num_towers=3, train=permuted)
  with small.Run(model=look_up, num_towers=3, tower_build=build) as run, expected:
    assert [run.train() for _ in range(3)] == [expected.train() for _ in range(3)]
