"""Dropout masks differ per tower and step, repeat with the seed, and resume where they stopped."""

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.towers import small
from tests.towers.small import Run

MASKS = 'masks'


def model(batch, is_training):
  losses, metrics = small.model(batch, is_training)
  mask = tf.nn.dropout(tf.ones([64]), rate=0.5)
  tf.add_to_collection(MASKS, mask)
  return losses * tf.reduce_mean(mask), metrics


def draw(num_steps=3, first_step=0, seed=5, **settings):
  """Returns the masks `[steps, towers, 64]` of a run's steps."""
  with Run(model=model, num_towers=3, seed=seed, **settings) as run:
    masks = run.graph.get_collection(MASKS)
    with run.graph.as_default():
      run.session.run(towers.get_global_step().assign(first_step))
    return np.array([run.session.run([masks, run.program.train_op, run.program.train.put_ops])[0]
                     for _ in range(num_steps)])


def test_masks_differ_per_tower_and_step_and_repeat_with_the_seed():
  masks = draw()
  flat = masks.reshape(-1, 64)
  assert len({row.tobytes() for row in flat}) == len(flat) == 9
  np.testing.assert_array_equal(masks, draw())
  assert (masks != draw(seed=6)).any()


@pytest.mark.parametrize('settings', [dict(mode='shard'), dict(depth=2), dict(placement='balanced'),
                                      dict(train=small.random_examples(16))])
def test_masks_do_not_depend_on_how_the_graph_was_built(settings):
  np.testing.assert_array_equal(draw(), draw(**settings))


def test_a_resumed_run_draws_what_the_uninterrupted_run_had_drawn():
  np.testing.assert_array_equal(draw(num_steps=5)[3:], draw(num_steps=2, first_step=3))


def test_a_random_op_in_a_branch_is_tied_to_the_step_too():
  def branching(batch, is_training):
    losses, metrics = small.model(batch, is_training)
    noise = tf.cond(tf.greater(tf.reduce_sum(batch[0]), -1e9), lambda: tf.random.normal([8]), lambda: tf.zeros([8]))
    tf.add_to_collection(MASKS, noise)
    return losses + tf.reduce_sum(noise), metrics

  with Run(model=branching, num_towers=2, depth=0) as run:
    first, second = run.session.run(run.graph.get_collection(MASKS)), run.session.run(run.graph.get_collection(MASKS))
    np.testing.assert_array_equal(first, second)
    assert (first[0] != first[1]).all() and np.abs(first).min() > 0
