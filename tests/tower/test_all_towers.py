"""Values of all towers inside of a model, and several losses: in sessions, and what is refused."""

import re
import weakref

import numpy as np
import pytest

import towers
from tests.harness import small
from tests.test_towers_equal_one import contrasted, counted, several
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf
from towers.tower.all_towers import all_rows, all_sum
from towers.tower.batch_norm.layer import batch_norm

NUM_STEPS = 5
WEIGHT = []
# The third batch has five rows.
TRAIN, VALIDATION = small.random_examples(21), small.random_examples(9, 'validation', seed=1)


def train(model, **settings):
  """Returns losses, weights and what validation measures."""
  settings = {**dict(validation=VALIDATION), **settings}
  with small.Run(model=model, train=TRAIN, **settings) as run:
    losses = [run.train() for _ in range(NUM_STEPS)]
    small.assert_moved(run.initial_weights, run.weights())
    return losses, run.weights(), run.validate()[0]


def test_several_losses_are_the_sum_of_their_means():
  def listed(batch, is_training):
    losses, _ = small.model(batch, is_training)
    return [towers.Weighted(losses, tf.nn.relu(batch[0])[:, 0]), tf.square(losses)]

  def by_hand(batch, is_training):
    losses, _ = small.model(batch, is_training)
    weights = tf.nn.relu(batch[0])[:, 0]
    return tf.reduce_sum(weights * losses) / tf.reduce_sum(weights) + tf.reduce_mean(
        tf.square(losses))

  (losses, weights, measured), expected = [
      train(model, num_towers=1) for model in (listed, by_hand)]
  np.testing.assert_allclose(losses, expected[0], atol=1e-6)
  small.assert_same_weights(weights, expected[1])
  assert set(measured) == {'loss', 'loss_1', 'loss_2'}
  # Over the whole split each is divided by its own weights.
  assert measured['loss'] == pytest.approx(measured['loss_1'] + measured['loss_2'])


@pytest.mark.parametrize('num_towers', [2, 3])
def test_scalars_among_several_losses_are_means_over_the_batch(num_towers):
  def named(batch, is_training):
    losses, _ = small.model(batch, is_training)
    weights = tf.nn.relu(batch[0])[:, 0]
    return {'mean': tf.reduce_mean(losses), 'rows': tf.square(losses),
            'words': towers.Weighted(losses, weights)}

  found, expected = [train(named, num_towers=number) for number in (num_towers, 1)]
  np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
  small.assert_same_weights(found[1], expected[1])
  assert found[2] == pytest.approx(expected[2])
  parts = [found[2][name] for name in ('mean', 'rows', 'words')]
  assert found[2]['loss'] == pytest.approx(sum(parts))


def in_a_branch(total):
  return tf.cond(tf.random.uniform([]) > 0, lambda: tf.gradients(total, WEIGHT)[0], lambda: total)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize('make, message', [
    (lambda b: [b[0]], r"'loss_1' of the model has the shape \(\?, 5\)"),
    (lambda b: ([b[0][:, 0]], {'loss_1': b[0][:, 0]}), "called 'loss_1', which"),
    (lambda b: [3.0], 'a dict for its loss|a list for its loss'),
    (lambda b: towers.Weighted(b[0], b[0]) + b[0][:, 0], 'return a list'),
    (lambda b: all_sum(b[0]), r'got the shape \(\?, 5\)'),
    (lambda b: all_sum(tf.constant('a')), 'got string: cast it'),
    (lambda b: all_rows(tf.reduce_sum(b[0])), r'all_rows got the shape \(\)'),
    (lambda b: tf.map_fn(lambda x: all_sum(tf.reduce_sum(x)), b[0]), 'within a loop'),
    (lambda b: b[0][:, 0] * in_a_branch(all_sum(tf.square(WEIGHT[0]))),
     "towers.all_sum's gradient is called within a loop or a branch"),
    # As an Estimator takes them; this pair is a value and an op.
    (lambda b: (b[0][:, 0], {'mean': tf.metrics.mean(b[0])}),
     'The metric mean is a tuple: return one value per example')])
def test_what_cannot_be_joined_is_refused(make, message):
  def model(batch, is_training):
    WEIGHT[:] = [tf.convert_to_tensor(tf.get_variable('weight', []))]
    return make(batch)

  with pytest.raises(UsageError, match=message):
    train(model, num_towers=2)


_kept = weakref.WeakKeyDictionary()


def in_a_kept_layer(compute):
  """Returns a model with a layer that all towers call, and whose ops the first one names."""
  class Layer(tf.layers.Layer):
    def call(self, x):
      return compute(x)

  def model(batch, is_training):
    graph = tf.get_default_graph()
    layer = _kept.get(graph) or _kept.setdefault(graph, Layer(name='kept'))
    losses, _ = small.model(batch, is_training)
    return losses * layer(small.dense(batch[0], 3, 'extra'))[:, 0]

  return model


def share(x):
  return x / (1 + all_sum(tf.reduce_sum(tf.square(x), 0))) / (
      1 + all_sum(tf.reduce_sum(tf.abs(x)))) + 1


def center(x):
  x = tf.tanh(x)
  return x - tf.reduce_mean(all_rows(x), 0)


def normalize(x):
  return batch_norm(tf.tanh(x), True, name='norm')


def in_a_scope_of_its_own(batch, is_training):
  losses, _ = small.model(batch, is_training)
  with tf.name_scope('head/'):
    return losses * share(small.dense(batch[0], 3, 'extra'))[:, 0]


ELSEWHERE = {
    'sums': in_a_kept_layer(share),
    'rows': in_a_kept_layer(center),
    'moments': in_a_kept_layer(normalize),
    'scope': in_a_scope_of_its_own}


@pytest.mark.parametrize('model, num_towers', small.nightly_but(
    [(model, 2) for model in ELSEWHERE],
    [(model, number) for model in ELSEWHERE for number in (2, 3)]))
def test_sums_are_of_all_towers_whatever_their_ops_are_named_after(model, num_towers, capsys):
  model = ELSEWHERE[model]
  found = train(model, num_towers=num_towers, batch_norm='sync')
  expected = train(model, num_towers=1)
  np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
  small.assert_same_weights(found[1], expected[1])
  assert found[2] == pytest.approx(expected[2])
  assert 'not measured' not in capsys.readouterr().out


def penalized(batch, is_training):
  """Penalises gradients through rows and sums of all towers, of which it looks entries up."""
  features, labels = batch
  losses, _ = small.model(batch, is_training)
  x = tf.tanh(small.dense(features, 3, 'extra'))
  rows, places = all_rows(x, with_places=True)
  y = tf.gather(tf.tanh(rows - tf.reduce_mean(tf.square(rows), 0)), places)
  y *= tf.gather(all_sum(tf.reduce_sum(y, 0)), labels)[:, None]
  [gradients] = tf.gradients(tf.reduce_sum(tf.square(y)), x)
  return losses + 0.01 * tf.reduce_sum(tf.square(gradients), 1)


@pytest.mark.parametrize('settings', small.nightly_but([{}], [
    {}, dict(tower_build='clone', mode='next'), dict(last_batch='drop', mode='shard'),
    dict(placement='replicated', validation_tower=True)]), ids=str)
@pytest.mark.parametrize('num_towers', [2, 3])
def test_second_derivatives_are_those_of_one_tower(num_towers, settings):
  found = train(penalized, num_towers=num_towers, **settings)
  expected = train(penalized, num_towers=1, last_batch=settings.get('last_batch', 'keep'))
  np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
  small.assert_same_weights(found[1], expected[1])
  assert found[2] == pytest.approx(expected[2], abs=1e-5)


def test_gradients_of_a_step_are_not_differentiated_again():
  program = small.program(penalized, num_towers=2)
  with program.graph.as_default(), pytest.raises(UsageError, match='tf.gradients within the model'):
    tf.gradients(program.gradients.gradients, tf.trainable_variables())


def test_moments_in_a_kept_layer_are_the_mean_of_all_towers():
  def kept_nowhere(batch, is_training):
    losses, _ = small.model(batch, is_training)
    return losses * normalize(small.dense(batch[0], 3, 'extra'))[:, 0]

  kept, expected = [], []
  for model, variables in ((in_a_kept_layer(normalize), kept), (kept_nowhere, expected)):
    with small.Run(model=model, train=TRAIN, num_towers=2, batch_norm='mean') as run:
      run.train()
      variables += [value for name, value in sorted(run.variables().items()) if 'moving' in name]
  np.testing.assert_array_equal(kept, expected)


def is_first():
  return not tf.get_variable_scope().reuse


def once_more(x):
  return all_sum(tf.reduce_sum(x)) + (all_sum(tf.reduce_sum(x), name='once') if is_first() else 0)


def in_two_places(x):
  if is_first():
    with tf.name_scope('one'):
      return all_sum(tf.reduce_sum(x))
  return all_sum(tf.reduce_mean(x), name='other')


def in_a_longer_loop(x):
  return tf.add_n([all_sum(tf.reduce_sum(x), name='turn') for _ in range(2 + is_first())])


def stopped_in_others(x):
  total = all_sum(tf.reduce_sum(x))
  return total if is_first() else tf.stop_gradient(total)


def norm_of_one(x):
  y = normalize(x)
  return batch_norm(y, True, name='two') if is_first() else y


PARTIAL = [(once_more, {}, 'values of tower_0/once'),
           (in_two_places, {}, 'values of tower_0/one/all_sum'),
           (in_a_longer_loop, {}, 'values of tower_0/turn_2'),
           (stopped_in_others, {}, 'gradients of tower_0/all_sum'),
           (norm_of_one, dict(batch_norm='mean'), 'values of tower_0/two/batch_mean'),
           (norm_of_one, dict(batch_norm='sync'), 'values of tower_0/two/sums')]


@pytest.mark.parametrize('compute, settings, what', PARTIAL, ids=[what for *_, what in PARTIAL])
def test_what_only_some_towers_have_is_refused(compute, settings, what):
  def model(batch, is_training):
    losses, _ = small.model(batch, is_training)
    return losses * tf.reduce_sum(compute(small.dense(batch[0], 3, 'extra')))

  line = compute.__code__.co_firstlineno
  with pytest.raises(UsageError) as refused:
    train(model, num_towers=3, validation=None, **settings)
  found = re.match(rf'The {what}, made in tests/tower/test_all_towers.py, line (\d+), are to be '
                   'joined over all towers, but tower_0 has them and tower_1, tower_2 does not. ',
                   str(refused.value))
  assert found and line < int(found.group(1)) <= line + 5, refused.value
  assert 'total = towers.all_sum(' in str(refused.value)


def test_rows_that_fill_a_batch_are_in_no_sum():
  with pytest.raises(UsageError, match='last_batch=pad .* loss depends on them'):
    train(counted, num_towers=2, last_batch='pad')


@pytest.mark.parametrize('num_towers', [2, 3])
def test_rows_of_batches_of_one_size_are_a_number(num_towers, capsys):
  def mined(batch, is_training):
    losses, _ = small.model(batch, is_training)
    rows = all_rows(losses)
    number = rows.shape.as_list()[0]
    return tf.reduce_sum(tf.nn.top_k(rows * tf.ones([number]), 5).values) / float(number)

  runs = []
  for number in (num_towers, 1):
    with small.Run(model=mined, train=TRAIN, num_towers=number, last_batch='drop') as run:
      runs.append(([run.train() for _ in range(NUM_STEPS)], run.weights()))
  assert 'No example depends on others of its batch' in capsys.readouterr().out
  (losses, weights), expected = runs
  np.testing.assert_allclose(losses, expected[0], atol=1e-6)
  small.assert_same_weights(weights, expected[1])


def test_a_session_evaluates_other_examples_as_one_tower_would():
  measured = []
  for num_towers in (1, 3):
    with small.Run(num_towers=num_towers, model=contrasted, train=TRAIN) as run:
      measured.append(run.opened.evaluate(small.random_examples(13, 'other', seed=2)))
  assert measured[1] == pytest.approx(measured[0], abs=1e-5)


def test_micro_batches_of_losses_with_weights_are_refused():
  with pytest.raises(UsageError, match='accumulate=2 .* first, second, third'):
    train(several, num_towers=2, accumulate=2)


@pytest.mark.parametrize('model, num_towers', [(counted, 2), (counted, 1), (contrasted, 1)])
@pytest.mark.parametrize('accumulate', [1, 2])
def test_micro_batches_of_values_of_all_towers_alone_are_warned_of(accumulate, model, num_towers,
                                                                   caplog):
  train(model, num_towers=num_towers, accumulate=accumulate)
  assert ('those of a micro-batch, of which a step has 2' in caplog.text) == (accumulate == 2)
  assert (not caplog.records) == (accumulate == 1)


@pytest.mark.parametrize('model', small.nightly_but([counted], [counted, contrasted]))
@pytest.mark.parametrize('num_rows', small.nightly_but([24], [24, 21]))
def test_the_check_finds_that_towers_equal_one(model, num_rows):
  # Of 24 rows all batches have one size, which models may build in.
  report = towers.check(model, small.random_examples(num_rows), num_towers=2, batch_size=8,
                        num_steps=3)
  assert report.agrees, report.format()
