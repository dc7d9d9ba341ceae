"""A run resumes on the data that its checkpoint was written on, or names what differs."""

import contextlib
import re

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from towers.base.usage_error import UsageError
from towers.input.plan import LAST_BATCHES
from towers.training.saving.checkpoints import Checkpoints
from towers.training.saving.data import check_resume

random = np.random.RandomState(0)
ROWS, LABELS = random.randn(96, 4).astype('f'), (np.arange(96) % 3).astype('i')
OTHERS = {
    'more': (ROWS, LABELS, '71 examples, where this run has 96'),
    'fewer': (ROWS[:40], LABELS[:40], '71 examples, where this run has 40'),
    'permuted': (ROWS[:71], LABELS[70::-1], 'as many examples, 71, of other content in array 2 of'),
    'fold': (ROWS[25:], LABELS[25:], 'as many examples, 71, of other content in array 1, 2 of 2'),
}
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
                        checkpoint_dir=str(folder), quiet=True, **own)


@pytest.mark.nightly(but=['fewer', 'fold'])
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
    indices = session.program.plan.indices_at(STEP, seed=0)
    taken = session.run(session.program.batches[0].tensors)
    np.testing.assert_array_equal(taken[1], labels[indices][:len(taken[1])])

  capsys.readouterr()
  train(tmp_path, AFTER - 1, rows, labels, new_data=True)
  said = capsys.readouterr().out
  done = STEP % -(-len(rows) // 16)
  assert difference in said and f'after {done} of the {-(-len(rows) // 16)} steps' in said
  # What it has saved is of the new data, with the setting and without.
  train(tmp_path, AFTER, rows, labels, new_data=True)
  train(tmp_path, AFTER + 1, rows, labels)
  assert 'new_data' not in capsys.readouterr().out
  with pytest.raises(UsageError, match='where this run has 71|of other content'):
    train(tmp_path, AFTER + 2)


@pytest.mark.nightly(but='keep-carry')
@pytest.mark.parametrize('after', LAST_BATCHES)
@pytest.mark.parametrize('before', LAST_BATCHES)
def test_steps_on_new_data_count_as_this_run_takes_them(before, after, tmp_path):
  rows, labels, _ = OTHERS['fewer']
  train(tmp_path, BEFORE, last_batch=before)
  train(tmp_path, AFTER - 1, rows, labels, last_batch=after, new_data=True)
  result = train(tmp_path, AFTER, rows, labels, last_batch=after)
  with tf.Graph().as_default():
    plan = program(rows, labels, last_batch=after).plan
  assert result['examples_seen'] == plan.examples_before(AFTER)
  with pytest.raises(UsageError, match='other training data'):
    train(tmp_path, AFTER + 1, last_batch=after)


def test_the_same_data_resumes_and_a_checkpoint_without_a_record_says_so(
    tmp_path, capsys):
  train(tmp_path / 'new', BEFORE)
  with tf.Graph().as_default(), program().session() as session:
    session.restore(str(tmp_path / 'new'))
    Checkpoints(str(tmp_path / 'old'), keep=1, inputs=session.program.feed.inputs).save(
        session.tf_session)
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
  plan = towers.build_plan(num_examples=13, batch_size=8, num_towers=2)
  with pytest.raises(UsageError, match=words) if words else contextlib.nullcontext():
    check_resume('model.ckpt-3', step=3, examples_seen=seen, plan=plan, may_skip=may_skip)
