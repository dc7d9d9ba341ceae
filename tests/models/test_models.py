"""Models: their weights, that they ignore devices and towers, and that dropout is off where it must be."""

import numpy as np
import pytest

import models
from tensorflow_v1 import tf
from usage_error import UsageError

# On 28x28x1; ResNet-20 is published for 32x32x3.
NUM_WEIGHTS = {'linear': 7850, 'lenet': 61706, 'convnet': 454922, 'resnet20': 269722}
SHAPES = {'resnet20': (32, 32, 3)}


def build(name, is_training, dtype=np.uint8, batch=3):
  shape = SHAPES.get(name, (28, 28, 1))
  images = np.random.RandomState(0).randint(256, size=(batch,) + shape).astype(dtype)
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


def test_top_5_counts_answers_among_the_five_likeliest():
  with tf.Graph().as_default(), tf.Session() as session:
    _, metrics = build('linear', False, batch=8)
    weights, biases = tf.trainable_variables()
    session.run([weights.assign(tf.zeros_like(weights)), biases.assign([0, 9, 8, 0, 7, 0, 6, 5, 0, 0])])
    np.testing.assert_array_equal(session.run(metrics['top_5']), [False, True, True, False, True, False, True, True])


@pytest.mark.parametrize('num_towers', [2, 3])
def test_a_deep_net_with_sync_is_one_tower(num_towers):
  from data import load_synthetic
  from towers import check
  train = load_synthetic(num_train=100, num_validation=10).train
  report = check(models.build_classifier('resnet20', num_classes=10), train, num_towers=num_towers, batch_size=7,
                 batch_norm='sync', num_steps=2)
  assert report.agrees, report.format()


def test_unknown_models_and_image_types_are_refused():
  with pytest.raises(UsageError, match='vgg.*linear, lenet, convnet'):
    models.build_classifier('vgg', num_classes=10)
  with tf.Graph().as_default(), pytest.raises(TypeError, match='int64'):
    build('linear', False, dtype=np.int64)
