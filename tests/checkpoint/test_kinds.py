"""Every kind of variable that TensorFlow has is written and read back, on any number of towers."""

import numpy as np
import pytest

import towers
from towers.tensorflow_v1 import tf
from towers.warm_start.slices import find_slice

random = np.random.RandomState(0)
IDS, LABELS = random.randint(0, 12, (24, 3)).astype('i'), random.randint(0, 2, 24).astype('i')

# What a model makes besides its table, and the value that it gets; None for what training gives it.
KINDS = {
    'rows cut': (dict(shape=[12, 4], partitioner=tf.fixed_size_partitioner(3)), None),
    'columns cut': (dict(shape=[12, 4], partitioner=tf.fixed_size_partitioner(2, axis=1)), None),
    'whole': (dict(shape=[12, 4]), None),
    'text': (dict(initializer=tf.constant_initializer(''), shape=[3], dtype=tf.string),
             np.array([b'', b'\xff\x00' * 99, b'z'], object)),
    'one text': (dict(initializer=tf.constant_initializer(''), shape=[], dtype=tf.string), b'x'),
    'no text': (dict(initializer=tf.constant_initializer(''), shape=[0], dtype=tf.string),
                np.zeros([0], object)),
    'long': (dict(shape=[2], dtype=tf.int64), np.array([-2 ** 62, 2 ** 62 + 1])),
    'bool': (dict(shape=[2], dtype=tf.bool), np.array([True, False])),
    'double': (dict(shape=[2], dtype=tf.float64), np.array([1e-300, np.inf])),
    'half': (dict(shape=[2], dtype=tf.float16), np.array([1.5, -2], 'e')),
    'complex': (dict(shape=[2], dtype=tf.complex64), np.array([1j, -2], 'F')),
    'scalar': (dict(shape=[]), np.float32(3)),
    'empty': (dict(shape=[0, 3]), np.zeros([0, 3], 'f')),
    'ref': (dict(shape=[2], use_resource=False), np.array([3, 4], 'f'))}


def program(kind, n, **changed):
  settings, value = KINDS[kind]
  settings = dict(settings, trainable=value is None, **changed)

  def model(batch, is_training):
    ids, labels = batch
    if value is None:
      table = tf.get_variable('it', **settings)
      table = table if isinstance(table, tf.Variable) else tf.identity(table)
    else:
      if settings['trainable'] is False and 'initializer' not in settings:
        settings['initializer'] = tf.zeros_initializer()
      tf.get_variable('it', **settings)
      table = tf.get_variable('table', [12, 4])
    rows = tf.reduce_mean(tf.nn.embedding_lookup(table, ids), 1)
    logits = tf.matmul(rows, tf.get_variable('w', [4, 2]))
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

  return towers.Program(model, train=towers.from_arrays(IDS, LABELS), batch_size=8, num_towers=n,
                        seed=0, optimizer=tf.train.AdamOptimizer(.1))


def read(session, name):
  """Returns a variable's value, put together where it is cut."""
  slices = [(piece, variable) for variable in tf.global_variables()
           for piece in [find_slice(variable)] if piece.name == name]
  values = session.run([variable for _, variable in slices])
  whole = np.zeros(slices[0][0].tensor.shape.as_list(), np.asarray(values[0]).dtype)
  for (piece, _), value in zip(slices, values):
    whole[piece.slices or ...] = value
  return whole


@pytest.mark.nightly(but=['rows cut', 'text'])
@pytest.mark.parametrize('kind', sorted(KINDS))
def test_what_is_saved_is_restored(kind, tmp_path):
  _, value = KINDS[kind]
  names = ['it'] + (['it/Adam', 'it/Adam_1'] if value is None else [])
  with tf.Graph().as_default(), program(kind, 1).session() as session:
    session.train()
    if value is not None:
      [it] = [variable for variable in tf.global_variables() if variable.op.name == 'it']
      it.load(value, session.tf_session)
    session.save(str(tmp_path))
    before = [read(session, name) for name in names]
    expected = [session.train(), session.train()]
  shapes = [{}]
  if 'partitioner' in KINDS[kind][0]:
    shapes += [dict(partitioner=tf.fixed_size_partitioner(4)), dict(partitioner=None)]
  for n, changed in zip((2, 3, 1), shapes):
    with tf.Graph().as_default(), program(kind, n, **changed).session() as session:
      session.restore(str(tmp_path))
      assert session.step == 1
      for name, saved in zip(names, before):
        np.testing.assert_array_equal(read(session, name), saved)
      assert [session.train(), session.train()] == pytest.approx(expected, abs=1e-5)
