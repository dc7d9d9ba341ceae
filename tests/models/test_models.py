"""Models: their weights, that they ignore devices and towers, and that dropout is off where it must be."""

import numpy as np
import pytest

import models
from tensorflow_v1 import tf
from usage_error import UsageError

NUM_WEIGHTS = {'linear': 7850, 'lenet': 61706, 'convnet': 454922}


def build(name, is_training, dtype=np.uint8, batch=3):
  images = np.random.RandomState(0).randint(256, size=[batch, 28, 28, 1]).astype(dtype)
  labels = np.arange(batch, dtype=np.int32)
  return models.build_classifier(name, num_classes=10)((tf.constant(images), tf.constant(labels)), is_training)


@pytest.mark.parametrize('name', models.MODELS)
def test_weights_are_as_many_as_published_and_outputs_are_per_example(name):
  with tf.Graph().as_default():
    losses, metrics = build(name, True)
    assert losses.shape == (3,) and metrics['accuracy'].shape == (3,)
    assert sum(variable.shape.num_elements() for variable in tf.trainable_variables()) == NUM_WEIGHTS[name]
    assert not any(op.device for op in tf.get_default_graph().get_operations() if 'tower' in op.name)


@pytest.mark.parametrize('name', ['lenet', 'convnet'])
def test_dropout_only_while_training(name):
  with tf.Graph().as_default(), tf.Session() as session:
    is_training = tf.placeholder(tf.bool, [])
    with tf.variable_scope('', reuse=tf.AUTO_REUSE):
      switched, _ = build(name, is_training)
      plain, _ = build(name, False)
    session.run(tf.global_variables_initializer())
    np.testing.assert_array_equal(*session.run([switched, plain], {is_training: False}))
    assert (session.run(switched, {is_training: True}) != session.run(switched, {is_training: True})).any()


def test_bytes_and_floats_mean_the_same_image():
  with tf.Graph().as_default(), tf.Session() as session:
    with tf.variable_scope('', reuse=tf.AUTO_REUSE):
      from_bytes, _ = build('linear', False)
      labels = tf.constant(np.arange(3, dtype=np.int32))
      images = np.random.RandomState(0).randint(256, size=[3, 28, 28, 1]).astype(np.float32) / 255
      from_floats, _ = models.build_classifier('linear', num_classes=10)((tf.constant(images), labels), False)
    session.run(tf.global_variables_initializer())
    np.testing.assert_allclose(*session.run([from_bytes, from_floats]), rtol=1e-5)


def test_accuracy_counts_right_answers():
  with tf.Graph().as_default(), tf.Session() as session:
    _, metrics = build('linear', False)
    for variable in tf.trainable_variables():
      if variable.op.name.endswith('biases'):
        biases = variable
      else:
        weights = variable
    session.run([weights.assign(tf.zeros_like(weights)), biases.assign([0, 0, 1, 0, 0, 0, 0, 0, 0, 0])])
    np.testing.assert_array_equal(session.run(metrics['accuracy']), [False, False, True])


def test_unknown_models_and_image_types_are_refused():
  with pytest.raises(UsageError, match='resnet.*linear, lenet, convnet'):
    models.build_classifier('resnet', num_classes=10)
  with tf.Graph().as_default(), pytest.raises(TypeError, match='int64'):
    build('linear', False, dtype=np.int64)
