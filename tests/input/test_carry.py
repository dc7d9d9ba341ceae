"""The rest of an epoch goes into the next one's first batch: full batches, each example once."""

import functools
import itertools

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.harness import small
from tests.input.test_shapes import KINDS, POINTS, SEED, bucketed_examples
from towers.base.usage_error import UsageError
from towers.input.plan import build_plan
from towers.tower.batch_norm_layer import batch_norm

NUM, BATCH = 53, 16


def take(kind, mode, num_towers, num_workers, accumulate=1, *, first_step=0, num_steps=8,
         batch_size=BATCH, offset=0):
  """Returns what all workers take in each step, in order, and the sizes of the towers' batches."""
  steps, sizes = [[] for _ in range(num_steps)], set()
  for rank in range(num_workers):
    with tf.Graph().as_default():
      plan = build_plan(num_examples=NUM, batch_size=batch_size, num_towers=num_towers,
                        accumulate=accumulate, num_workers=num_workers, rank=rank,
                        last_batch='carry')
      inputs = towers.build_inputs(KINDS[kind](NUM), plan=plan, mode=mode, shuffle=True, seed=SEED)
      batches = inputs.next_batches()
      with tf.Session() as session:
        session.run(inputs.initializer, inputs.feed_dict(first_step, offset))
        for step in steps:
          for _ in range(accumulate):
            found = session.run([batch.tensors for batch in batches])
            step += np.concatenate(found).tolist()
            sizes.add((rank, tuple(map(len, found))))
      assert num_workers > 1 or all(batch.is_static for batch in batches)
  return [sorted(step) for step in steps], sizes


@functools.lru_cache(None)
def stream(kind):
  """Returns the examples of three epochs one by one."""
  return sum(take(kind, 'split', 1, 1, num_steps=3 * NUM, batch_size=1)[0], [])


def cut(kind, begin, size, count):
  edges = range(begin, begin + count * size, size)
  return [sorted(stream(kind)[edge:edge + size]) for edge in edges]


KIND_NAMES = ['indices', 'rows', 'elements', 'buffered']


@pytest.mark.parametrize('kind', KIND_NAMES)
def test_each_example_comes_once_an_epoch_in_a_new_order(kind):
  epochs = [stream(kind)[begin:begin + NUM] for begin in (0, NUM, 2 * NUM)]
  assert [sorted(epoch) for epoch in epochs] == [list(range(NUM))] * 3
  assert epochs[0] != epochs[1] != epochs[2]
  if kind in ('indices', 'rows'):
    plan = build_plan(num_examples=NUM, batch_size=BATCH, num_towers=1, last_batch='carry')
    assert sum((plan.indices_at(step, seed=SEED).tolist() for step in range(8)), []) == (
        stream(kind)[:8 * BATCH])


PLACES = [(kind,) + point + (1 + (point[1] * point[2] <= BATCH // 2 and number % 2),)
          for number, (kind, point) in enumerate(zip(itertools.cycle(KIND_NAMES), POINTS))]


@pytest.mark.parametrize('kind, mode, num_towers, num_workers, accumulate', small.nightly_but(
    [PLACES[index] for index in (2, 9, 15)], PLACES))
def test_any_shape_takes_full_batches_from_any_step_on(kind, mode, num_towers, num_workers,
                                                       accumulate):
  place = kind, mode, num_towers, num_workers, accumulate
  steps, sizes = take(*place)
  assert steps == cut(kind, 0, BATCH, 8)
  assert len(sizes) == num_workers  # One shape for each tower of each worker.
  for first_step in (3, 5):  # An epoch ends in a batch, and has ended in the batch before.
    assert take(*place, first_step=first_step, num_steps=2)[0] == steps[first_step:first_step + 2]
  # With another batch size from there on, after 80 examples in 5 steps.
  assert take(*place, first_step=5, num_steps=2, batch_size=20, offset=-20)[0] == (
      cut(kind, 80, 20, 2))


@pytest.mark.parametrize('of_batches', [True, False])
def test_draws_know_the_epoch_of_each_example(of_batches):
  """Of a batch over two epochs, each example draws by its own."""
  def draws_of(batch_size):
    def change(example, draws):
      number, = example
      return tf.cast(number, tf.float32) + draws.uniform(),

    examples = towers.augmented(towers.from_arrays((np.arange(NUM),)), change,
                                of_batches=of_batches)
    with tf.Graph().as_default(), tf.Session() as session:
      plan = build_plan(num_examples=NUM, batch_size=batch_size, num_towers=1, last_batch='carry')
      inputs = towers.build_inputs(examples, plan=plan, shuffle=True)
      batch, = inputs.next_batches()
      session.run(inputs.initializer, inputs.feed_dict(0))
      taken = [session.run(batch.tensors[0]) for _ in range(12 * BATCH // batch_size)]
    return np.concatenate(taken)

  one_by_one = draws_of(1)
  np.testing.assert_array_equal(draws_of(BATCH), one_by_one)
  assert len(set(one_by_one)) == len(one_by_one)  # None twice, in four epochs.


def test_batches_by_length_are_not_carried():
  plan = build_plan(num_examples=NUM, batch_size=BATCH, num_towers=1, last_batch='carry')
  with tf.Graph().as_default(), pytest.raises(UsageError, match='last_batch=carry.*use .*=keep'):
    towers.build_inputs(bucketed_examples(NUM), plan=plan)


class Taken:
  """A model with batch normalisation that records which examples it trains on."""

  def __init__(self):
    self.ids = []

  def __call__(self, batch, is_training):
    numbers, features, labels = batch
    recorded = tf.py_func(lambda ids: [self.ids.extend(ids), ids][1], [numbers], tf.int64)
    with tf.control_dependencies([recorded]):
      features = batch_norm(tf.identity(features), is_training, name='norm')
    losses, metrics = small.model((features, labels), is_training)
    return losses, metrics


def train(folder, steps=None, *, epochs=None, batch_size=8, last_batch='carry', **settings):
  """Trains to a step; returns the model, the result, the final weights and the validations."""
  rows = np.random.RandomState(0)
  train, validation = (
      towers.from_arrays((np.arange(size), rows.normal(size=[size, small.NUM_FEATURES]).astype('f'),
                          rows.randint(small.NUM_CLASSES, size=size).astype('i')), name=name)
      for name, size in (('train', 13), ('validation', 11)))
  model, validated = Taken(), []

  class Validated(towers.Callback):
    def on_validation(self, run):
      validated.append(run.step)

  with tf.Graph().as_default():
    program = towers.Program(
        model, train=train, validation=validation if epochs else None, batch_size=batch_size,
        optimizer=tf.train.MomentumOptimizer(0.1, 0.9), last_batch=last_batch, batch_norm='sync',
        device='cpu', **settings)
    result = towers.train(program, steps=steps, epochs=epochs, checkpoint_dir=str(folder),
                          quiet=True, callbacks=[Validated()])
    with program.session() as session:
      session.restore(str(folder))
      weights = dict(zip([variable.op.name for variable in tf.trainable_variables()],
                         session.tf_session.run(tf.trainable_variables())))
  return model.ids, result, weights, validated


@pytest.mark.parametrize('shape', [
    dict(num_towers=3, input_mode='shard'), dict(num_towers=2, input_mode='next')],
    ids=['shard', 'next'])
def test_a_run_resumed_in_another_shape_is_the_same(shape, tmp_path):
  _, expected, weights, _ = train(tmp_path / 'one', 7, num_towers=1)
  train(tmp_path / 'two', 3, num_towers=1)
  _, result, others, _ = train(tmp_path / 'two', 7, **shape)
  assert result['examples_seen'] == expected['examples_seen'] == 56
  assert result['train_loss'] == pytest.approx(expected['train_loss'], abs=1e-5)
  small.assert_same_weights(others, weights)


def test_what_counts_epochs_counts_examples(tmp_path):
  """Four epochs of 13 in batches of 8 end in steps 2, 4, 5 and 7; of 5 from step 4 on, in 8, 10."""
  _, result, _, validated = train(tmp_path / 'one', epochs=4, num_towers=1)
  assert (result['global_step'], validated) == (7, [2, 4, 5, 7])
  assert result['validation_examples'] == 11
  _, _, _, validated = train(tmp_path / 'two', epochs=2, num_towers=1)
  _, result, _, others = train(tmp_path / 'two', epochs=4, batch_size=5, num_towers=2)
  assert (result['global_step'], validated + others) == (8, [2, 4, 6, 8])
  assert result['examples_seen'] == 52


def test_a_batch_size_changes_where_the_rest_is_carried_alone(tmp_path):
  train(tmp_path, 3, num_towers=1)
  with pytest.raises(UsageError, match='seen 24 examples.*last_batch.*written with.*=carry'):
    train(tmp_path, 5, last_batch='keep', num_towers=1)
  train(tmp_path / 'kept', 3, last_batch='keep', num_towers=1)
  with pytest.raises(UsageError, match='seen 21 examples.*batch_size=5 they would be 13'):
    train(tmp_path / 'kept', 5, batch_size=5, num_towers=1)
  # From where a run without it has come, each example comes once an epoch all the same.
  _, result, _, _ = train(tmp_path / 'kept', 5, num_towers=1)
  assert result['examples_seen'] == 37
