"""Every optimizer that a flag names takes the steps of a few lines of numpy, on any towers."""

import itertools

import numpy as np
import pytest

import models
import towers
from tests.harness.small import Run, nightly_but
from towers.tensorflow_v1 import tf

NUM_STEPS = 6
RATE, MOMENTUM, BETA1, BETA2, EPSILON, DECAY = 0.05, 0.8, 0.85, 0.95, 1e-3, 0.1
SETTINGS = dict(learning_rate=RATE, momentum=MOMENTUM, beta1=BETA1, beta2=BETA2, epsilon=EPSILON,
                rms_decay=0.7, weight_decay=DECAY)
POINTS = np.random.RandomState(0).randn(13, 3, 2).astype(np.float32)


def model(batch, is_training):
  """Half the squared distance of two variables from each example: gradients are differences."""
  del is_training
  [points] = batch
  matrix = tf.get_variable('matrix', [3, 2])
  vector = tf.get_variable('vector', [2], initializer=tf.ones_initializer())
  # Its row 1 is never looked up, so that its gradient is sparse.
  table = tf.get_variable('table', [3, 2], initializer=tf.ones_initializer())
  rows = tf.gather(table, tf.constant([0, 2, 0]))
  return (tf.reduce_sum(tf.square(matrix - points), [1, 2]) / 2 +
          tf.reduce_sum(tf.square(vector - points[:, 0]), 1) / 2 +
          tf.reduce_sum(tf.square(rows - points), [1, 2]) / 2)


def gradients(weights, points):
  mean = points.mean(0)
  table = np.zeros([3, 2], np.float32)
  for row, point in zip([0, 2, 0], mean):
    table[row] += weights['table'][row] - point
  return dict(matrix=weights['matrix'] - mean, vector=weights['vector'] - mean[0], table=table)


def norm(value):
  return np.sqrt(np.sum(np.square(value)))


class Numpy:
  """Each method takes a step: the new weight of one variable."""

  def __init__(self, shape):
    self.m, self.v, self.t = np.zeros(shape), np.zeros(shape), 0
    self.decay = DECAY if len(shape) > 1 else 0.0

  def _move(self, gradient):
    self.t += 1
    self.m = BETA1 * self.m + (1 - BETA1) * gradient
    self.v = BETA2 * self.v + (1 - BETA2) * gradient ** 2

  def nesterov(self, w, g):
    g = g + self.decay * w
    self.m = MOMENTUM * self.m + g
    return w - RATE * (g + MOMENTUM * self.m)

  def rmsprop(self, w, g):
    g = g + self.decay * w
    if self.t == 0:
      self.v = np.ones_like(self.v)  # TensorFlow's begins with ones.
    self.t += 1
    self.v = 0.7 * self.v + 0.3 * g ** 2
    self.m = MOMENTUM * self.m + RATE * g / np.sqrt(self.v + EPSILON)
    return w - self.m

  def adam(self, w, g):
    self._move(g + self.decay * w)
    rate = RATE * np.sqrt(1 - BETA2 ** self.t) / (1 - BETA1 ** self.t)
    return w - rate * self.m / (np.sqrt(self.v) + EPSILON)

  def adamw(self, w, g):
    w = w - RATE * self.decay * w
    self._move(g)
    rate = RATE * np.sqrt(1 - BETA2 ** self.t) / (1 - BETA1 ** self.t)
    return w - rate * self.m / (np.sqrt(self.v) + EPSILON)

  def lars(self, w, g):
    trust = 0.001 * norm(w) / (norm(g) + self.decay * norm(w)) if w.ndim > 1 else 1.0
    self.m = MOMENTUM * self.m + RATE * trust * (g + self.decay * w)
    return w - self.m

  def lamb(self, w, g):
    self._move(g)
    change = self.m / (1 - BETA1 ** self.t) / (
        np.sqrt(self.v / (1 - BETA2 ** self.t)) + EPSILON) + self.decay * w
    return w - RATE * (norm(w) / norm(change) if w.ndim > 1 else 1.0) * change


def train_by_numpy(name, weights):
  states = {variable: Numpy(value.shape) for variable, value in weights.items()}
  for step in range(NUM_STEPS):
    found = gradients(weights, POINTS[:8] if step % 2 == 0 else POINTS[8:])
    weights = {variable: getattr(states[variable], name)(value, found[variable])
               for variable, value in weights.items()}
  return weights


SPLITS = dict(train=towers.from_arrays(POINTS), validation=towers.from_arrays(POINTS))
NAMES = ('nesterov', 'rmsprop', 'adam', 'adamw', 'lars', 'lamb')
TOWERS = {1: {}, 2: dict(placement='replicated', accumulate=2),
          3: dict(placement='balanced', tower_build='clone')}


# At each commit our own on replicas.
@pytest.mark.parametrize('name, num_towers', nightly_but(
    [('adamw', 2), ('lars', 3), ('lamb', 2)],
    itertools.product(NAMES, TOWERS)))
def test_they_are_numpys_on_any_towers(name, num_towers):
  with Run(model=model, num_towers=num_towers, optimizer=name, **SPLITS, **SETTINGS,
           **TOWERS[num_towers]) as run:
    run.train(NUM_STEPS)
    run.opened.check_replicas()
    weights = run.weights()
  expected = train_by_numpy(name, run.initial_weights)
  for variable in sorted(expected):
    np.testing.assert_allclose(weights[variable], expected[variable], rtol=0, atol=1e-5,
                               err_msg=variable)
    assert abs(weights[variable] - run.initial_weights[variable]).max() > 1e-4


def test_without_gradient_or_weight_layers_keep_their_rate():
  """A ratio of norms would divide by 0."""
  def zeros(batch, is_training):
    matrix = tf.get_variable('matrix', [2, 2], initializer=tf.zeros_initializer())
    return tf.square(tf.reduce_sum(matrix) - 1) + 0 * tf.reduce_sum(batch[0], [1, 2])

  for name in ('lars', 'lamb'):
    with Run(model=zeros, num_towers=1, optimizer=name, learning_rate=0.1, **SPLITS) as run:
      run.train()
      value = run.weights()['matrix']
      assert np.isfinite(value).all() and (abs(value) > 0.05).all()


def test_labels_are_smoothed_in_training_alone():
  images = np.random.RandomState(1).uniform(size=[4, 6, 6, 1]).astype(np.float32)
  labels = np.array([0, 2, 1, 2], np.int32)
  with tf.Graph().as_default(), tf.Session() as session:
    is_training = tf.placeholder(tf.bool, [])
    build = models.build_logits('linear', num_classes=3)
    smooth = models.build_classifier('linear', num_classes=3, label_smoothing=0.3)
    logits = build(tf.constant(images), True)
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
      losses, _ = smooth((tf.constant(images), tf.constant(labels)), is_training)
      plain, _ = smooth((tf.constant(images), tf.constant(labels)), False)
    session.run(tf.global_variables_initializer())
    logits, trained = session.run([logits, losses], {is_training: True})
    validated, plain = session.run([losses, plain], {is_training: False})
  shares = 0.7 * np.eye(3)[labels] + 0.3 / 3
  log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  np.testing.assert_allclose(trained, -(shares * log_probabilities).sum(1), atol=1e-5)
  expected = -log_probabilities[np.arange(4), labels]
  np.testing.assert_allclose(validated, expected, atol=1e-5)
  np.testing.assert_allclose(plain, expected, atol=1e-5)
