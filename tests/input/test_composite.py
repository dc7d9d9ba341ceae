"""Sparse and ragged components: each model gets those of its part of the batch, in every mode."""

import functools

import numpy as np
import pytest

import towers
from tests.data.test_records import write
from tests.harness import small
from tests.harness.taking import take
from towers.base.usage_error import UsageError
from towers.data.composite import decode_batch
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.tensorflow_v1 import tf
from towers_tools.serving.model import read_types

WORDS = 9


def sentences_of(number):
  """Returns for an example some rows of words, some of which are empty."""
  random = np.random.RandomState(number)
  return [random.randint(WORDS, size=size).tolist() for size in random.randint(4, size=number % 4)]


def counts_of(number):
  """Returns words and how often each is there, for a sparse vector."""
  random = np.random.RandomState(100 + number)
  words = np.sort(random.permutation(WORDS)[:number % 5])
  return words, (words + 0.5).astype(np.float32)


def make(numbers):
  """Returns a data set of examples with a number, a RaggedTensor and a SparseTensor."""
  def generate():
    for number in numbers:
      rows, (words, counts) = sentences_of(number), counts_of(number)
      yield (number, np.array(sum(rows, []), np.int64), np.array([len(row) for row in rows],
                                                                 np.int64), words, counts)

  def assemble(number, values, lengths, words, counts):
    return {'id': number, 'more': (tf.RaggedTensor.from_row_lengths(values, lengths),
                                   tf.SparseTensor(words[:, None], counts, [WORDS]))}

  flat = tf.data.Dataset.from_generator(
      generate, (tf.int64, tf.int64, tf.int64, tf.int64, tf.float32),
      ([], [None], [None], [None], [None]))
  return flat.map(assemble)


def from_dataset(numbers, name):
  return towers.from_dataset(lambda: make(numbers), name=name)


def from_elements(numbers, name):
  return towers.Examples(len(numbers), lambda: make(numbers), name=name)


SOURCES = {'dataset': from_dataset, 'elements': from_elements}


@functools.lru_cache(maxsize=None)
def words_of(number):
  """Returns an example by hand: rows of words, and a dense vector of counts."""
  words, counts = counts_of(number)
  dense = np.zeros(WORDS, np.float32)
  dense[words] = counts
  return sentences_of(number), dense.tolist()


GRID = [('dataset', 'split', 3, 17, 'keep'), ('elements', 'next', 8, 19, 'keep'),
        ('elements', 'shard', 3, 13, 'keep'), ('dataset', 'next', 2, 16, 'keep'),
        ('elements', 'split', 1, 13, 'keep'), ('dataset', 'shard', 4, 17, 'pad')]


@pytest.mark.parametrize('source, mode, num_towers, num_examples, last_batch', small.nightly_but(
    GRID[3:4], GRID))
def test_towers_get_the_ragged_and_sparse_tensors_of_their_examples(
    source, mode, num_towers, num_examples, last_batch):
  examples = SOURCES[source](list(range(num_examples)), 'train')

  def read(tensors):
    decoded = decode_batch(tensors)
    ragged, sparse = decoded['more']
    assert isinstance(ragged, tf.RaggedTensor) and ragged.ragged_rank == 2
    assert sparse.get_shape().as_list() == [None, WORDS]
    return decoded['id'], ragged, tf.sparse.to_dense(sparse)

  def take_from(first_step, num_steps):
    return [[(ids[:count].tolist(), ragged.to_list()[:count], dense[:count].tolist())
             for (ids, ragged, dense), count in by_tower] for by_tower in take(
                 examples, first_step=first_step, num_steps=num_steps, mode=mode, read=read,
                 num_towers=num_towers, last_batch=last_batch)]

  steps = take_from(0, 4)
  num_steps = -(-num_examples // 8)
  for step, by_tower in enumerate(steps):
    begin = step % num_steps * 8
    assert sorted(id for ids, _, _ in by_tower for id in ids) == list(
        range(begin, min(begin + 8, num_examples)))
    for ids, ragged, dense in by_tower:
      assert list(zip(ragged, dense)) == [words_of(id) for id in ids]
  assert take_from(2, 2) == steps[2:]


@pytest.mark.nightly
def test_records_may_be_sparse_or_ragged(tmp_path):
  path = write(tmp_path / 'file', range(9), rows=lambda number: number % 3)

  def parse(record, size=(10,)):
    features = tf.io.parse_single_example(record, {
        'id': tf.io.FixedLenFeature([], tf.int64), 'rows': tf.io.VarLenFeature(tf.float32)})
    sparse = features['rows']
    values = sparse.values
    return features['id'], tf.SparseTensor(sparse.indices, values, size or sparse.dense_shape), (
        tf.RaggedTensor.from_row_lengths(values, tf.size(values, out_type=tf.int64)[None]))

  def read(tensors):
    ids, sparse, ragged = decode_batch(tensors)
    return ids, tf.sparse.to_dense(sparse), ragged

  for by_tower in take(towers.from_tfrecords(path, parse), batch_size=5, num_towers=2, num_steps=2,
                       read=read):
    for (ids, dense, ragged), _ in by_tower:
      assert dense.tolist() == [[id] * (id % 3) + [0] * (10 - id % 3) for id in ids]
      assert ragged.to_list() == [[[id] * (id % 3)] for id in ids]
  with pytest.raises(UsageError, match=r'the component 1 is a SparseTensor of the dense shape \(.*'
                                       'to_dense.*towers.padded'):
    towers.from_tfrecords(path, lambda record: parse(record, size=None))


def test_what_cannot_stand_beside_them_is_refused():
  def build(examples, values=None):
    with tf.Graph().as_default():
      build_inputs(examples, plan=build_plan(
          num_examples=8, batch_size=4, num_towers=2))

  def beside(**component):
    def assemble(example):
      # Twice mapped, a SparseTensor of 1.14 has lost its shape.
      sparse = example['more'][1]
      words = tf.SparseTensor(sparse.indices, sparse.values, [WORDS])
      return dict(words=words, **{key: value(example) for key, value in component.items()})
    return towers.Examples(8, lambda: make(range(8)).map(assemble))

  def of_any_size(example):
    return tf.fill(example['id'][None], 1.0)

  with pytest.raises(UsageError, match="the component row has the shape .*padded"):
    build(beside(row=of_any_size))
  build(towers.padded(beside(row=of_any_size), values=dict(words=None, row=7)))
  with pytest.raises(UsageError, match='the component words is sparse or ragged and is not padded'):
    build(towers.padded(beside(row=of_any_size), values=dict(words=0, row=7)))
  with pytest.raises(UsageError, match="component words is a Sparse.*to_dense"):
    build(beside()._replace(parse_batch=lambda batch: batch))
  with pytest.raises(UsageError, match='examples: an example has a sparse or ragged component, and '
                                       'inputs of predict are dense'):
    read_types(beside())
