"""Row shapes: what is found without a run is what a run shows, and nothing of a branch is found."""

import numpy as np
import pytest

from tensorflow_v1 import tf
from towers.input.batch import Batch
from towers.tower.batch_norm_layer import batch_norm
from towers.tower.cloning.row_shapes import RowShapes


def build(images, is_training):
  """Returns tensors by name; a shape of each is asked for."""
  x = batch_norm(images, is_training, name='norm')
  y = tf.nn.relu(tf.nn.conv2d(x, tf.ones([3, 3, 3, 5]), strides=[1, 2, 2, 1], padding='SAME'))
  joined = tf.concat([y, y + tf.ones([5])], 3)
  branch = tf.raw_ops.Switch(data=y, pred=is_training)[1]
  size = tf.shape(y)[0]
  either = tf.cond(is_training, lambda: y, lambda: y * 2)
  tensors = dict(images=images, normalised=x, convolved=y, joined=joined,
                 last=tf.transpose(joined, [1, 2, 3, 0]), folded=tf.reshape(joined, [-1, 40]),
                 chosen=tf.boolean_mask(y, tf.reduce_max(y, [1, 2, 3]) > 0),
                 twice=tf.concat([y, y], 0), view=tf.split(tf.concat([y, y], 0), 2)[0],
                 noise=tf.random.normal([size, 3]), noises=tf.random.normal([2 * size, 3]),
                 rounded=tf.random.normal([size // 2 * 2, 3]),
                 branch=tf.nn.relu(branch), either=either)
  return tensors, [tf.shape(tensor) for tensor in tensors.values()]


FOUND = ('images', 'normalised', 'convolved', 'joined', 'last', 'view', 'noise')


def find(num_rows):
  graph = tf.get_default_graph()
  images = tf.placeholder(tf.float32, [num_rows, 8, 8, 3])
  is_training = tf.placeholder_with_default(True, [])
  tensors, shapes = build(images, is_training)
  batch = Batch((images, tf.placeholder(tf.int32, [num_rows])), tf.placeholder(tf.int32, []))
  graph_def = graph.as_graph_def()
  found = RowShapes(batch, graph_def.node, graph_def)
  return images, tensors, shapes, {name: found.find(value) for name, value in tensors.items()}


@pytest.mark.parametrize('num_rows', [1, 3])
def test_shapes_are_those_of_a_run(num_rows):
  with tf.Graph().as_default(), tf.Session() as session:
    images, tensors, shapes, found = find(None)
    assert [name for name, shape in found.items() if shape] == list(FOUND)
    session.run(tf.global_variables_initializer())
    values = session.run(shapes, {images: np.ones([num_rows, 8, 8, 3])})
    for (name, shape), value in zip(found.items(), values):
      if shape is not None:
        assert [num_rows if size is None else size for size in shape] == list(value), name


def test_static_shapes_need_no_rows():
  with tf.Graph().as_default():
    _, tensors, _, found = find(2)
    assert found['joined'] == tensors['joined'].shape.as_list()
    assert found['chosen'] is None
