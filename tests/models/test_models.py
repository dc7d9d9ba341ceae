"""Models: weights and multiply-adds as published, all train on towers, no dropout in validation."""

import numpy as np
import pytest

import models
import towers
from models import nasnet
from tests.harness.small import nightly_but
from towers.base.usage_error import UsageError
from towers.cli.jobs import build_configured
from towers.data import load_synthetic
from towers.placement.devices import build_session_config
from towers.session.engine import Engine
from towers.settings.config import Config
from towers.tensorflow_v1 import tf

# (images, classes, weights that gradients train, others). Counts are those of papers or other
# programs, see the modules, and so are the classes; where convolutions have the same weights for
# any size, images are small.
PUBLISHED = {
    'linear': ((28, 28, 1), 10, 7850, 0),
    'lenet': ((28, 28, 1), 10, 61706, 0),
    'convnet': ((28, 28, 1), 10, 454922, 0),
    'alexnet': ((224, 224, 3), 1000, 61100840, 0),
    'alexnet_cifar': ((32, 32, 3), 10, 2472266, 0),
    'vgg16': ((224, 224, 3), 1000, 138357544, 0),
    'vgg19': ((224, 224, 3), 1000, 143667240, 0),
    'resnet20': ((16, 16, 3), 10, 269722, 1376),
    'resnet32': ((16, 16, 3), 10, 464154, 2272),
    'resnet56': ((8, 8, 3), 10, 853018, 4064),
    'resnet110': ((8, 8, 3), 10, 1727962, 8096),
    'resnet50': ((32, 32, 3), 1000, 25557032, 53120),
    'resnet101': ((32, 32, 3), 1000, 44549160, 105344),
    'resnet152': ((32, 32, 3), 1000, 60192808, 151424),
    'nasnet_cifar': ((8, 8, 3), 10, 3328234, 37056),
    'nasnet_cifar_large': ((8, 8, 3), 10, 84714850, 194544),
    'nasnet_mobile': ((32, 32, 3), 1000, 5326716 - 36738, 36738),
    'nasnet_large': ((32, 32, 3), 1000, 84720150 + 4033 * 1000, 84916818 - 84720150)}
# Multiply-adds of an image of this size in inference, in billions: torchvision's table of weights,
# and Zoph et al. 2018, tables 2 and 3.
BILLIONS = {
    'alexnet': (224, 0.71), 'vgg16': (224, 15.47), 'vgg19': (224, 19.63), 'resnet50': (224, 4.09),
    'resnet101': (224, 7.80), 'resnet152': (224, 11.51), 'nasnet_mobile': (224, 0.564),
    'nasnet_large': (331, 23.8)}
# What is trained is smaller than what is counted: the dense layers above convolutions for a small
# image, or, of NASNets, one normal cell a stage.
SMALLER = {
    'alexnet': ((63, 63, 3), 10), 'vgg16': ((32, 32, 3), 10), 'nasnet_cifar': ((8, 8, 3), 10),
    'nasnet_mobile': ((32, 32, 3), 10)}
# These differ in the numbers of their blocks alone from one that is trained, and are counted.
COUNTED = ('vgg19', 'resnet32', 'resnet56', 'resnet110', 'resnet101', 'resnet152',
    'nasnet_cifar_large', 'nasnet_large')
NIGHTLY = COUNTED + ('resnet50', 'nasnet_cifar', 'nasnet_mobile')


def build(name, is_training, dtype=np.uint8, batch=3, shape=None, num_classes=10, **settings):
  shape = shape or PUBLISHED[name][0]
  images = np.random.RandomState(0).randint(256, size=(batch,) + shape).astype(dtype)
  labels = np.arange(batch, dtype=np.int32)
  model = models.build_classifier(name, num_classes=num_classes, **settings)
  return model((tf.constant(images), tf.constant(labels)), is_training)


def count_products(op):
  """Returns how many numbers an op multiplies in pairs; 0 for most ops."""
  if op.type == 'MatMul':
    rows, depth = op.inputs[0].shape.as_list()
    return rows * depth * op.outputs[0].shape.as_list()[1]
  if op.type not in ('Conv2D', 'DepthwiseConv2dNative'):
    return 0
  height, width, channels, _ = op.inputs[1].shape.as_list()
  # A depthwise convolution adds up no channels.
  depth = height * width * (channels if op.type == 'Conv2D' else 1)
  return depth * op.outputs[0].shape.num_elements()


def count(variables):
  return sum(variable.shape.num_elements() for variable in variables)


def maybe_nightly(names, nightly=NIGHTLY):
  return nightly_but([name for name in names if name not in nightly], names)


@pytest.mark.nightly(but=['linear', 'convnet'])
@pytest.mark.parametrize('name', maybe_nightly(models.MODELS))
def test_weights_and_multiply_adds_are_as_many_as_published(name):
  shape, num_classes, trained, other = PUBLISHED[name]
  size, billions = BILLIONS.get(name, (None, None))
  if billions:
    shape = (size, size, 3)
  with tf.Graph().as_default() as graph:
    build(name, False, batch=1, shape=shape, num_classes=num_classes)
    assert count(tf.trainable_variables()) == trained
    assert count(tf.global_variables()) - trained == other
    if billions:
      products = sum(map(count_products, graph.get_operations()))
      assert products / 1e9 == pytest.approx(billions, rel=0.011)


@pytest.mark.nightly(but='linear')
@pytest.mark.parametrize('name', maybe_nightly(
    [name for name in models.MODELS if name not in COUNTED],
    NIGHTLY + ('lenet', 'alexnet', 'alexnet_cifar', 'resnet20', 'vgg16')))
def test_two_towers_train_all_weights(name, monkeypatch):
  shape, num_classes = SMALLER.get(name, PUBLISHED[name][:2])
  for variant in ('cifar', 'mobile'):
    monkeypatch.setitem(nasnet._VARIANTS, variant, nasnet._VARIANTS[variant]._replace(num_normal=1))
  data_set = load_synthetic(image_shape=shape, num_classes=num_classes, num_train=4,
                            num_validation=2)
  config = Config(model=name, batch_size=4, optimizer='sgd', learning_rate=0.1, validation='none',
                  staging_depth=0, num_towers=2, device='cpu')
  with tf.Graph().as_default():
    program = build_configured(config, models.build_classifier(name, num_classes=num_classes),
                               data_set)
    weights = tf.trainable_variables()
    assert [variable for _, variable in program.gradients.gradients] == weights
    with tf.Session(config=build_session_config(program.devices)) as session:
      session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
      engine = Engine(session, program)
      engine.start()
      before = session.run(weights)
      assert np.isfinite(engine.take_step())
      changed = [(new != old).any() and np.isfinite(new).all()
                 for new, old in zip(session.run(weights), before)]
      assert np.mean(changed) > 0.9  # Where a ReLU is dead for all four images, nothing moves.


# With one normal cell a stage: 7 cells.
TINY_NASNET = nasnet._VARIANTS['mobile']._replace(num_normal=1, channels=8, stem_channels=6,
                                                  skips_reduction=True)


@pytest.mark.nightly
def test_nasnets_drop_paths_only_while_training_and_more_of_them_in_later_cells(monkeypatch):
  monkeypatch.setitem(nasnet._VARIANTS, 'mobile', TINY_NASNET._replace(dropout_rate=0.0))
  with tf.Graph().as_default() as graph, tf.Session() as session:
    images = tf.constant(np.random.RandomState(0).rand(4, 32, 32, 3).astype(np.float32))
    is_training, rate = tf.placeholder(tf.bool, []), tf.placeholder(tf.float32, [])
    with tf.variable_scope('', reuse=tf.AUTO_REUSE):
      dropped = nasnet.build_logits(images, is_training, 10, variant='mobile', drop_path_rate=rate)
      plain = nasnet.build_logits(images, False, 10, variant='mobile')
    session.run(tf.global_variables_initializer())
    off, expected = session.run([dropped, plain], {is_training: False, rate: 0.9})
    np.testing.assert_allclose(off, expected, atol=1e-5 * np.abs(expected).max())
    floors = [[op.outputs[0] for op in graph.get_operations()
               if op.type == 'Floor' and op.name.startswith(f'cell{cell}/')]
              for cell in range(1, 8)]
    # All operations but 'same' of a normal cell, or of one that reduces.
    assert list(map(len, floors)) == [9, 9, 8, 9, 8, 9, 8]
    kept = [list(map(np.mean, session.run(floors, {is_training: True, rate: 0.9})))
            for _ in range(20)]
    np.testing.assert_allclose(np.mean(kept, 0), 1 - 0.9 * np.arange(1, 8) / 7, atol=0.08)


@pytest.mark.parametrize('name', ['lenet', 'convnet'])
def test_dropout_only_while_training(name):
  with tf.Graph().as_default(), tf.Session() as session:
    is_training = tf.placeholder(tf.bool, [])
    with tf.variable_scope('', reuse=tf.AUTO_REUSE):
      switched, _ = build(name, is_training)
      plain, _ = build(name, False)
    session.run(tf.global_variables_initializer())
    np.testing.assert_array_equal(*session.run([switched, plain], {is_training: False}))
    assert (session.run(switched, {is_training: True}) != session.run(switched,
                                                                      {is_training: True})).any()


def test_bytes_and_floats_mean_the_same_image():
  with tf.Graph().as_default(), tf.Session() as session:
    with tf.variable_scope('', reuse=tf.AUTO_REUSE):
      from_bytes, _ = build('linear', False)
      labels = tf.constant(np.arange(3, dtype=np.int32))
      images = np.random.RandomState(0).randint(256, size=[3, 28, 28, 1]).astype(np.float32) / 255
      from_floats, _ = models.build_classifier('linear',
                                               num_classes=10)((tf.constant(images), labels), False)
    session.run(tf.global_variables_initializer())
    np.testing.assert_allclose(*session.run([from_bytes, from_floats]), rtol=1e-5)


def test_metrics_count_the_likeliest_answer_and_the_five_likeliest():
  with tf.Graph().as_default(), tf.Session() as session:
    _, metrics = build('linear', False, batch=8)
    weights, biases = tf.trainable_variables()
    session.run([weights.assign(tf.zeros_like(weights)),
                 biases.assign([0, 9, 8, 0, 7, 0, 6, 5, 0, 0])])
    found = session.run(metrics)
  np.testing.assert_array_equal(found['accuracy'], np.arange(8) == 1)
  np.testing.assert_array_equal(found['top_5'], np.isin(np.arange(8), [1, 2, 4, 6, 7]))


@pytest.mark.nightly
def test_a_deep_net_with_sync_is_one_tower():
  train = load_synthetic(num_train=100, num_validation=10).train
  report = towers.check(models.build_classifier('resnet20', num_classes=10), train, num_towers=3,
                        batch_size=7, batch_norm='sync', num_steps=2)
  assert report.agrees, report.format()


def test_unknown_models_formats_and_image_types_are_refused():
  with pytest.raises(UsageError, match='vgg.*linear, lenet, convnet'):
    models.build_classifier('vgg', num_classes=10)
  with pytest.raises(UsageError, match='NHCW.*NHWC, NCHW'):
    models.build_classifier('lenet', num_classes=10, data_format='NHCW')
  with pytest.raises(UsageError, match='drop_path=0.4 has no effect on linear'):
    models.build_logits('linear', num_classes=3, drop_path=0.4)
  with tf.Graph().as_default(), pytest.raises(TypeError, match='int64'):
    build('linear', False, dtype=np.int64)
