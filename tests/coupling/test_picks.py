"""Examples by their place in a batch: named where they meet others, and nowhere else."""

import numpy as np
import pytest

from tensorflow_v1 import tf
from tests.coupling.picks import EXACT, MIXED, SILENT, STATIC, UNKNOWN
from tests.coupling.test_follow import X, Y, build, name
from towers.coupling.follow import follow
from towers.coupling.values import Mixed

# Each TensorFlow has ops of its own.
pytestmark = pytest.mark.nightly

GROUPS = {'exact': EXACT, 'mixed': {**MIXED, **STATIC}, '': {**UNKNOWN, **SILENT}}
MODELS = {key: model for group in GROUPS.values() for key, model in group.items()}


def run(model, num_rows):
  """Returns the mean loss of the first eight examples in batches of one size, and its value."""
  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(1)
    batch, loss = build(model, num_rows)
    [value] = follow(batch, [loss], num_rows=num_rows, most_rows=num_rows)
    session.run(tf.global_variables_initializer())
    return np.mean([np.mean(session.run(loss, dict(zip(batch, (
        X[begin:begin + num_rows], Y[begin:begin + num_rows])))))
                    for begin in range(0, 8, num_rows)]), value


@pytest.mark.parametrize('model', MODELS)
def test_a_batch_of_one_size_is_mixed_only_if_a_run_shows_it(model):
  (one, value), (two, _) = run(MODELS[model], 8), run(MODELS[model], 4)
  assert np.isclose(one, two, rtol=1e-5) == (model in EXACT or model in UNKNOWN)
  assert isinstance(value, Mixed) == (model in GROUPS['mixed'])
  assert not name(value) or model in GROUPS[name(value)]


@pytest.mark.parametrize('model', [model for model in MODELS if model not in STATIC])
def test_batches_of_any_size_are_told_apart(model):
  with tf.Graph().as_default():
    batch, loss = build(MODELS[model])
    assert model in GROUPS[name(follow(batch, [loss], most_rows=8)[0])]


@pytest.mark.parametrize('model', [
    'less_the_first', 'less_the_first_that_is_kept', 'plus_the_last', 'less_some_of_the_first',
    'similar_to_the_first', 'neighbours', 'rolled_by_concat'])
def test_one_example_is_all_there_is_of_a_batch_of_one(model):
  for settings in (dict(num_rows=1, most_rows=1), dict(most_rows=1), dict()):
    with tf.Graph().as_default():
      batch, loss = build(MIXED[model], settings.get('num_rows'))
      assert not isinstance(follow(batch, [loss], **settings)[0], Mixed)
