"""Following the batch: a model is called exact, mixing or of another scale only if it is."""

import math

import numpy as np
import pytest

from models import build_logits
from tensorflow_v1 import tf
from tests.coupling.models import EXACT, MIXED, SCALED, UNKNOWN
from towers.coupling.follow import follow
from towers.coupling.values import Mixed, Rows, Total

# Each TensorFlow has ops of its own.
pytestmark = pytest.mark.nightly

GROUPS = {'exact': EXACT, 'mixed': MIXED, 'scaled': SCALED, '': UNKNOWN}
MODELS = {name: model for group in GROUPS.values() for name, model in group.items()}
X = np.random.RandomState(0).randn(9, 8).astype('float32')
Y = np.array([0, 3, 1, 2, 2, 0, 1, 3, 1], 'int32')


def build(model, num_rows=None):
  """Returns the batch, and the loss of the model."""
  batch = [tf.placeholder(tf.float32, [num_rows, 8]), tf.placeholder(tf.int32, [num_rows])]
  return batch, model(*batch)


def name(value):
  """Returns the group of models whose loss is this value, or '' where it is not known."""
  if isinstance(value, Mixed):
    return 'mixed'
  if not isinstance(value, (Rows, Total)) or math.isnan(value.power):
    return ''
  if isinstance(value, Rows):
    return 'scaled' if value.power else 'exact'
  return 'exact' if value.power == -1 else 'scaled'


@pytest.mark.parametrize('model', MODELS)
def test_the_graph_tells_what_a_run_shows(model):
  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(1)
    batch, loss = build(MODELS[model])
    [value] = follow(batch, [loss])
    session.run(tf.global_variables_initializer())

    def run(begin, end):
      return np.mean(session.run(loss, dict(zip(batch, (X[begin:end], Y[begin:end])))))

    is_exact = np.isclose(run(0, 9), (5 * run(0, 5) + 4 * run(5, 9)) / 9, rtol=1e-5)
  assert is_exact == (model in EXACT or model in UNKNOWN)
  assert model in GROUPS[name(value)]


@pytest.mark.parametrize('model', MODELS)
def test_a_batch_of_one_size_raises_no_false_alarm(model):
  with tf.Graph().as_default():
    batch, loss = build(MODELS[model], num_rows=5)
    [value] = follow(batch, [loss], num_rows=5)
  # Where a constant may stand for the number of rows, nothing is known.
  assert not name(value) or model in GROUPS[name(value)]
  assert name(value) or model not in MIXED


@pytest.mark.parametrize('divisor, expected', [(5, ''), (10, 'scaled'), (0.5, 'scaled')])
def test_a_sum_may_be_divided_by_a_constant_number_of_rows(divisor, expected):
  with tf.Graph().as_default():
    batch, loss = build(lambda x, y: tf.reduce_sum(x[:, 0]) / divisor, num_rows=5)
    assert name(follow(batch, [loss], num_rows=5)[0]) == expected


def test_an_unknown_factor_hides_no_mixture():
  factor = tf.placeholder_with_default
  with tf.Graph().as_default():
    batch, loss = build(lambda x, y: MIXED['in_batch_negatives'](x * factor(2.0, []), y), 5)
    assert name(follow(batch, [loss], num_rows=5)[0]) == 'mixed'


@pytest.mark.parametrize('model', ['lenet', 'convnet', 'resnet20'])
def test_nets_of_the_zoo_are_followed_to_their_end(model):
  with tf.Graph().as_default():
    images = tf.placeholder(tf.float32, [None, 32, 32, 3])
    is_training = tf.placeholder_with_default(True, [])
    logits = build_logits(model, num_classes=10)(images, is_training)
    assert follow([images], [logits]) == [Rows(0)]
