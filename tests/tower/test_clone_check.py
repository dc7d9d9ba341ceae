"""Loops, branches and functions are cloned; what holds or remembers something is refused."""

import logging

import numpy as np
import pytest

from tensorflow_v1 import tf
from tests.harness import direct, small
from towers.base.usage_error import UsageError

UNITS = 4


class Cell:
  """A recurrent cell with a gate, as `tf.nn.dynamic_rnn` takes it on both targets."""

  output_size = state_size = UNITS

  def zero_state(self, batch_size, dtype):
    return tf.zeros([batch_size, UNITS], dtype)

  def __call__(self, inputs, state, scope=None):
    joined = tf.concat([inputs, state], 1)
    gate, value = [small.dense(joined, UNITS, name) for name in ('gate', 'value')]
    gate = tf.sigmoid(gate)
    state = gate * state + (1 - gate) * tf.tanh(value)
    return state, state


def run_rnn(cell, features, lengths=None):
  """Returns the last output of a loop over the features, one number a step."""
  outputs, _ = tf.nn.dynamic_rnn(cell, features[:, :, None], sequence_length=lengths,
                                 dtype=tf.float32)
  return outputs[:, -1]


def gated(features, labels):
  return run_rnn(Cell(), features)


def of_lengths(features, labels):
  return run_rnn(Cell(), features, labels + 3)


def lstm(features, labels):
  cells = [tf.nn.rnn_cell.LSTMCell(UNITS), tf.nn.rnn_cell.GRUCell(UNITS)]
  return run_rnn(tf.nn.rnn_cell.MultiRNNCell(cells), features)


def both_ways(features, labels):
  cells = [tf.nn.rnn_cell.LSTMCell(UNITS) for _ in range(2)]
  outputs, _ = tf.nn.bidirectional_dynamic_rnn(*cells, features[:, :, None], dtype=tf.float32)
  return tf.concat(outputs, 2)[:, -1]


def time_major(features, labels):
  outputs, _ = tf.nn.dynamic_rnn(Cell(), tf.transpose(features)[:, :, None], dtype=tf.float32,
                                 time_major=True)
  return outputs[-1]


def array(features, labels):
  """A loop whose length the data decide, into a TensorArray."""
  weights = small.dense(features, UNITS, 'weights')
  rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=[None, UNITS])
  length = 2 + tf.reduce_max(labels)

  def turn(i, rows, x):
    x = tf.tanh(x)
    return i + 1, rows.write(i, x), x + tf.cast(i, tf.float32)

  _, rows, _ = tf.while_loop(lambda i, *_: i < length, turn, (0, rows, weights))
  return tf.reduce_sum(rows.stack(), 0)


def branches(features, labels):
  x = small.dense(features, UNITS, 'hidden')
  return tf.cond(tf.reduce_sum(features) > 0, lambda: tf.tanh(x), lambda: tf.case(
      [(tf.reduce_max(labels) > 1, lambda: tf.sin(x))], default=lambda: -x))


def within_a_loop(features, labels):
  def turn(i, x):
    def inner():
      return tf.while_loop(lambda j, _: j < i, lambda j, x: (j + 1, tf.sin(x)), (0, x))[1]

    return i + 1, tf.cond(i > 1, lambda: tf.tanh(x), inner)

  return tf.while_loop(lambda i, _: i < 3, turn, (0, small.dense(features, UNITS, 'hidden')))[1]


def functions(features, labels):
  @tf.function
  def double(x):
    return 2 * tf.tanh(x)

  return double(small.dense(features, UNITS, 'hidden')) + double(features[:, :UNITS])


def reading_function(features, labels):
  weights = tf.get_variable('weights', [small.NUM_FEATURES, UNITS])
  return tf.function(lambda x: tf.matmul(x, weights))(features)


def strings(features, labels):
  words = tf.string_join(['class', tf.as_string(labels)], '-')
  rows = tf.string_to_hash_bucket_fast(words, 7)
  return tf.nn.embedding_lookup(tf.get_variable('table', [7, UNITS]), rows) + features[:, :UNITS]


def rows_of_rows(features, labels):
  own, places = tf.unique(labels)
  rows = tf.gather(tf.get_variable('table', [7, UNITS]), own)
  return tf.gather(rows, places) + features[:, :UNITS]


def unknown_rank(features, labels):
  x = small.dense(features, UNITS, 'hidden')
  x = tf.placeholder_with_default(x, None)
  x = tf.tanh(x)
  x.set_shape([None, UNITS])
  return x


def stateless_python(features, labels):
  twice = tf.py_func(lambda x: x * np.float32(2), [features], tf.float32, stateful=False)
  twice.set_shape(features.shape)
  return small.dense(twice, UNITS, 'hidden')


OF_TENSORFLOW_1 = [lstm, both_ways] if tf.__version__.startswith('1.') else []
CLONED = [gated, of_lengths, time_major, array, branches, within_a_loop, functions,
          reading_function, strings, rows_of_rows, unknown_rank, stateless_python] + OF_TENSORFLOW_1


def python(features, labels):
  twice = tf.py_func(lambda x: x * np.float32(2), [features], tf.float32)
  twice.set_shape(features.shape)
  return small.dense(twice, UNITS, 'hidden')


def python_in_a_function(features, labels):
  @tf.function
  def call(x):
    return tf.numpy_function(lambda x: x * np.float32(2), [x], tf.float32)

  twice = call(features)
  twice.set_shape(features.shape)
  return small.dense(twice, UNITS, 'hidden')


def table(features, labels):
  pairs = tf.lookup.KeyValueTensorInitializer([0, 1, 2], [2.0, 0.5, 1.0], tf.int32, tf.float32)
  weights = tf.lookup.StaticHashTable(pairs, -1.0).lookup(labels)
  return small.dense(features, UNITS, 'hidden') * weights[:, None]


def queue(features, labels):
  rows = tf.FIFOQueue(9, [tf.float32], [features.shape])
  with tf.control_dependencies([rows.enqueue(features)]):
    features = rows.dequeue()
  return small.dense(features, UNITS, 'hidden')


REFUSED = {
    python: 'PyFunc.*calls a Python function',
    python_in_a_function: 'PyFunc.*calls a Python function',
    table: 'HashTableV2.*holds what other ops have set',
    queue: 'FIFOQueueV2.*holds what other ops have set',
}


def outcome(build, layer, **settings):
  """Returns what towers of a model with a layer of some kind compute."""
  def model(batch, is_training):
    features, labels = batch
    logits = small.dense(layer(features, labels), small.NUM_CLASSES, 'logits')
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reshape(losses, [-1]), {'first': logits[:, 0]}

  return direct.build(build, model, **settings)


def assert_built_by_the_model(by_default, built):
  """By name as well, as random ops are seeded by names."""
  direct.assert_same_values(by_default, built)
  assert direct.names_of_towers(by_default) == direct.names_of_towers(built)


QUICK = {gated, array, within_a_loop, reading_function, strings, python_in_a_function, table}


def kinds(layers):
  """Every layer with every placement; of the quick ones one placement is not slow."""
  for index, layer in enumerate(layers):
    for number, placement in enumerate(('host', 'replicated')):
      is_quick = layer in QUICK and (index + number) % 2
      marks = [] if is_quick else [pytest.mark.nightly]
      yield pytest.param(layer, placement, id=f'{layer.__name__}-{placement}', marks=marks)


@pytest.mark.nightly(but='reading_function-host')
@pytest.mark.parametrize('layer, placement', kinds(CLONED))
def test_what_can_be_cloned_is_the_same_to_the_bit(layer, placement):
  settings = dict(num_towers=2, placement=placement)
  cloned, built = outcome('clone', layer, **settings), outcome('reuse', layer, **settings)
  direct.assert_same_values(cloned, built)
  assert len(direct.names_of_towers(cloned)) < len(direct.names_of_towers(built))


@pytest.mark.nightly(but='python_in_a_function-host')
@pytest.mark.parametrize('layer, placement', kinds(REFUSED))
def test_what_cannot_is_refused_by_name_and_built_by_default(layer, placement, monkeypatch, caplog):
  settings = dict(num_towers=2, placement=placement)
  message = f'tower_build=clone: The op tower_0/.*{REFUSED[layer]}.*tower_build=reuse'
  with pytest.raises(UsageError, match=message):
    outcome('clone', layer, **settings)
  monkeypatch.setattr('towers.tower.cloning.cloner._OPS_WORTH_CLONING', 10)
  with caplog.at_level(logging.WARNING, 'towers'):
    by_default = outcome('auto', layer, **settings)
  [record] = [record for record in caplog.records if record.name == 'towers']
  assert 'The op tower_0/' in record.getMessage() and '\n' not in record.getMessage()
  assert_built_by_the_model(by_default, outcome('reuse', layer, **settings))


@pytest.mark.parametrize('function', small.nightly_but(
    ['is_random'], ['is_random', 'import_placed']))
def test_what_fails_in_cloning_is_built_by_the_model(function, monkeypatch, caplog):
  def fail(*_, **__):
    raise ValueError('a node that\nTensorFlow does not take')

  built = outcome('reuse', gated, num_towers=2)
  monkeypatch.setattr('towers.tower.cloning.cloner._OPS_WORTH_CLONING', 10)
  monkeypatch.setattr('towers.tower.cloning.pattern.' + function, fail)
  with pytest.raises(UsageError, match='tower_build=clone: .*a node that'):
    outcome('clone', gated, num_towers=2)
  by_default = outcome('auto', gated, num_towers=2)
  assert_built_by_the_model(by_default, built)
  assert len([record for record in caplog.records if record.name == 'towers']) == 1


def test_what_the_model_raises_is_raised_whatever_builds_the_towers():
  def broken(features, labels):
    raise KeyError('of the model')

  for build in ('auto', 'clone', 'reuse'):
    with pytest.raises(KeyError, match='of the model'):
      outcome(build, broken)
