"""Averaged weights: numpy's recursion on any towers, not seen in training, used in validation."""

import functools

import numpy as np
import pytest

import towers
from tests.checkpoint.test_shapes import restore, save
from tests.harness import small
from tests.update.test_nan_guard import assert_unchanged as assert_equal
from tests.update.test_nan_guard import normed
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf
from towers.update.moving_averages import name_average

DECAY = 0.3
NUM_STEPS = 4
SHAPES = {'host, clone': dict(placement='host', tower_build='clone'),
          'balanced, accumulated': dict(placement='balanced', accumulate=2),
          'replicated': dict(placement='replicated'),
          'first, adam': dict(placement='first', optimizer='adam')}


def recursion(initial, steps, decay=DECAY, first=1):
  """Returns the averages of weights after some steps from number `first` on, by numpy."""
  averages = dict(initial)
  for number, weights in enumerate(steps, first):
    share = np.float32(max(1 - decay, 9 / (10 + number)))
    averages = {name: average - (average - weights[name]) * share
                for name, average in averages.items()}
  return averages


def train(run, num_steps=NUM_STEPS):
  """Returns the weights after each of some steps."""
  weights = []
  for _ in range(num_steps):
    run.train()
    weights.append(run.weights())
  return weights


@pytest.mark.nightly(but='split-3-1-host, clone')
@pytest.mark.parametrize('mode, num_towers, depth, shape', [
    ('split', 3, 1, 'host, clone'), ('next', 2, 0, 'balanced, accumulated'),
    ('shard', 2, 2, 'replicated'), ('split', 8, 2, 'first, adam')])
def test_averages_are_numpys_to_the_bit_and_training_never_sees_them(
    mode, num_towers, depth, shape):
  # The last of two steps leaves towers of 8 empty.
  settings = dict(mode=mode, num_towers=num_towers, depth=depth, batch_size=16,
                  train=small.random_examples(29), **SHAPES[shape])
  with small.Run(average_weights=DECAY, validates=True, **settings) as run:
    assert_equal(run.averages(), run.initial_weights)
    weights = train(run)
    assert_equal(run.averages(), recursion(run.initial_weights, weights))
    small.assert_moved(run.initial_weights, weights[-1])
    # A pass leaves weights and averages where they were.
    run.validate()
    assert_equal(run.averages(), recursion(run.initial_weights, weights))
    assert_equal(run.weights(), weights[-1])
    run.opened.check_replicas()
  if num_towers in (2, 3, 4):
    with small.Run(**settings) as plain:
      assert_equal(train(plain)[-1], weights[-1])


def load(run, values):
  """Sets weights, and other variables, by name."""
  with run.graph.as_default():
    for variable in tf.global_variables():
      if variable.op.name in values:
        variable.load(values[variable.op.name], run.session)


@functools.lru_cache(maxsize=None)
def reference():
  """Returns (moving moments, averages, what one plain tower measures with both)."""
  with small.Run(num_towers=1, depth=0, model=normed, average_weights=0.9) as run:
    train(run)
    averages = run.averages()
    values = run.variables()
  moments = {name: value for name, value in values.items() if '/moving_' in name}
  assert moments
  with small.Run(num_towers=1, depth=0, model=normed, validates=True) as plain:
    load(plain, {**moments, **averages})
    return moments, averages, plain.validate()


@pytest.mark.parametrize('shape', small.nightly_but(
    ['replicated'], ['host, clone', 'replicated', 'validation tower']))
def test_validation_measures_them_with_the_moments_as_they_are(shape):
  moments, averages, (expected, num_examples) = reference()
  settings = SHAPES.get(shape, dict(validation_tower=True, mode='shard'))
  with small.Run(num_towers=3, average_weights=0.9, batch_norm='sync', model=normed,
                 validates=True, **settings) as run:
    load(run, {**moments, **{name_average(name): value for name, value in averages.items()}})
    means, measured = run.validate()
    assert measured == num_examples
    assert means == pytest.approx(expected, abs=1e-6)


class Interrupted:
  """A session that Ctrl-C interrupts in its first run, before or after it runs the op."""

  def __init__(self, session, is_done):
    self._session, self._is_done, self._is_first = session, is_done, True

  def run(self, fetches):
    is_interrupted, self._is_first = self._is_first, False
    result = self._session.run(fetches) if self._is_done or not is_interrupted else None
    if is_interrupted:
      raise KeyboardInterrupt
    return result


def test_a_pass_that_is_interrupted_leaves_weights_and_averages_in_place():
  with small.Run(num_towers=2, average_weights=0.9, placement='replicated', validates=True) as run:
    train(run)
    weights, averages = run.weights(), run.averages()

    def stop():
      assert_equal(run.weights(), averages)
      raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
      run.opened.finish_validation(run.opened.begin_validation(), stop)
    assert_equal(run.weights(), weights)
    for is_done in (False, True):
      with pytest.raises(KeyboardInterrupt), run.program.averages.in_place(
          Interrupted(run.session, is_done)):
        pytest.fail('the context was entered')
      assert_equal(run.weights(), weights)
    assert_equal(run.averages(), averages)
    run.opened.check_replicas()


@pytest.mark.nightly
def test_a_resume_goes_on_to_the_bit_and_may_turn_them_on_or_off(tmp_path):
  averaged, plain = dict(optimizer='adam', average_weights=DECAY), dict(optimizer='adam')
  with small.Run(validates=True, **averaged) as run:
    weights = train(run, 2)
    save(run, tmp_path / 'averaged')
    run.validate()
    weights += train(run, 2)
    expected = run.averages()
  with small.Run(**plain) as run:
    train(run, 2)
    save(run, tmp_path / 'plain')

  warnings = []
  with small.Run(**averaged) as run:
    restore(run, tmp_path / 'averaged', warnings.append)
    assert_equal(train(run, 2)[-1], weights[-1])
    assert_equal(run.averages(), expected)
    assert not warnings
    # Turned on: they start from the weights.
    restore(run, tmp_path / 'plain', warnings.append)
    assert_equal(run.averages(), weights[1])
    assert 'has no averages, so that they start from its weights' in warnings.pop()
    later = train(run, 2)
    assert_equal(later[-1], weights[-1])
    assert_equal(run.averages(), recursion(weights[1], later, first=3))
  with small.Run(**plain) as run:
    restore(run, tmp_path / 'averaged', warnings.append)
    assert 'are left behind' in warnings.pop() and not warnings
    assert_equal(train(run, 2)[-1], weights[-1])


def net(features):
  return small.dense(tf.tanh(small.dense(features, 4, 'hidden')), small.NUM_CLASSES, 'logits')


def test_a_program_validates_exports_and_starts_again_from_them(tmp_path, capsys):
  features, labels = small.random_examples(13).arrays

  def program(**settings):
    return towers.Program(
        small.model, train=towers.from_arrays(features, labels),
        validation=towers.from_arrays(features, labels), batch_size=8, device='cpu', num_towers=2,
        learning_rate=0.5, optimizer=tf.train.GradientDescentOptimizer, **settings)

  def loss_of(logits):
    shifted = logits - logits.max(1, keepdims=True)
    return np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(13), labels])

  with tf.Graph().as_default():
    made = program(average_weights=0.9, frozen=['logits/biases'])
    result = towers.train(made, steps=5, checkpoint_dir=str(tmp_path / 'run'))
    assert sorted(made.averages.variables) == ['hidden/biases', 'hidden/weights', 'logits/weights']
    assert 'averages of the weights: decay 0.9' in capsys.readouterr().out
    exported = towers.export(made, str(tmp_path / 'out'), predict=net,
                             checkpoint_dir=str(tmp_path / 'run'))
    with made.session() as session:
      session.restore(str(tmp_path / 'run'))
      measured = session.validate()['loss']
      batch_loss = [tower.sums['loss'] for tower in made.towers]
      weights, averages = session.tf_session.run([made.averages.weights, made.averages.variables])
      raw = sum(session.run(batch_loss))
      switched = sum(session.run(batch_loss, {made.validation.is_validating: True}))
      assert_equal(session.tf_session.run(made.averages.weights), weights)
  assert weights['hidden/weights'] != pytest.approx(averages['hidden/weights'], abs=1e-3)
  with tf.Graph().as_default(), tf.Session() as session:
    served = tf.saved_model.loader.load(session, ['serve'], exported).signature_def[
        'serving_default']
    logits = session.run(served.outputs['output'].name, {served.inputs['features'].name: features})
  assert measured == pytest.approx(loss_of(logits), abs=1e-6)
  assert result['validation_loss'] == pytest.approx(measured, abs=1e-6)
  assert switched != pytest.approx(raw, abs=1e-4)

  # Weights and averages start from the file's weights, or from its averages by name.
  for names, expected in ((None, weights), ({'(.*)/ExponentialMovingAverage': '\\1'}, averages)):
    with tf.Graph().as_default():
      made = program(average_weights=0.9, init_from=towers.init_from(
          str(tmp_path / 'run'), names=names))
      with made.session() as session:
        session.validate()
        for values in session.tf_session.run([made.averages.weights, made.averages.variables]):
          values.pop('logits/biases')
          assert_equal(values, expected)


@small.with_losses
def teaching(losses):
  """Keeps an average of a weight that no validation uses."""
  [weights] = [each for each in tf.trainable_variables() if each.op.name == 'hidden/weights']
  average = tf.train.ExponentialMovingAverage(0.5)
  tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, average.apply([weights]))
  return losses


def test_an_average_of_the_model_itself_is_not_exported_for_its_weight(tmp_path, capsys):
  made = small.program(teaching, num_towers=1)
  with made.graph.as_default():
    with made.session() as session:
      session.train()
      session.save(str(tmp_path / 'saved'))
      names = ['hidden/weights', 'hidden/weights/ExponentialMovingAverage']
      expected = session.run({variable.op.name: variable for variable in tf.global_variables()
                              if variable.op.name in names})
    exported = towers.export(
        made, str(tmp_path / 'out'), checkpoint_dir=str(tmp_path / 'saved'),
        predict=lambda features: features + [
            tf.reduce_sum(tf.get_variable(name, [small.NUM_FEATURES, 4])) for name in names][0])
  saved = tf.train.load_checkpoint(f'{exported}/variables/variables')
  assert_equal({name: saved.get_tensor(name) for name in names}, expected)
  assert not np.array_equal(*expected.values())
  assert f'{names[1]} in {tmp_path}/saved/model.ckpt-1 is an average of the model itself' in (
      capsys.readouterr().out)


@pytest.mark.nightly(but='balanced')
@pytest.mark.parametrize('placement', ['balanced', 'replicated'])
def test_each_moves_on_the_device_of_its_weight(placement):
  with small.Run(num_towers=3, placement=placement, average_weights=0.9) as run:
    averages = run.program.averages
    ops = [op for op in run.graph.get_operations() if op.name.startswith('apply/average')]
    assert len({op.device for op in ops}) == (3 if placement == 'balanced' else 1)
    for op in ops:
      for value in op.inputs:
        if value.op.type != 'VarHandleOp' and value.shape.num_elements() > 1:
          assert value.device == op.device, op.name
    for name, average in averages.variables.items():
      assert average.device == averages.weights[name].device


def halves(batch, is_training):
  weights = tf.get_variable('half', [small.NUM_FEATURES], tf.float16)
  return tf.reduce_sum(batch[0] * tf.cast(weights, tf.float32), 1)


def averaging(batch, is_training):
  tf.get_variable('hidden/weights/ExponentialMovingAverage', [], trainable=False)
  return small.model(batch, is_training)


def test_what_cannot_be_averaged_is_refused_by_name():
  for decay in (0, 1.5, float('nan'), '0.9'):
    message = f'average_weights={decay!r}: it must be (above 0 and below 1|a )'
    with pytest.raises(UsageError, match=message):
      small.program(average_weights=decay)
  for model, message in ((halves, 'half is of float16'), (
      averaging, 'has a variable hidden/weights/ExponentialMovingAverage')):
    with pytest.raises(UsageError, match=message):
      small.Run(num_towers=1, model=model, average_weights=0.9)
