"""Axes as long as the longest example: a mean over one differs on towers, and a sum does not."""

import numpy as np
import pytest

from tensorflow_v1 import tf
from towers.coupling import longest
from towers.coupling.follow import follow
from towers.coupling.values import Mixed

# Each TensorFlow has ops of its own.
pytestmark = pytest.mark.nightly

TEXTS = np.array(['a b', 'a b c d e', 'b', 'c c c', 'd e a', 'e', 'a a b c d e a', 'b c'])
MIXED, EXACT, SILENT = {}, {}, {}


def _in(group):
  return lambda model: group.setdefault(model.__name__, model)


def table(size=3):
  return tf.get_variable('table', [32, size], initializer=tf.random_normal_initializer(seed=1))


def embed(texts):
  tokens = tf.string_split(texts)
  ids = tf.SparseTensor(tokens.indices, tf.string_to_hash_bucket_fast(tokens.values, 32),
                        tokens.dense_shape)
  return tf.nn.embedding_lookup(table(), tf.sparse_tensor_to_dense(ids))


def words(texts):
  tokens = tf.sparse_tensor_to_dense(tf.string_split(texts), default_value='')
  return tf.not_equal(tokens, ''), tf.string_to_hash_bucket_fast(tokens, 32)


def lengths(texts):
  return tf.cast(tf.strings.length(texts), tf.int32) // 2 + 1


def each(values):
  """Returns a loss of each example from values of it."""
  return tf.reduce_sum(tf.tanh(values) ** 2, 1)


@_in(MIXED)
def a_mean_of_embeddings(texts):
  return each(tf.reduce_mean(embed(texts), 1))


@_in(MIXED)
def a_mean_of_layers(texts):
  weights = tf.get_variable('w', [3, 4], initializer=tf.random_normal_initializer(seed=2))
  return each(tf.reduce_mean(tf.nn.relu(tf.tensordot(embed(texts), weights, 1)), 1))


@_in(MIXED)
def a_mean_of_a_convolution(texts):
  filters = tf.get_variable('f', [3, 3, 4], initializer=tf.random_normal_initializer(seed=2))
  return each(tf.reduce_mean(tf.nn.conv1d(embed(texts), filters, 1, 'SAME'), 1))


@_in(MIXED)
def a_mean_of_what_is_attended_to(texts):
  x = embed(texts)
  scores = tf.nn.softmax(tf.matmul(x, x, transpose_b=True))
  return each(tf.reduce_mean(tf.matmul(scores, x), 1))


@_in(MIXED)
def a_mean_of_similarities(texts):
  x = embed(texts)
  return tf.reduce_max(tf.reduce_mean(tf.tanh(tf.matmul(x, x, transpose_b=True)), 2), 1)


@_in(MIXED)
def a_mean_of_time_major_values(texts):
  return each(tf.reduce_mean(tf.transpose(embed(texts), [1, 0, 2]), 0))


@_in(MIXED)
def a_mean_of_masked_values(texts):
  is_there, _ = words(texts)
  return each(tf.reduce_mean(embed(texts) * tf.cast(is_there, tf.float32)[..., tf.newaxis], 1))


@_in(MIXED)
def a_mean_of_all_tokens(texts):
  is_there, ids = words(texts)
  logits = tf.nn.embedding_lookup(table(32), ids)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=ids, logits=logits)
  return tf.reduce_mean(losses * tf.cast(is_there, tf.float32), 1)


@_in(MIXED)
def a_mean_of_hashed_words(texts):
  _, ids = words(texts)
  return each(tf.reduce_mean(tf.nn.embedding_lookup(table(), ids), 1))


@_in(MIXED)
def a_mean_of_next_words(texts):
  ids = tf.pad(words(texts)[1], [[0, 0], [1, 0]])
  ones = tf.one_hot(ids[:, :-1], 32)
  return tf.reduce_mean(ones * tf.nn.embedding_lookup(table(32), ids[:, 1:]), [1, 2])


@_in(MIXED)
def a_mean_of_chosen_values(texts):
  is_there, ids = words(texts)
  x = tf.nn.embedding_lookup(table(1), ids)[..., 0]
  return tf.reduce_mean(tf.where(is_there, x, tf.zeros_like(x)), 1)


@_in(MIXED)
def a_mean_of_values_beside_a_scalar(texts):
  is_there, ids = words(texts)
  x = tf.nn.embedding_lookup(table(1), ids)[..., 0]
  return tf.reduce_mean(tf.where_v2(tf.logical_not(is_there), 0.0, x), 1)


@_in(MIXED)
def a_mean_of_norms_of_tokens(texts):
  return tf.reduce_mean(tf.reduce_sum(embed(texts) ** 2, -1), 1)


@_in(MIXED)
def a_mean_of_a_mask(texts):
  mask = tf.sequence_mask(lengths(texts), dtype=tf.float32)
  return tf.reduce_mean(mask, 1) * table()[0, 0]


@_in(MIXED)
def a_mean_of_ragged_rows(texts):
  ragged = tf.RaggedTensor.from_row_lengths(
      tf.range(tf.reduce_sum(lengths(texts))), lengths(texts))
  return tf.reduce_mean(tf.cast(ragged.to_tensor(), tf.float32), 1) * table()[0, 0]


@_in(EXACT)
def a_sum_of_masked_values_by_their_number(texts):
  is_there, _ = words(texts)
  mask = tf.cast(is_there, tf.float32)[..., tf.newaxis]
  return each(tf.reduce_sum(embed(texts) * mask, 1) / tf.reduce_sum(mask, 1))


@_in(EXACT)
def a_mean_of_sparse_lookups(texts):
  tokens = tf.string_split(texts)
  ids = tf.SparseTensor(tokens.indices, tf.string_to_hash_bucket_fast(tokens.values, 32),
                        tokens.dense_shape)
  return each(tf.nn.embedding_lookup_sparse(table(), ids, None, combiner='mean'))


@_in(EXACT)
def a_mean_over_elements_of_an_embedding(texts):
  is_there, _ = words(texts)
  return tf.reduce_sum(tf.reduce_mean(embed(texts), 2) * tf.cast(is_there, tf.float32), 1)


@_in(EXACT)
def a_mean_of_a_mask_of_one_length(texts):
  return tf.reduce_mean(tf.sequence_mask(lengths(texts), 9, tf.float32), 1) * table()[0, 0]


@_in(EXACT)
def a_mean_over_a_constant_ragged_table(texts):
  ragged = tf.ragged.constant([[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]).to_tensor()
  rows = tf.gather(tf.placeholder_with_default(ragged, [3, None]), lengths(texts) % 3)
  return tf.reduce_mean(rows, 1) * table()[0, 0]


@_in(EXACT)
def a_mean_over_an_axis_of_a_size_of_unknown_rank(texts):
  sizes = tf.placeholder_with_default(tf.constant([3, 8]), None)
  rows = tf.reshape(tf.one_hot(lengths(texts), 12), [tf.shape(texts)[0], sizes[0], 4])
  return each(tf.reduce_mean(rows, 1)) * table()[0, 0]


@_in(SILENT)
def a_largest_element(texts):
  return each(tf.reduce_max(embed(texts), 1))


MODELS = {**MIXED, **EXACT, **SILENT}


@pytest.mark.parametrize('model', MODELS)
def test_a_mean_is_named_if_a_run_shows_it(model):
  with tf.Graph().as_default(), tf.Session() as session:
    texts = tf.placeholder(tf.string, [None])
    loss = MODELS[model](texts)
    [value] = follow([texts], [loss], most_rows=8)
    session.run(tf.global_variables_initializer())
    whole = session.run(loss, {texts: TEXTS})
    parts = np.concatenate([session.run(loss, {texts: TEXTS[part]})
                            for part in (slice(4), slice(4, 8))])
  assert np.allclose(whole, parts, rtol=1e-5) == (model in EXACT)
  assert isinstance(value, Mixed) == (model in MIXED)
  assert not isinstance(value, Mixed) or value.op.type == 'Mean'


def test_each_of_two_means_is_named_and_none_in_a_batch_that_is_not_divided():
  with tf.Graph().as_default():
    texts = tf.placeholder(tf.string, [None])
    x = embed(texts)
    targets = [tf.reduce_mean(2 * x, 1), tf.reduce_mean(x, 1), tf.reduce_sum(x, 1)]
    assert [type(value) for value in follow([texts], targets, most_rows=8)] == [
        Mixed, Mixed, type(None)]
    assert not any(follow([texts], targets))


def test_every_axis_comes_from_axes_that_are_there():
  for model in MODELS.values():
    with tf.Graph().as_default() as graph:
      loss = model(tf.placeholder(tf.string, [None]))
      tf.gradients(loss, tf.trainable_variables())
    for op in graph.get_operations():
      for output in op.outputs:
        for place in range(output.shape.ndims or 0):
          for tensor, before in longest.find_axes_before(output, place):
            assert tensor.shape.ndims is None or 0 <= before < tensor.shape.ndims, op
