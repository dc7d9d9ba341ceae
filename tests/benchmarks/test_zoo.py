"""The models of the zoo multiply as often as papers count."""

import pytest

import models
from benchmarks import zoo
from tensorflow_v1 import tf


# The others differ from these in how often a block is repeated.
@pytest.mark.parametrize('name', [
    'alexnet', 'resnet50', pytest.param('nasnet_mobile', marks=pytest.mark.slow)])
def test_an_image_takes_as_many_multiply_adds_as_published(name):
  line = zoo.count(name)
  assert line['multiply_adds'] / 1e9 == pytest.approx(line['published_billions'], rel=0.011)
  assert line['weights'] / 1e6 == pytest.approx(line['published_millions'], rel=0.01)


def test_products_are_those_of_a_multiplication_by_hand():
  with tf.Graph().as_default():
    images = tf.zeros([1, 8, 6, 3])
    conv = tf.nn.conv2d(images, tf.zeros([3, 5, 3, 7]), strides=[1, 2, 2, 1], padding='SAME')
    depthwise = tf.nn.depthwise_conv2d(images, tf.zeros([3, 5, 3, 2]), strides=[1, 1, 1, 1],
                                       padding='VALID')
    dense = tf.matmul(tf.zeros([2, 11]), tf.zeros([11, 13]))
    assert zoo.count_products(conv.op) == (4 * 3 * 7) * (3 * 5 * 3)
    assert zoo.count_products(depthwise.op) == (6 * 2 * 6) * (3 * 5)
    assert zoo.count_products(dense.op) == 2 * 11 * 13
    assert zoo.count_products(images.op) == 0


def test_every_model_has_a_row(capsys, monkeypatch):
  monkeypatch.setattr('sys.argv', ['zoo', '--models=lenet,resnet20'])
  zoo.main()
  rows = capsys.readouterr().out.splitlines()
  assert len(rows) == 4 and rows[3].startswith('| `resnet20` | 32 | 0.27 (0.27) | 0.0406 | ')
  assert set(zoo.PUBLISHED) <= set(models.MODELS)
