"""The wait for input: what a slow input costs beyond the work that towers do meanwhile."""

import time

import numpy as np
import pytest

from tests.harness import small
from towers.tensorflow_v1 import tf


def sleep(seconds):
  """Returns a function that passes a tensor on after a while."""
  def wait(value):
    time.sleep(seconds)
    return value

  def delay(tensor):
    delayed = tf.numpy_function(wait, [tensor], tensor.dtype)
    delayed.set_shape(tensor.shape)
    return delayed
  return delay


def slow_examples(seconds_per_batch):
  examples = small.random_examples(64)
  parse_batch = examples.parse_batch
  return examples._replace(
      parse_batch=lambda numbers, *arrays: parse_batch(sleep(seconds_per_batch)(numbers), *arrays),
      is_gathered=False)


def slow_model(seconds):
  def model(batch, is_training):
    features, labels = batch
    return small.model((sleep(seconds)(features) if seconds else features, labels), is_training)
  return model


def measure(*, input_seconds, compute_seconds, steps=6, **settings):
  """Returns the share of the time waited, after steps whose batches were made beforehand."""
  # One batch at a time: sleeping, two would hold both threads of a machine of two cores, and the
  # towers would wait for a thread and not for input.
  settings = dict(dict(num_towers=1, input_threads=1), **settings)
  with small.Run(train=slow_examples(input_seconds), model=slow_model(compute_seconds),
                 **settings) as run:
    run.train(5)
    before, started = run.opened.training_metrics.input_wait_seconds, time.monotonic()
    run.train(steps)
    return (run.opened.training_metrics.input_wait_seconds - before) / (time.monotonic() - started)


@pytest.mark.nightly(but='0')
@pytest.mark.parametrize('depth', small.DEPTHS)
def test_a_slow_input_is_waited_for_and_a_fast_one_is_not(depth):
  assert measure(input_seconds=0.05, compute_seconds=0.0, depth=depth) > 0.7
  assert measure(input_seconds=0.0, compute_seconds=0.05, depth=depth) < 0.25


@pytest.mark.parametrize('depth', [1, 2])
def test_what_happens_beside_the_towers_is_no_wait(depth):
  assert measure(input_seconds=0.03, compute_seconds=0.06, depth=depth) < 0.25


@pytest.mark.nightly(but="{'accumulate': 2, 'batch_size': 16}")
@pytest.mark.parametrize('settings', [
    dict(num_towers=3, mode='next'),
    dict(num_towers=2, validates=True),
    dict(accumulate=2, batch_size=16),
    dict(num_towers=2, depth=0, validates=True)
], ids=str)
def test_every_kind_of_step_tells_its_wait(settings):
  share = measure(input_seconds=0.05, compute_seconds=0.0, **settings)
  assert 0.5 < share <= 1.0


def test_a_pass_of_a_validation_tower_counts_no_wait_of_its_own():
  with small.Run(num_towers=2, validation_tower=True, train=slow_examples(0.1)) as run:
    started = time.monotonic()
    validation_pass = run.opened.begin_validation()
    while not validation_pass.is_complete:
      loss = run.opened.take_step(validation_pass)
    waited = run.opened.training_metrics.input_wait_seconds
    assert np.isfinite(loss) and 0 <= waited <= time.monotonic() - started
