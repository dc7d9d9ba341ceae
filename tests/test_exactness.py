"""Towers train as a program without towers does, and a repeated run gives the same bits."""

import itertools

import numpy as np
import pytest

from tests.harness import small
from towers.input import pipeline
from towers.tensorflow_v1 import tf

NUM_STEPS = 10


@pytest.mark.parametrize('kind', small.nightly_but(['adam'], ['sgd', 'momentum', 'adam']))
def test_towers_train_as_a_program_without_towers(kind):
  # Of 17 examples in batches of 8 one is left, for three towers.
  train = small.random_examples(17)
  settings = dict(optimizer=kind, weight_decay=0.05, clip_norm=0.4)
  with small.Run(num_towers=3, train=train, **settings) as run:
    losses = [run.train() for _ in range(NUM_STEPS)]
    initial, weights = run.initial_weights, run.weights()
  small.assert_moved(initial, weights)
  optimizer = {'sgd': tf.train.GradientDescentOptimizer, 'adam': tf.train.AdamOptimizer,
               'momentum': lambda rate: tf.train.MomentumOptimizer(rate, 0.9)}[kind](0.1)
  with tf.Graph().as_default(), tf.Session() as session:
    batch = tf.placeholder(tf.float32, [None, small.NUM_FEATURES]), tf.placeholder(tf.int32, [None])
    loss = tf.reduce_mean(small.model(batch, True)[0])
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.4)
    gradients = [gradient + 0.05 * variable if variable.shape.ndims == 2 else gradient
                 for gradient, variable in zip(gradients, variables)]
    update = optimizer.apply_gradients(zip(gradients, variables))
    session.run(tf.global_variables_initializer())
    for variable in variables:
      variable.load(initial[variable.op.name], session)
    expected = []
    for step in range(NUM_STEPS):
      rows = slice(step % 3 * 8, step % 3 * 8 + 8)
      feed = dict(zip(batch, [array[rows] for array in train.arrays]))
      expected.append(session.run(loss, feed))
      session.run(update, feed)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)
    small.assert_same_weights(weights, {variable.op.name: session.run(variable)
                                        for variable in variables})


@pytest.mark.parametrize('placement', small.nightly_but(['host'], ['host', 'replicated']))
@pytest.mark.parametrize('mode', small.nightly_but(['shard'], small.MODES))
def test_repeats_are_bit_identical(mode, placement):
  outcomes = []
  for _ in range(3):
    with small.Run(mode=mode, num_towers=3, depth=2, shuffle=True, train=small.random_examples(50),
                   placement=placement, fusion_megabytes=0.0001) as run:
      losses = [run.train() for _ in range(NUM_STEPS)]
      outcomes.append((losses, {name: value.tobytes() for name, value in run.weights().items()}))
  assert outcomes[1:] == outcomes[:1] * 2


VALIDATIONS = list(itertools.product([11, 16, 17], [False, True], small.MODES))


@pytest.mark.parametrize('num_examples, validation_tower, mode', small.nightly_but(
    [(17, True, 'shard')], VALIDATIONS))
def test_validation_is_the_mean_over_all_examples_and_nothing_else(mode, validation_tower,
                                                                   num_examples):
  def model(batch, is_training):
    features, labels = batch
    losses, _ = small.model(batch, is_training)
    return 0.0 * losses + features[:, 0], dict(square=tf.square(features[:, 1]),
                                               first=tf.equal(labels, 0), label=labels)

  validation = small.random_examples(num_examples, 'validation', seed=1)
  features, labels = validation.arrays
  with small.Run(model=model, mode=mode, num_towers=3, validation=validation,
                 validation_tower=validation_tower) as run:
    for _ in range(2):
      means, count = run.validate()
      run.train()
      assert count == num_examples
      assert means == pytest.approx(dict(
          loss=features[:, 0].mean(), square=np.square(features[:, 1]).mean(),
          first=(labels == 0).mean(), label=labels.mean()), abs=1e-5)


@pytest.mark.parametrize('mode', small.nightly_but(['shard'], small.MODES))
def test_an_empty_validation_tower_measures_nothing(mode, monkeypatch):
  # Training never leaves a tower empty here.
  monkeypatch.setattr(pipeline, 'fill_empty', small.fill_with_nan)

  def model(batch, is_training):
    return tf.reduce_mean(small.model(batch, is_training)[0])

  settings = dict(model=model, mode=mode, train=small.random_examples(16),
                  validation=small.random_examples(17, 'validation', seed=1))
  with small.Run(num_towers=3, **settings) as run, small.Run(num_towers=1, **settings) as one:
    (means, count), (expected, _) = run.validate(), one.validate()
    assert count == 17 and means == pytest.approx(expected, abs=1e-5)
