"""The rest of an epoch goes into the next one's first batch: full batches, each example once."""

import numpy as np
import pytest

import towers
from tests.harness import small, taking
from tests.input.test_shapes import KINDS, SEED, bucketed_examples
from towers.base.usage_error import UsageError
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.input.resume_point import ResumePoint
from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import batch_norm

NUM, BATCH = 53, 16


def take(kind, mode, num_towers, *, first_step=0, num_steps=8, batch_size=BATCH, point=None):
  """Returns what one worker takes in each step, in order."""
  with tf.Graph().as_default():
    plan = build_plan(num_examples=NUM, batch_size=batch_size, num_towers=num_towers,
                      last_batch='carry')
    inputs = build_inputs(KINDS[kind](NUM), plan=plan, mode=mode, shuffle=True, seed=SEED)
    batches = inputs.next_batches()
    assert all(batch.is_static for batch in batches)
    with tf.Session() as session:
      session.run(inputs.initializer, inputs.feed_dict(
          first_step, plan.resumed_at(point) if point else None))
      return [np.concatenate(session.run([batch.tensors for batch in batches])).tolist()
              for _ in range(num_steps)]


@pytest.mark.nightly(but=['indices', 'buffered'])
@pytest.mark.parametrize('kind', ['indices', 'rows', 'elements', 'buffered'])
def test_each_example_comes_once_an_epoch_in_a_new_order_whatever_the_batches(kind):
  stream = sum(take(kind, 'split', 1, num_steps=3 * NUM, batch_size=1), [])
  epochs = [stream[begin:begin + NUM] for begin in (0, NUM, 2 * NUM)]
  assert [sorted(epoch) for epoch in epochs] == [list(range(NUM))] * 3
  assert epochs[0] != epochs[1] != epochs[2]
  assert sum(take(kind, 'split', 1), []) == stream[:8 * BATCH]
  # With another batch size from there on, after 80 examples in 5 steps.
  resumed = take(kind, 'next', 3, first_step=5, num_steps=2, batch_size=20,
                 point=ResumePoint(5, 80, *divmod(80, NUM)))
  assert sum(resumed, []) == stream[80:120]


@pytest.mark.parametrize('of_batches', [True, False])
def test_draws_know_the_epoch_of_each_example(of_batches):
  """Of a batch over two epochs, each example draws by its own."""
  def draws_of(batch_size):
    def change(example, draws):
      number, = example
      return tf.cast(number, tf.float32) + draws.uniform(),

    examples = towers.augmented(towers.from_arrays((np.arange(NUM),)), change,
                                of_batches=of_batches)
    return np.concatenate([numbers for [((numbers,), _)] in taking.take(
        examples, batch_size=batch_size, num_steps=12 * BATCH // batch_size, shuffle=True,
        last_batch='carry')])

  one_by_one = draws_of(1)
  np.testing.assert_array_equal(draws_of(BATCH), one_by_one)
  assert len(set(one_by_one)) == len(one_by_one)  # None twice, in four epochs.


def test_batches_by_length_are_not_carried():
  plan = build_plan(num_examples=NUM, batch_size=BATCH, num_towers=1, last_batch='carry')
  with tf.Graph().as_default(), pytest.raises(UsageError, match='last_batch=carry.*use .*=keep'):
    build_inputs(bucketed_examples(NUM), plan=plan)


def normed(batch, is_training):
  features, labels = batch
  return small.model((batch_norm(features, is_training, name='norm'), labels), is_training)


def train(folder, steps=None, *, epochs=None, batch_size=8, last_batch='carry', **settings):
  """Trains to a step; returns the result, the last checkpoint's values, and when it validated."""
  recorder, settings = small.Recorder(), settings if epochs else dict(settings, validation=None)
  program = small.program(normed, batch_size=batch_size, last_batch=last_batch, batch_norm='sync',
                          shuffle=True, **settings)
  result = towers.train(program, steps=steps, epochs=epochs, checkpoint_dir=str(folder),
                        quiet=True, callbacks=[recorder])
  return result, small.read_checkpoint(folder), [step for step, _ in recorder.validations]


@pytest.mark.nightly(but='shard')
@pytest.mark.parametrize('shape', [
    dict(num_towers=3, input_mode='shard'), dict(num_towers=2, input_mode='next')],
    ids=['shard', 'next'])
def test_a_run_resumed_in_another_shape_is_the_same(shape, tmp_path):
  expected, weights, _ = train(tmp_path / 'one', 7, num_towers=1)
  train(tmp_path / 'two', 3, num_towers=1)
  result, others, _ = train(tmp_path / 'two', 7, **shape)
  assert result['examples_seen'] == expected['examples_seen'] == 56
  assert result['train_loss'] == pytest.approx(expected['train_loss'], abs=1e-5)
  small.assert_same_weights(others, weights)


def test_what_counts_epochs_counts_examples(tmp_path):
  """Four epochs of 13 in batches of 8 end in steps 2, 4, 5 and 7; of 5 from step 4 on, in 8, 10."""
  result, _, validated = train(tmp_path / 'one', epochs=4, num_towers=1)
  assert (result['global_step'], validated) == (7, [2, 4, 5, 7])
  assert result['validation_examples'] == 11
  _, _, validated = train(tmp_path / 'two', epochs=2, num_towers=1)
  result, _, others = train(tmp_path / 'two', epochs=4, batch_size=5, num_towers=2)
  assert (result['global_step'], validated + others) == (8, [2, 4, 6, 8])
  assert result['examples_seen'] == 52


def test_a_run_that_carries_goes_on_as_one_that_does_not_and_back(tmp_path):
  """Two of 13 examples are left; a batch of 5, as an epoch of 13 ends with, goes into the next."""
  train(tmp_path, 3, num_towers=1)
  result, _, _ = train(tmp_path, 4, last_batch='keep', num_towers=1)
  assert result['examples_seen'] == 29
  result, _, _ = train(tmp_path, 6, batch_size=5, num_towers=2)
  assert result['examples_seen'] == 39
