"""Models by hand, of kinds where N towers may differ from one.

  exact     a sum over examples
  coupled   a value of several examples counts
  random    it draws; N towers draw other numbers than one
"""

from typing import Any, Callable, Dict, NamedTuple, Optional

import numpy as np

import towers
from towers.tensorflow_v1 import tf

contrib = layers = None
if tf.__version__.startswith('1.'):
  import tensorflow
  contrib, layers = tensorflow.contrib, tensorflow.layers


class Case(NamedTuple):
  """A model of the zoo.

  Attributes:
    model: a `towers.Model`.
    kind: 'exact', 'coupled' or 'random'.
    data: makes its examples.
    opt: makes its optimizer, or None.
    tf1: whether only TensorFlow 1 has its parts.
  """
  model: Callable[[Any, Any], Any]
  kind: str
  data: Callable[[], Any]
  opt: Optional[Callable[[], Any]]
  tf1: bool


ZOO: Dict[str, Case] = {}


def case(kind, data=None, opt=None, tf1=False):
  """Puts a model into ZOO."""
  def put(model):
    ZOO[model.__name__] = Case(model, kind, data, opt, tf1)
    return model
  return put


def arrays(*keys):
  """Returns what makes 22 examples with these parts."""
  def data():
    r, n = np.random.RandomState(0), 22
    parts = dict(
        x=r.randn(n, 6), m=r.rand(n, 5) < 0.5, im=r.rand(n, 6, 6, 3),
        y=r.randint(0, 4, n), s=r.randint(0, 12, (n, 5)), t=r.randint(0, 12, (n, 5)),
        l=r.randint(1, 6, n), b=np.arange(n) % 2)
    return towers.from_arrays({
        key: parts[key].astype('i4' if parts[key].dtype.kind == 'i' else 'f4') for key in keys})

  return data


XY, SEQ, IM = arrays('x', 'y'), arrays('s', 't', 'l', 'y'), arrays('im', 'y')


def dense(x, units, name, act=None):
  with tf.variable_scope(name):
    w = tf.get_variable('w', [int(x.shape[-1]), units],
                        initializer=tf.random_normal_initializer(stddev=0.5))
    b = tf.get_variable('b', [units], initializer=tf.zeros_initializer())
  z = tf.tensordot(x, w, 1) + b if x.shape.ndims > 2 else tf.matmul(x, w) + b
  return act(z) if act else z


def ce(logits, y):
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)


def by_rows(x, b):
  """Returns the losses by rows that have the shape of the batch's, though nothing says so."""
  x.set_shape(b['x'].shape)
  return ce(dense(x, 4, 'd'), b['y'])


def conv(x, c, name):
  kernel = tf.get_variable(name, [3, 3, int(x.shape[-1]), c],
                           initializer=tf.random_normal_initializer(stddev=0.3))
  return tf.nn.conv2d(x, kernel, strides=[1, 1, 1, 1], padding='SAME')


def state(name, shape, value=0.0):
  return tf.get_variable(name, shape, initializer=tf.constant_initializer(value), trainable=False)


def update(op):
  tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, op)
