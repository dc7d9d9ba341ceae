"""The check agrees with models that are right, and names what is to blame in those that are not."""

import numpy as np
import pytest

import towers
from models.batch_norm import batch_norm
from tensorflow_v1 import tf
from tests.towers import small
from usage_error import UsageError


def check(model, **settings):
  return towers.check(model, small.random_examples(50), **dict(dict(num_towers=3, batch_size=8), **settings))


def centred(batch, is_training):
  """Takes the mean over the batch away, so that an example's loss depends on the others."""
  features, labels = batch
  hidden = small.dense(features, 4, 'hidden')
  shifted = hidden - tf.reduce_mean(hidden, 0)  # THE LINE TO BLAME
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=small.dense(shifted, 3, 'logits'))


def normalised(batch, is_training):
  features, labels = batch
  x = batch_norm(small.dense(features, 4, 'hidden'), is_training, name='norm')
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=small.dense(x, 3, 'logits'))


def dropped(batch, is_training):
  losses, metrics = small.model(batch, is_training)
  return losses * (tf.nn.dropout(tf.ones_like(losses), rate=0.5) if is_training else 1.0), metrics


def scalar_sum(batch, is_training):
  """A scalar that is the sum, where the mean is meant."""
  losses, _ = small.model(batch, is_training)
  return tf.reduce_sum(losses)


@pytest.mark.parametrize('num_towers', [1, 2, 3, 8])
def test_a_right_model_agrees(num_towers):
  report = check(small.model, num_towers=num_towers)
  assert report.agrees and report.causes == []
  names = [row.name for row in report.rows]
  assert names[0] == 'loss' and 'gradient of hidden/weights' in names and 'logits/biases' in names and len(names) == 9
  assert 'are one tower' in report.format() and 'DIFFERS' not in report.format()


def test_an_op_over_the_batch_is_named_with_its_line():
  report = check(centred)
  assert not report.agrees
  with open(__file__) as file:
    line = 1 + [number for number, text in enumerate(file) if text.rstrip().endswith('# THE LINE TO BLAME')][0]
  assert 'sub' in report.causes[0] and 'test_check.py, line %d' % line in report.causes[0]
  assert 'NOT one tower' in report.format()


def test_batch_normalisation_is_named_and_sync_agrees():
  report = check(normalised)
  assert not report.agrees and 'norm' in report.causes[0] and 'batch_norm=sync' in report.causes[0]
  assert check(normalised, batch_norm='sync').agrees


def test_random_ops_are_named_and_the_rest_agrees_without_them():
  report = check(dropped)
  assert not report.agrees and report.draws
  assert 'dropout' in report.causes[0] and 'is_training=False' in report.causes[0]
  assert check(dropped, is_training=False).agrees


def test_a_wrong_sum_is_told_from_a_wrong_model():
  report = check(scalar_sum)
  assert not report.agrees and 'how they are added up' in report.causes[0]


def test_numbers_that_are_none_do_not_agree():
  def model(batch, is_training):
    losses, metrics = small.model(batch, is_training)
    # No number in one tower of three alone; its gradient is none in all.
    return tf.where(tf.equal(tf.shape(losses)[0], 2), losses * np.nan, losses), metrics

  assert not check(model).agrees


def test_towers_that_share_nothing_are_an_error_already():
  built = []

  def model(batch, is_training):
    built.append(batch)
    losses, metrics = small.model(batch, is_training)
    return losses * tf.get_variable('gain_%d' % len(built), []), metrics

  with pytest.raises((UsageError, ValueError), match='gain'):
    check(model)
