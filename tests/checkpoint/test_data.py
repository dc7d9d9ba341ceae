"""A run resumes on the data that its checkpoint was written on, or names what differs."""

import contextlib
import re

import numpy as np
import pytest

import towers
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import Checkpoints
from towers.checkpoint.restore import Data
from towers.input.plan import LAST_BATCHES, build_plan
from towers.input.resume_point import Order
from towers.tensorflow_v1 import tf

random = np.random.RandomState(0)
ROWS, LABELS = random.randn(96, 4).astype('f'), (np.arange(96) % 3).astype('i')
OTHERS = {
    'more': (ROWS, LABELS, '71 examples, where this run has 96'),
    'fewer': (ROWS[:40], LABELS[:40], '71 examples, where this run has 40'),
    'permuted': (ROWS[:71], LABELS[70::-1], 'as many examples, 71, of other content in array 2 of'),
    'fold': (ROWS[25:], LABELS[25:], 'as many examples, 71, of other content in array 1, 2 of 2')}
BEFORE, STEP, AFTER = 7, 7, 12  # In the second epoch of 71 examples.


def program(rows=ROWS[:71], labels=LABELS[:71], **settings):
  def model(batch, is_training):
    logits = tf.matmul(batch[0], tf.get_variable('weights', [4, 3]))
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch[1], logits=logits)
  return towers.Program(model, train=towers.from_arrays(rows.copy(), labels.copy()), batch_size=16,
                        num_towers=2, optimizer=tf.train.MomentumOptimizer(.05, .9), **settings)


def train(folder, steps, rows=ROWS[:71], labels=LABELS[:71], last_batch='keep', **own):
  with tf.Graph().as_default():
    return towers.train(program(rows, labels, last_batch=last_batch), steps=steps,
                        checkpoint_dir=str(folder), **own)


@pytest.mark.nightly(but='fold')
@pytest.mark.parametrize('other', sorted(OTHERS))
def test_other_data_is_refused_by_what_differs_unless_it_is_new(other, tmp_path, capsys):
  rows, labels, difference = OTHERS[other]
  train(tmp_path, BEFORE)
  with pytest.raises(UsageError, match=f'{re.escape(difference)}.*new_data=True'):
    train(tmp_path, AFTER, rows, labels)
  with tf.Graph().as_default(), program(rows, labels).session() as session:
    weights = session.run(tf.global_variables())
    with pytest.raises(UsageError, match=re.escape(difference)):
      session.restore(str(tmp_path))
    for before, now in zip(weights, session.run(tf.global_variables())):
      np.testing.assert_array_equal(before, now)
    session.restore(str(tmp_path), new_data=True)
    assert session.step == STEP
    slot, = [v for v in tf.global_variables() if v.op.name == 'weights/Momentum']
    assert np.abs(session.run(slot)).max() > 0

  capsys.readouterr()
  train(tmp_path, AFTER - 1, rows, labels, new_data=True)
  assert difference in capsys.readouterr().out
  # What it has saved is of the new data, with the setting and without.
  train(tmp_path, AFTER, rows, labels, new_data=True)
  train(tmp_path, AFTER + 1, rows, labels)
  assert 'new_data' not in capsys.readouterr().out
  with pytest.raises(UsageError, match='where this run has 71|of other content'):
    train(tmp_path, AFTER + 2)


NEW = np.arange(100, 153)
SHAPES = {
    'one': dict(num_towers=1),
    'next': dict(num_towers=2, input_mode='next', accumulate=2),
    'shard': dict(num_towers=3, input_mode='shard')}


@pytest.mark.nightly(but='carry-next')
@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('last_batch', LAST_BATCHES)
def test_new_data_begins_an_epoch_that_a_run_of_any_shape_ends(last_batch, shape, tmp_path):
  taken, weights = [], []

  def model(batch, is_training):
    recorded = tf.py_func(lambda ids: [taken.extend(ids), ids][1], [batch[0]], tf.int64)
    with tf.control_dependencies([recorded]):
      return tf.get_variable('weight', []) * tf.cast(batch[0], tf.float32) / 1000

  def go(numbers, steps, shape, **settings):
    with tf.Graph().as_default():
      program = towers.Program(model, train=towers.from_arrays(numbers), batch_size=16,
                               optimizer=tf.train.GradientDescentOptimizer(.01), device='cpu',
                               **{'last_batch': last_batch, **SHAPES[shape]})
      with program.session() as session:
        if weights:
          session.restore(str(tmp_path), **settings)
          assert session.run(tf.trainable_variables()) == weights[-1]
        taken.clear()
        while session.step < steps:
          session.train()
        weights.append(session.run(tf.trainable_variables()))
        session.save(str(tmp_path))
        return program.plan, session.plan, list(taken)

  go(np.arange(71), STEP, 'one', last_batch='keep')
  plan, begun, first = go(NEW, STEP + 2, shape, new_data=True)
  epoch, done = plan.epoch_and_index(STEP)
  epoch += done > 0
  assert begun.epoch_and_index(STEP) == (epoch, 0) and begun.steps_in(epoch) == STEP
  end = begun.steps_in(epoch + 1)
  _, resumed, second = go(NEW, end, 'next')
  assert resumed.offset == begun.offset
  expected = sum([NEW[plan.order(seed=0)(np.arange(plan.examples_per_epoch), at)].tolist()
                  for at in (epoch, epoch + 1)], [])
  num_taken = begun.examples_before(end) - begun.examples_before(STEP)
  for ids, count in ((first, 32), (first + second, num_taken)):
    ids = set(ids) if last_batch == 'pad' else ids  # Its rows that do not count repeat one.
    assert sorted(ids) == sorted(expected[:count])


def test_the_same_data_resumes_and_a_checkpoint_without_a_record_says_so(tmp_path, capsys):
  train(tmp_path / 'new', BEFORE)
  with tf.Graph().as_default(), program().session() as session:
    session.restore(str(tmp_path / 'new'))
    Checkpoints(str(tmp_path / 'old'), keep=1).save(session.snapshot())
  train(tmp_path / 'new', AFTER)
  assert 'training data' not in capsys.readouterr().out
  train(tmp_path / 'old', AFTER)
  assert 'does not record its training data' in capsys.readouterr().out


@pytest.mark.parametrize('seen, may_skip, words', [
    (21, False, ''), (24, False, 'seen 24 examples in 3 steps.*batch_size=8 they would be 21'),
    (20, False, 'resume with on_bad_record=skip'), (20, True, ''), (19, True, ''),
    (22, True, 'has seen 22'), (18, True, 'has seen 18'), (0, True, 'has seen 0')])
def test_steps_of_another_size_are_refused_but_for_damaged_examples(seen, may_skip, words):
  # Steps of 8 and of 5 examples.
  plan = build_plan(num_examples=13, batch_size=8, num_towers=2)
  with pytest.raises(UsageError, match=words) if words else contextlib.nullcontext():
    Data(None, plan, Order(None), may_skip=may_skip).check_steps(
        'model.ckpt-3', step=3, examples_seen=seen)
