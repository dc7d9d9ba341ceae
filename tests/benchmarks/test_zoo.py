"""Products are counted as by hand, and the page of results has every model beside its paper."""

import os
import re

import pytest

import models
from benchmarks import zoo
from tensorflow_v1 import tf
from tests import ROOT


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


def test_a_row_has_all_that_is_known_of_a_model(capsys, monkeypatch):
  monkeypatch.setattr('sys.argv', ['zoo', '--models=lenet,resnet20'])
  zoo.main()
  rows = capsys.readouterr().out.splitlines()
  assert len(rows) == 4
  lenet, resnet20 = (re.sub(r' \d\d[\d,]*( \|[^|]*\|)$', r' OPS\1', row) for row in rows[2:])
  assert lenet == '| `lenet` | 32 | 0.0831 | 0.000886 | OPS |  |'
  assert resnet20 == '| `resnet20` | 32 | 0.27 (0.27) | 0.0406 | OPS | He et al. 2016, table 6 |'


def test_the_page_has_every_model_with_its_published_figures():
  with open(os.path.join(ROOT, 'docs', 'results.md'), encoding='utf-8') as file:
    rows = re.findall(r'^\| `(\w+)` \| (\d+) \| (.*?) \| (.*?) \| [\d,]+ \| (.*?) ?\|$',
                      file.read(), re.MULTILINE)
  assert [row[0] for row in rows] == list(models.MODELS)
  for name, size, weights, products, source in rows:
    published = zoo.PUBLISHED.get(name, zoo.Published(32, 10))
    assert (int(size), source) == (published.size, published.source)
    for cell, figure in ((weights, published.millions), (products, published.billions)):
      counted, *others = re.findall(r'[\d.e-]+', cell)
      assert [float(other) for other in others] == ([figure] if figure else [])
      # Papers round: 1.7 million weights for 1.73.
      assert float(counted) == pytest.approx(figure or float(counted), rel=0.021)
