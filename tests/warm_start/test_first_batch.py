"""First values from data: what a function of the first batch assigns, on any number of towers."""

import time

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf

LIKE = np.zeros(small.NUM_FEATURES, np.float32), np.int32(0)


def normalize(x, name, is_first):
  """Activation normalisation as of Glow, whose assignments what follows waits for."""
  with tf.variable_scope(name):
    bias = tf.get_variable('bias', [1, x.shape[1]], initializer=tf.zeros_initializer())
    scale = tf.get_variable('scale', [1, x.shape[1]], initializer=tf.ones_initializer())
  bias = bias.assign(-tf.reduce_mean(x, 0, keepdims=True)) if is_first else bias
  x += bias
  scale = scale.assign(1 / tf.sqrt(tf.reduce_mean(x ** 2, 0, keepdims=True))) if is_first else scale
  return x * scale


def net(features, is_first=False):
  x = tf.nn.dropout(normalize(features, 'in', is_first), rate=0.2)
  return normalize(small.dense(x, 4, 'dense'), 'out', is_first)


def model(batch, is_training):
  features, labels = batch
  return small.classify(net(features), labels)


def first(batch):
  return net(batch[0], is_first=True)


def from_initializers(batch, is_training=True):
  """Divides by scales whose initializers need the batch, the second one also the first scale."""
  features, labels = batch
  x = tf.nn.dropout(features, rate=0.2)
  for name in ('in', 'out'):
    with tf.variable_scope(name):
      x = small.dense(x, 4, 'dense')
      x /= tf.get_variable('scale', initializer=tf.sqrt(tf.reduce_mean(x ** 2, 0)))
  mean = tf.get_variable('mean', trainable=False, initializer=tf.reduce_mean(features, 0))
  return small.classify(x - tf.reduce_mean(mean), labels)


def train(num_towers, folder, **settings):
  """Returns the variables before the first step, and after five and a resume."""
  settings = dict(dict(model=model, init_from=first, shuffle=True, average_weights=0.9), **settings)
  program = small.program(num_towers=num_towers, **settings)
  with program.session() as session:
    initial = small.read_variables(program, session)
    for _ in range(3):
      session.train()
    session.save(str(folder))
  with program.session() as session:
    session.restore(str(folder))
    for _ in range(2):
      session.train()
    examples = small.random_examples(11, 'validation', seed=1)
    assert session.evaluate(examples) == pytest.approx(session.validate(), rel=1e-5)
    assert program.replicas is None or session.run(program.replicas.same).all()
    return initial, small.read_variables(program, session)


HOWS = {'by assignments': {},
        'by initializers': dict(model=from_initializers, init_from=from_initializers)}


@pytest.mark.nightly(but=['2-settings0-by assignments', '2-settings0-by initializers'])
@pytest.mark.parametrize('how', HOWS)
@pytest.mark.parametrize('num_towers, settings', [
    (2, dict(variables='replicated')), (3, dict(input_mode='shard', accumulate=2)),
    (3, dict(input_mode='next', tower_build='clone'))])
def test_first_values_do_not_depend_on_the_towers(num_towers, settings, how, tmp_path, capsys):
  one, other = [train(number, tmp_path / str(number), **HOWS[how], **given)
                for number, given in ((1, {}), (num_towers, settings))]
  lines = capsys.readouterr().out.split('\n')
  first_line = f"initial weights: {HOWS[how].get('init_from', first).__name__} of the first batch"
  assert lines.count(f'{first_line}, 8 examples') == 2
  for before, after in zip(one, other):
    small.assert_same_weights(before, after)
  for name in ('out/scale', 'out/bias' if how == 'by assignments' else 'mean'):
    assert (one[0][name] != 0).all() and (one[0][name] != 1).all()
  scale = one[0]['out/scale']
  np.testing.assert_array_equal(one[0]['out/scale/ExponentialMovingAverage'], scale)
  small.assert_moved({'out/scale': scale}, {'out/scale': one[1]['out/scale']})


def test_they_are_those_of_the_first_batch():
  with small.program(model, init_from=first, num_towers=2).session() as session:
    features = small.random_examples(13).arrays[0][:8]
    np.testing.assert_allclose(session.run('in/bias'), -features.mean(0, keepdims=True), atol=1e-6)


def test_what_is_not_trained_starts_so_too():
  def observe(batch, is_first=False):
    mean = tf.get_variable('mean', [small.NUM_FEATURES], trainable=False,
                           initializer=tf.zeros_initializer())
    mean = mean.assign(tf.reduce_mean(batch[0], 0)) if is_first else mean
    return net(batch[0] - mean, is_first)

  program = small.program(lambda batch, is_training: small.classify(observe(batch), batch[1]),
                          init_from=lambda batch: observe(batch, True), num_towers=2)
  with program.session() as session:
    features = small.random_examples(13).arrays[0][:8]
    np.testing.assert_allclose(session.run('mean'), features.mean(0), atol=1e-6)
    np.testing.assert_allclose(session.run('in/bias'), 0, atol=1e-6)


def test_what_is_read_after_an_assignment_is_what_it_assigns():
  def move(x, is_first=False):
    shift = tf.get_variable('shift', [], initializer=tf.zeros_initializer())
    if is_first:
      late = tf.py_func(lambda: time.sleep(0.2) or np.float32(3), [], tf.float32)
      with tf.control_dependencies([shift.assign(tf.reshape(late, []))]):
        x = tf.identity(x)  # What reads the variable itself waits for nothing.
    return net(x + shift, is_first)

  program = small.program(lambda batch, is_training: small.classify(move(batch[0]), batch[1]),
                          init_from=lambda batch: move(batch[0], True), num_towers=2)
  with program.session() as session:
    features = small.random_examples(13).arrays[0][:8]
    np.testing.assert_allclose(
        session.run('in/bias'), -3 - features.mean(0, keepdims=True), atol=1e-5)


@pytest.mark.plain
@pytest.mark.parametrize('function, settings, message', [
    (lambda batch: net(batch[0]), {}, 'init_from=<lambda> changes no variable: return what its'),
    (lambda batch: small.dense(first(batch), 2, 'new'), {}, 'makes new/weights, new/biases, which'),
    (first, dict(model=lambda batch, is_training: model(batch, is_training) * tf.get_variable(
        'late', initializer=tf.reduce_mean(batch[0]))),
     'init_from=first gives no value to late, which start from a batch: call the model there'),
    (lambda: None, {}, r'init_from=<lambda> takes \(\), and is called with \(batch\): write def'),
    (first, dict(train=towers.from_stream(like=LIKE), validation=None),
     'init_from=first is a function of the first batch, and batches come by hand')])
def test_what_gives_no_first_values_is_named(function, settings, message):
  with pytest.raises(UsageError, match=message), small.program(
      **{**dict(model=model, init_from=function), **settings}).session() as session:
    session.train()
