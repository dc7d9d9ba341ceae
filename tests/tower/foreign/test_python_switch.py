"""A model that asks `if is_training:` validates by the switch as one that takes the tensor does."""

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import batch_norm


def model(in_python):
  def compute(batch, is_training):
    features, labels = batch
    if in_python or not tf.is_tensor(is_training):
      is_training = bool(is_training)
    x = batch_norm(small.dense(features, 4, 'hidden'), is_training, momentum=0.5, name='norm')
    dropped = tf.nn.dropout(x, rate=0.5)  # Under one name in both.
    if tf.is_tensor(is_training):
      x = tf.cond(is_training, lambda: dropped, lambda: x)
    elif is_training:
      x = dropped
    logits = small.dense(x, small.NUM_CLASSES, 'logits')
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, tf.reduce_sum(tf.square(logits[:0])))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    far = towers.all_sum(tf.reduce_sum(losses))
    return losses, {'far': tf.zeros_like(losses) + far,
                    'median': towers.Whole(lambda rows: float(np.median(rows)), [losses])}

  return compute


def predict(features):
  x = batch_norm(small.dense(features, 4, 'hidden'), False, name='norm')
  return small.dense(x, small.NUM_CLASSES, 'logits')


def read(in_python, folder, **settings):
  """Returns losses, validations and predictions of some steps, and all variables."""
  program = small.program(model(in_python), batch_size=6, **settings)
  with program.session() as session:
    numbers = []
    for _ in range(2):
      numbers += [session.train(), session.train(), *session.validate().values()]
    session.save(folder)
    session.restore(folder)
    numbers += [session.train(), *session.validate().values()]
    outputs = session.predict((np.ones([3, small.NUM_FEATURES], np.float32),), predict)
    return numbers, outputs, small.read_variables(program, session)


SETTINGS = [
    dict(num_towers=1), dict(num_towers=2, input_mode='next'),
    dict(num_towers=3, tower_build='clone', variables='replicated'),
    dict(average_weights=0.9, last_batch='drop', batch_norm='mean'),
    dict(accumulate=3, input_mode='shard', staging_depth=0),
    dict(precision='mixed', batch_norm='sync')]


@pytest.mark.parametrize('settings', small.nightly_but(SETTINGS[2:3], SETTINGS),
                         ids=lambda settings: '-'.join(settings))
def test_it_validates_as_by_the_tensor(settings, tmp_path, capsys):
  numbers, outputs, variables = read(True, str(tmp_path / 'python'), **settings)
  told = capsys.readouterr().err
  expected, expected_outputs, expected_variables = read(False, str(tmp_path / 'tf'), **settings)
  assert numbers == expected
  np.testing.assert_array_equal(outputs, expected_outputs)
  assert sorted(variables) == sorted(expected_variables)
  for name, value in expected_variables.items():
    np.testing.assert_array_equal(variables[name], value, err_msg=name)
  line = 'validation: the model decides by is_training in Python, and is called again'
  assert told.count(line) == 1
  assert line not in capsys.readouterr().err


def asks(name, is_training):
  return tf.get_variable(name, []) if is_training else tf.constant(0.0)


def test_a_variable_of_training_alone_is_named(capsys):
  def model(batch, is_training):
    with tf.variable_scope('', caching_device=lambda op: op.device):  # As of a recurrent net.
      w = tf.get_variable('w', [])
    return tf.square(batch[0][:, 0] * w + asks('aux', is_training))

  small.program(model)
  assert 'called again with False; in training alone: aux\n' in capsys.readouterr().err


@pytest.mark.parametrize('make, match', [
    (lambda: tf.get_variable('own', []), r'Tower 2, where is_training is False, asks for .* own,'),
    (lambda: tf.Variable(1.0, name='own'), 'With is_training False the model made 1 variables')])
def test_a_variable_of_validation_alone_is_refused(make, match):
  def makes(batch, is_training):
    losses = tf.square(batch[0][:, 0] * tf.get_variable('w', []))
    return losses if is_training else losses + make()

  with pytest.raises(UsageError, match=match):
    small.program(makes)


def test_another_tensor_has_no_truth():
  with pytest.raises(UsageError, match='decides in Python by a tensor'):
    small.program(lambda batch, is_training: batch[0][:, 0] if batch[0][0, 0] > 0 else batch[1])
