"""Towers share everything, weigh every example alike, and say so when a model cannot."""

import numpy as np
import pytest

import towers
from tests.harness import small
from tests.update.test_nan_guard import looked_up
from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed
from towers.input import pipeline
from towers.reduce.clip import build_gradient_norm, clip_gradients
from towers.reduce.gradients import ReducedGradients
from towers.tensorflow_v1 import tf


def test_a_model_that_does_not_share_its_variables_is_refused():
  built = []

  @small.with_losses
  def model(losses):
    built.append(losses)
    return losses * tf.Variable(1.0, name=f'gain_{len(built)}')

  with pytest.raises(UsageError) as error:
    small.Run(model=model, num_towers=2)
  assert 'gain' in str(error.value) and 'Tower 1' in str(error.value) and 'tf.get_variable' in str(
      error.value)


def test_a_batch_of_one_array_that_was_not_unpacked_is_named():
  def model(batch, is_training):
    weights = tf.get_variable('weights', [5])
    return tf.reduce_sum(batch * weights, -1), {}

  def build(model):
    return small.program(model, train=towers.from_arrays(np.ones([16, 5], np.float32)),
                         validation=None)

  with pytest.raises(UsageError, match=r'shape \(1, 4\).*tuple of one: unpack it'):
    build(model)
  assert build(lambda batch, is_training: model(batch[0], is_training)).towers


@pytest.mark.parametrize('asks', [False, True])  # In Python, so that validation calls it again.
@pytest.mark.parametrize('build', ['reuse', 'clone'])
def test_a_model_may_add_to_the_dict_of_its_batch_and_take_from_it(build, asks):
  def changing(batch, is_training):
    batch['ones'] = tf.ones_like(batch['x']) if asks and is_training else 1.0
    features, labels = batch.pop('x') * batch['ones'], batch.pop('more').pop('y')
    return small.model((features, labels), is_training)

  ways = []
  for model in changing, lambda batch, _: small.model((batch['x'], batch['more']['y']), False):
    examples = [small.random_examples(number).arrays for number in (16, 11)]
    train, validation = [towers.from_arrays({'x': x, 'more': {'y': y}}) for x, y in examples]
    with small.program(model, train=train, validation=validation,
                       tower_build=build).session() as session:
      ways.append([session.train(), session.train(), session.validate()['loss'],
                   session.evaluate(validation)['loss']])
  np.testing.assert_array_equal(*ways)


def test_a_model_without_variables_is_refused():
  with pytest.raises(UsageError, match='no trainable variable'):
    small.Run(model=lambda batch, is_training: tf.reduce_sum(batch[0], 1))


def test_a_variable_that_nothing_depends_on_is_listed_and_left_alone():
  def model(batch, is_training):
    tf.get_variable('idle', [2])
    return small.model(batch, is_training)

  with small.Run(model=model, num_towers=2) as run:
    assert 'idle' not in [variable.op.name for _, variable in run.program.gradients.gradients]
    run.train()
    np.testing.assert_array_equal(run.weights()['idle'], run.initial_weights['idle'])


def test_a_gradient_that_some_towers_lack_counts_as_zero_there_and_is_listed():
  built = []

  @small.with_losses
  def model(losses):
    built.append(losses)
    gain = tf.get_variable('gain', [], initializer=tf.zeros_initializer())
    return losses + gain if len(built) == 1 else losses

  with small.Run(model=model, num_towers=2, optimizer='sgd', learning_rate=1.0) as run:
    assert [variable.op.name for variable in run.program.gradients.partly_without_gradient] == [
        'gain']
    run.train()
    assert run.weights()['gain'] == pytest.approx(-0.5)  # 4 of 8 examples have a gradient of 1.


@pytest.mark.nightly(but='clone')
@pytest.mark.parametrize('build', ['reuse', 'clone'])
def test_an_empty_tower_touches_no_row_of_a_sparse_variable(build, monkeypatch):
  # The third batch has one example, of label 1, for three towers. The row that fills the others
  # looks up row 0, which momentum would move on.
  monkeypatch.setattr(pipeline, 'fill_empty', small.fill_with_nan)
  train = small.random_examples(17)
  train.arrays[1][:] = np.arange(17) % 3
  train.arrays[1][16] = 1
  settings = dict(model=looked_up, train=train, learning_rate=0.02)
  with small.Run(num_towers=3, tower_build=build, **settings) as run, small.Run(num_towers=1,
                                                                                **settings) as one:
    for _ in range(3):
      assert run.train() == pytest.approx(one.train(), abs=1e-4)
    small.assert_same_weights(run.weights(), one.weights())


def test_counters_count_updates_and_examples():
  with small.Run(num_towers=3, depth=2, validates=True) as run:
    # To start and warm up changes no variable.
    assert run.counters() == [0, 0]
    small.assert_same_weights(run.weights(), run.initial_weights, tolerance=0)
    for step, seen in enumerate([8, 13, 21, 26], 1):
      run.train()
      assert run.counters() == [step, seen]
    run.validate()
    assert run.counters() == [4, 26]


def test_counters_move_behind_the_update():
  # The learning rate of this update reads them.
  with small.Run(num_towers=2) as run:
    ops = run.graph.get_operations()
    updates = {op for op in ops if op.type.startswith('ResourceApply')}
    counts = [op for op in ops if op.type == 'AssignAddVariableOp'
              and op.inputs[0].op.name in ('global_step', 'examples_seen')]
    assert updates and len(counts) == 2
    for op in counts:
      assert updates <= find_needed([op]), op.name


def test_rows_with_the_same_index_are_added_up_before_the_norm_is_taken():
  with tf.Graph().as_default(), tf.Session() as session:
    # The dense gradient is 0, 1, 1, 0.
    values, indices = tf.constant([[3.0], [0.0], [-2.0], [1.0]]), tf.constant([2, 0, 2, 1])
    slices = tf.IndexedSlices(values, indices, tf.constant([4, 1]))
    variable = tf.get_variable('table', [4, 1])
    reduced = ReducedGradients([], 1, tf.constant(0.0), [(slices, variable)], [], [])
    [(clipped, _)] = clip_gradients(reduced, 0.5).gradients
    assert isinstance(clipped, tf.IndexedSlices)
    half = 0.5 / 2 ** 0.5
    np.testing.assert_allclose(session.run(tf.convert_to_tensor(clipped)),
                               [[0], [half], [half], [0]])
    assert session.run(build_gradient_norm(reduced)) == pytest.approx(2 ** 0.5)
